"""What each key of `metrics.json` means: the reference in docs/ is made of this, and a test looks every key up here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Key -> meaning. A word in capitals stands for any name; the first line that matches a key describes it.
METRIC_NAMES = {
    # every run
    "seconds": "seconds of training, without setting up; of a resumed run, all its parts together; of a zero-shot run, "
    "seconds of scoring",
    "tokens": "tokens that the model read in training, without padding (words for ELMo; for encoder-decoders tokens of "
    "targets)",
    "words": "words of the text that were read in pretraining, what stands between spaces; one counts each time",
    "tokens_per_second": "`tokens` / `seconds`; in `metrics.csv` up to that step, with validations",
    "parameters": "number of parameters that are in the model, trained or not; where it counts, the counts it keeps",
    "steps": "optimizer steps",
    "precision": "`32-true`, `bf16-mixed`, ...: what the arithmetic was done in",
    "device": "the GPU, or the processor and the number of threads",
    "seed": "of weights, order, masks and dropout",
    "version": "of this library",
    "date": "when the run ended, UTC",
    "encoder": "beginning of the SHA-256 of the encoder's weights that a fine-tune began with, or that were prompted",
    "energy_wh": "energy of training in watt-hours, of the whole processor or GPU",
    "energy_source": "where `energy_wh` is from: `rapl` or `nvml` (counters of the hardware), or `estimate` "
    "(processor time at 10 watts for a busy core)",
    # pretraining
    "flops_per_second": "floating-point operations per second of the step's matrix products, with those of layers that "
    "are computed again for the gradient",
    "share_of_peak": "`flops_per_second` over what plain matrix products reach on this machine (MFU; HFU where layers "
    "are computed again)",
    "data_share": "share of the training time spent waiting for batches",
    "documents": "documents of the training text",
    "val/unknown": "share of the validation predictions that are unknown to the tokenizer",
    "baseline/uniform": "loss of guessing every token with the same probability, in nats",
    "baseline/unigram": "loss of guessing every token by its frequency, in nats; in zero-shot runs, accuracy of the "
    "word-frequency baseline",
    "baseline/unigram/COLUMN/VALUE": "zero-shot: accuracy of the word-frequency baseline, by group",
    "val/mlm_loss": "masked language modeling: mean cross entropy of the masked tokens, in nats",
    "val/mlm_accuracy": "share of the masked tokens predicted exactly",
    "val/tlm_loss": "translation language modeling: the same in rows where the translation of the text is there too",
    "val/tlm_accuracy": "share of these predicted exactly",
    "val/nsp_loss": "next-sentence prediction: cross entropy, in nats (0.693 is chance)",
    "val/nsp_accuracy": "next-sentence prediction: accuracy (0.5 is chance)",
    "val/lm_loss": "left-to-right language modeling: mean cross entropy of the next token, in nats",
    "val/lm_accuracy": "share of the next tokens predicted exactly",
    "val/lm_spelling": "nats charged for the spelling of unknown words, per token; part of the bits per byte",
    "val/forward_loss": "bidirectional language model: loss of the next word, in nats",
    "val/backward_loss": "bidirectional language model: loss of the previous word, in nats",
    "val/DIRECTION_spelling": "nats charged for the spelling of unknown words, per word; part of the bits per byte",
    "val/DIRECTION_perplexity": "exp of the direction's loss",
    "val/DIRECTION_bits_per_byte": "bits per UTF-8 byte of the validation text, in one direction",
    "val/denoising_loss": "denoising: mean cross entropy of the tokens of the text, hidden or not, in nats",
    "val/denoising_accuracy": "share of these tokens predicted exactly",
    "val/spans_loss": "span corruption: mean cross entropy of the hidden spans and their sentinels, in nats",
    "val/spans_accuracy": "share of these tokens predicted exactly",
    "val/neighbor_loss": "QuickThoughts: cross entropy of the other half of a window among the 15 other texts of its "
    "group, in nats",
    "val/neighbor_accuracy": "share of the texts whose other half is found",
    "val/teacher_loss": "distillation: KL divergence of the student's guesses from its teacher's, in nats, times the "
    "square of the temperature",
    "val/teacher_accuracy": "share of the predictions where student and teacher have the same token first",
    "val/hidden_loss": "distillation: 1 - the cosine of the top layers of student and teacher",
    "val/perplexity": "exp of the language model's loss; of a masked language model, of the masked tokens alone",
    "val/bits_per_byte": "bits per UTF-8 byte of the raw validation text; the one figure that compares tokenizers",
    "val/NAME_loss": "loss of an objective of your own",
    "val/NAME_accuracy": "accuracy of an objective of your own",
    # fine-tuning
    "val/loss": "the loss that is trained, on the validation part, in nats (regression: squared error); for BERT the "
    "sum of masked-LM and next-sentence loss, for ELMo of both directions",
    "test/loss": "the same on the test part",
    "test/rows": "rows of the test part",
    "best_step": "step of the checkpoint that is tested: the best on the validation part",
    "val/best_METRIC": "the validation score of that checkpoint",
    "mode": "`max` where more of that metric is better, `min` where less is",
    "degenerate": "true where every prediction is the same, so that nothing was learned",
    "PART/accuracy": "share of the texts labeled right",
    "PART/standard_error": "standard error of the accuracy (or correlation) from the number of rows; of tags from that "
    "of sentences, whose words err together, and of `answer_f1` from that of texts, whose questions do",
    "PART/macro_f1": "mean F1 of the classes",
    "PART/micro_f1": "F1 of all labels of all texts, where a text may have several",
    "PART/answer_f1": "F1 of the words of an answer and of the right one, mean of the questions (SQuAD 1.1)",
    "PART/exact_match": "share of the texts with just the right labels, or of the questions with just the right answer",
    "PART/matthews": "Matthews' correlation coefficient; 0 is chance",
    "PART/span_f1": "F1 of whole spans, as conlleval and seqeval count them",
    "PART/span_precision": "share of the predicted spans that are right",
    "PART/span_recall": "share of the true spans that are found",
    "PART/span_support": "number of true spans",
    "PART/token_accuracy": "share of the words tagged right",
    "PART/pearson": "Pearson's correlation of predicted and true numbers",
    "PART/spearman": "Spearman's rank correlation",
    "PART/mse": "mean squared error",
    "PART/bleu": "BLEU of all translations, from 0 to 100 (sacrebleu, cased); validations search greedily",
    "PART/chrf": "chrF of all translations, from 0 to 100 (sacrebleu)",
    "test/bleu_lowercase": "BLEU of the test, whatever the case",
    "test/METRIC_signature": "how sacrebleu computed a metric",
    "test/characters_K/METRIC": "the same where only the first K characters of each text are shown (`data.characters`)",
    "test/TYPE/f1": "the same, for spans of one type, or for one of several labels",
    "test/TYPE/precision": "the same, for spans of one type, or for one of several labels",
    "test/TYPE/recall": "the same, for spans of one type, or for one of several labels",
    "test/TYPE/support": "how many spans of a type there are, or texts with a label",
    "baseline/majority": "score of always predicting the most frequent training label",
    "baseline/bag_of_words": "score of logistic regression on a bag of words",
    "baseline/hypothesis_only": "the same on the second text of each pair alone",
    "baseline/training_spans": "span F1 of a list of the training part's spans",
    "baseline/most_frequent_tag": "accuracy of each word's most frequent training tag",
    "baseline/closest_sentence": "F1 of the sentence of the text that has the most words of the question",
    "baseline/word_overlap": "correlation of the share of common words",
    "baseline/copy": "BLEU of the source text itself",
    "baseline/nearest_sentence": "BLEU of the target of the training source that is most like the source",
    "baseline/mean/mse": "squared error of always predicting the mean training label",
    "baseline/mean": "the same, where the squared error is the metric of the task (choose_by: mse)",
    # labels that pretraining saves (make worth)
    "metric": "the metric that both arms are compared by",
    "seeds": "runs of each number of labels",
    "labels/ROWS/full": "mean score of pretrained weights with so many labels",
    "labels/ROWS/scratch": "the same of fresh weights",
    "labels/ROWS/ARM_deviation": "standard deviation over seeds",
    "labels/ROWS/baseline": "mean score of the best baseline with so many labels",
    "labels/ROWS/needed": "labels with which fresh weights score as pretrained ones; null: more than were tried",
    "labels/ROWS/needed_low": "lower bound of its 95 % interval",
    "labels/ROWS/needed_high": "upper bound of its 95 % interval; null: more than were tried",
    "worth": "`needed` less `worth_at`: the labels that pretraining is worth; null: more than were tried",
    "worth_at": "the number of labels that `worth` is said of; neither is there where the runs leave it open",
    # zero-shot and few-shot
    "zeroshot/rows": "rows that were prompted",
    "zeroshot/accuracy": "accuracy by the summed log-likelihood, mean of the templates",
    "zeroshot/accuracy_min": "accuracy of the worst template",
    "zeroshot/accuracy_max": "accuracy of the best template",
    "zeroshot/accuracy_RULE": "accuracy by another scoring rule: `per_token`, `per_character` (`acc_norm`), "
    "`per_byte`, `pmi` (domain-conditional PMI), `calibrated`",
    "zeroshot/standard_error": "standard error of the accuracy from the number of rows",
    "zeroshot/chance": "accuracy of guessing",
    "zeroshot/majority": "accuracy of the most frequent label",
    "zeroshot/chosen_N": "share of the rows for which candidate N is chosen, from 0, in the order of the YAML file",
    "zeroshot/ties": "rows whose best candidates score the same",
    "zeroshot/cut": "rows with a text that was cut on the left",
    "zeroshot/unknown_words": "rows with words that are unknown to the tokenizer",
    "zeroshot/perplexity": "perplexity of the last word (prompts of shape `last_word`)",
    "zeroshot/template_N/KEY": "a key of one template, in the order of the YAML file",
    "zeroshot/shots_K/KEY": "a key with K solved examples in front",
    "published/MODEL": "zero-shot: accuracy that others have published of a model for the same rows (BLiMP)",
    "published/MODEL/COLUMN/VALUE": "the same, by group",
    "zeroshot/COLUMN/VALUE": "accuracy by group, for tasks that name one (BLiMP: its phenomena)",
}


ANY = {"PART": "(?:val|test)", "KEY": ".+", "VALUE": ".+"}  # every other word in capitals: a name without a slash


def meaning(key: str) -> str | None:
    """What a key of `metrics.json` means; None where that is not written here."""
    for name, text in METRIC_NAMES.items():
        pattern = re.sub("[A-Z]{2,}|(?<=_)[A-Z]\\b", lambda word: ANY.get(word[0], "[^/]+"), name)
        if re.fullmatch(pattern, key):
            return text
    return None


def baselines_of(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The baselines in the metric of the task, as baseline/NAME; one in another metric has a second slash."""
    return {name: value for name, value in metrics.items() if re.fullmatch(r"baseline/[^/]+", name)}


def readable(name: str) -> str:
    """A metric's or baseline's name in words: `baseline/bag_of_words` is `bag of words`."""
    words = name.rpartition("/")[2].split("_")
    abbreviations = {"mlm": "MLM", "nsp": "NSP", "lm": "LM", "f1": "F1", "mse": "squared error", "chrf": "chrF"}
    abbreviations |= {name.lower(): name for name in ("Pearson", "Spearman", "Matthews", "BLEU")}
    return " ".join(abbreviations.get(word, word) for word in words)
