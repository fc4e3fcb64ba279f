"""Translation: parallel files through the public commands, its metrics, and its model in transformers."""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import sacrebleu
import torch
import torch.nn.functional as F
import transformers
import yaml

import pipeline
from pipeline.data import labeled
from pipeline.data.synthetic.corpus import lexicon
from pipeline.data.synthetic.tasks import invented, part, synthetic_rows, translated
from pipeline.errors import UserError
from pipeline.finetuning.heads import translation
from pipeline.finetuning.heads.translation import longest
from pipeline.inspection.decoding import Way, searched, with_right_words
from pipeline.models.generation import Search
from pipeline.models.losses import linear_cross_entropy
from pipeline.presets.tasks import task_file
from pipeline.training.schedules import rate_at
from tasks.base import Example
from tasks.errors import TaskError
from tasks.translation import Translation, nearest_texts, score
from tests.conftest import figures, run

pytestmark = pytest.mark.slow
WORDS = {"cat": "katze", "dog": "hund", "house": "haus", "river": "fluss", "book": "buch", "red": "rot", "old": "alt"}
SIZES = "size=48 layers=1 heads=2 inner_size=96 max_length=32"
SMALL = [*(f"--model.encoder.init_args.{size}" for size in SIZES.split()), "--model.tokenizer.vocab_size=300"]
SMALL += ["--precision=32-true", "--validations=2", "--batch-size=32", "--model.recipe.dropout=0"]


def sentence(rng: random.Random) -> list[str]:
    return rng.sample(sorted(WORDS), rng.randint(2, 4))


def write_pairs(folder: Path, sizes: dict[str, int]) -> None:
    """Word by word, in the other order."""
    rng = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in sizes.items():
        rows = [sentence(rng) for _ in range(count)]
        (folder / f"{name}.en").write_text("".join(f"{' '.join(row)}\n" for row in rows))
        lines = "".join(f"{' '.join(WORDS[word] for word in reversed(row))}\n" for row in rows)
        (folder / f"{name}.de.gz").write_bytes(gzip.compress(lines.encode()))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder, {"train": 800, "val": 32, "test_2016_flickr": 48})
    return folder


def finetune(pairs: Path, out: Path, *more: str, model: str = "transformer") -> None:
    run("finetune", "--model", model, "--task", "multi30k", "--data", str(pairs), "--out", str(out), *more)


@pytest.fixture(scope="module")
def translator(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Transformer of the paper's kind from fresh weights, without any encoder folder."""
    out = tmp_path_factory.mktemp("translator") / "run"
    post = ["--model.encoder.init_args.norm=post", "--epochs=9", "--learning-rate=5e-3"]
    finetune(pairs, out, "--arm=scratch", *SMALL, *post)
    return out


def lines_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_it_learns_to_translate(translator: Path, pairs: Path) -> None:
    rows, end = lines_of(translator / "predictions.jsonl"), figures(translator)
    assert [row["source"] for row in rows] == (pairs / "test_2016_flickr.en").read_text().splitlines()
    outputs, references = [row["output"] for row in rows], [row["reference"] for row in rows]
    expected = sacrebleu.corpus_bleu(outputs, [references], force=True)
    assert end["test/bleu"] == pytest.approx(expected.score)
    assert end["test/chrf"] == pytest.approx(sacrebleu.corpus_chrf(outputs, [references]).score)
    assert end["test/bleu_signature"].startswith("nrefs:1|case:mixed")
    assert end["test/bleu_lowercase_signature"].startswith("nrefs:1|case:lc")
    assert end["test/bleu"] > 60 > end["baseline/copy"]
    assert end["test/bleu"] > end["baseline/nearest_sentence"]
    assert {"alignment.png", "curves.png"} <= {file.name for file in translator.iterdir()}


def test_the_model_translates_lines(translator: Path, tmp_path: Path) -> None:
    rows = lines_of(translator / "predictions.jsonl")
    (tmp_path / "in.txt").write_text("".join(f"{row['source']}\n" for row in rows))
    files = ["--data", str(tmp_path / "in.txt"), "--out", str(tmp_path / "out.jsonl")]
    run("predict", "--from", str(translator / "model"), *files)
    assert [row["translation"] for row in lines_of(tmp_path / "out.jsonl")] == [row["output"] for row in rows]


@pytest.mark.parametrize("beam", [1, 3])
def test_a_translation_does_not_depend_on_what_is_translated_beside_it(
    translator: Path, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = pipeline.load(translator / "model")
    logits, end = model.encoder.logits, torch.tensor([model.encoder.tokenizer.id("eos")])
    monkeypatch.setattr(model.encoder, "logits", lambda hidden: logits(hidden).index_fill(-1, end, -99.0))
    model.options.beam = beam
    monkeypatch.setattr(translation, "longest", lambda size: 2 * size + 10)  # below the positions of so small a model
    texts = ["cat dog", "the", "", "old red house river book cat dog " * 3]
    alone = [model.predict([text])[0]["translation"] for text in texts]
    assert [answer["translation"] for answer in model.predict(texts)] == alone
    lengths = [len(ids) for ids in model.encoder.tokenizer.encode_batch(alone)]
    assert len({*lengths}) > 2  # each ended at a limit of its own
    assert min(lengths) > 10


def test_the_model_opens_in_transformers(translator: Path) -> None:
    folder = translator / "model"
    theirs = opened(folder, transformers.MarianMTModel)
    assert translated_by(theirs, folder, "red house", beam=5) == pipeline.load(folder).predict(["red house"])
    assert "pipeline_tag: translation" in (folder / "README.md").read_text()


def opened(folder: Path, kind: type[transformers.PreTrainedModel]) -> transformers.PreTrainedModel:
    """The folder in a class of transformers, all its tensors and no others."""
    theirs, loading = kind.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    return theirs


def translated_by(theirs: transformers.PreTrainedModel, folder: Path, text: str, *, beam: int) -> list[dict]:
    """What transformers' own beam search gives, as our `predict` gives it."""
    source = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    inputs = {name: source[name] for name in ("input_ids", "attention_mask")}
    most = min(longest(inputs["input_ids"].shape[1]), theirs.config.max_position_embeddings)
    written = theirs.generate(
        **inputs, num_beams=beam, max_new_tokens=most, length_penalty=1.0, forced_bos_token_id=None
    )
    torch.testing.assert_close(theirs.generate(**inputs, max_new_tokens=most), written)  # generation_config.json
    text = transformers.AutoTokenizer.from_pretrained(folder).decode(written[0], skip_special_tokens=True)
    return [{"translation": text.strip()}]


def test_decoding_in_several_ways(translator: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "decoding.json"
    run("decoding", "--from", str(translator), "--beams", "5")
    shown = capsys.readouterr().out
    assert f"| beam 5, length penalty 1 | {figures(translator)['test/bleu']:.2f} |" in shown
    run("decoding", "--from", str(translator), "--beams", "1,5", "--length-penalty", "0", "--out", str(out))
    found = json.loads(out.read_text())
    assert list(found) == ["right words given", "greedy", "beam 5, length penalty 0"]
    assert found["beam 5, length penalty 0"]["nats"] >= found["greedy"]["nats"] > found["right words given"]["nats"]
    model, sources = (
        pipeline.load(translator / "model"),
        [row["source"] for row in lines_of(translator / "predictions.jsonl")],
    )
    greedy = searched(model, sources, Way(1))
    assert with_right_words(model, sources, greedy) == greedy  # after its own words a greedy search goes on as it did
    for folder, problem in ((tmp_path, "holds no finished run"), (tmp_path / "none", "holds no finished run")):
        with pytest.raises(UserError, match=problem):
            run("decoding", "--from", str(folder))


def test_a_task_in_the_other_direction_is_not_scored(translator: Path, pairs: Path, tmp_path: Path) -> None:
    task = yaml.safe_load(task_file("multi30k").read_text())
    task["data"]["task"]["init_args"]["columns"] = {"source": "de", "target": "en"}
    (tmp_path / "back.yaml").write_text(yaml.safe_dump(task))
    with pytest.raises(UserError, match="The model translates en into de, and the task de into en"):
        run("score", "--from", str(translator), "--task", str(tmp_path / "back.yaml"), "--data", str(pairs))
    run("score", "--from", str(translator), "--task", "multi30k", "--data", str(pairs))


def test_the_same_command_gives_the_same_model(pairs: Path, tmp_path: Path) -> None:
    """Its tokenizer too, which is trained each time."""
    more = ["--arm=scratch", *SMALL, "--epochs=0.2"]
    finetune(pairs, tmp_path / "one", *more)
    finetune(pairs, tmp_path / "two", *more)
    for name in ("model/model.safetensors", "model/tokenizer.json", "predictions.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_recurrent_model_with_and_without_attention(pairs: Path, tmp_path: Path) -> None:
    sizes = ["--model.encoder.init_args.size=32", "--model.encoder.init_args.embedding_size=16", *SMALL[-4:]]
    for attention in ("additive", "none"):
        out = tmp_path / attention
        setting = f"--model.encoder.init_args.attention={attention}"
        finetune(pairs, out, "--arm=scratch", setting, *sizes, "--epochs=0.2", model="rnn-seq2seq")
        assert (out / "alignment.png").exists() == (attention == "additive")
        moments = torch.load(out / "checkpoints/last.ckpt", weights_only=True)["optimizer_states"][0]["state"]
        assert len(moments) == len(list(pipeline.load(out / "model").parameters()))  # the output layer's too


@pytest.mark.parametrize("task", ["multi30k", "sentiment"])
def test_fresh_weights_in_the_sizes_of_a_folder_are_saved_whole(
    translator: Path, pairs: Path, tmp_path: Path, task: str
) -> None:
    """Also the decoder, which a classifier does not read; blocks that it does not read have no part in its rates."""
    data = ["--data", str(pairs)] if task == "multi30k" else []
    more = ["--precision=32-true", "--validations=1", "--epochs=0.2", "--model.optimization.layer_decay=0.5"]
    where = ["--from", str(translator / "model"), "--out", str(tmp_path / "run"), "--arm=scratch"]
    run("finetune", "--model", "transformer", "--task", task, *where, *data, *more, "--learning-rate=1e-3")
    row = next(row for row in lines_of(tmp_path / "run/predictions.jsonl") if row.get("output") != "")
    [found] = pipeline.load(tmp_path / "run/model").predict([row["source" if task == "multi30k" else "text"]])
    if task == "multi30k":  # of an untrained model, which ends at the longest that its batch may have
        assert row["output"].startswith(found["translation"][:8])
    else:
        assert found["probabilities"] == pytest.approx(row["probabilities"], abs=1e-4)
    groups = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["optimizer_states"][0]
    rates = {1e-3, 5e-4, 2.5e-4} if task == "multi30k" else {1e-3, 5e-4}  # head and top block, embeddings
    assert {group["initial_lr"] for group in groups["param_groups"]} == rates


def test_targets_that_are_cut_are_counted(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--model.encoder.init_args.max_length=8", "--model.tokenizer.vocab_size=270", "--epochs=0.1"]
    finetune(pairs, tmp_path / "run", "--arm=scratch", *SMALL, *short)
    assert re.search(
        r"train 800 rows \(([\d,]+ cut to 8 tokens, )?[\d,]+ targets cut to 8 tok", capsys.readouterr().out
    )


def test_any_task_from_fresh_weights_needs_no_folder(tmp_path: Path) -> None:
    sizes = [f"--model.encoder.init_args.{size}" for size in ["size=32", "layers=1", "heads=2", "inner_size=64"]]
    more = ["--model.tokenizer.vocab_size=300", "--epochs=0.2", "--precision=32-true", "--validations=1"]
    run("finetune", "--arm=scratch", "--task=tagging", "--out", str(tmp_path / "tagging"), *sizes, *more)
    assert figures(tmp_path / "tagging")["test/rows"] == 500
    run("finetune", "--arm=scratch", "--seeds=2", "--task=sentiment", "--out", str(tmp_path / "seeds"), *sizes, *more)
    assert [row["arm"] for row in csv.DictReader((tmp_path / "seeds/compare.csv").open())] == ["scratch", "scratch"]
    with pytest.raises(UserError, match="runs/pretrain/bert/encoder"):  # the arm that needs one
        run("finetune", "--task=sentiment")


def test_fresh_weights_know_the_languages_of_the_task(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run("finetune", "--model=mbart", "--task=translation", "--arm=scratch", "--out", str(out), *SMALL, "--epochs=0.02")
    tokenizer = pipeline.load(out / "model").encoder.tokenizer
    assert {"<en>", "<de>", "<ne>"} <= set(tokenizer.languages)  # those of its configuration, and the task's
    with pytest.raises(UserError, match="the texts of a task do not"):
        run("pretrain", "--model=mbart", "--corpus=task:sentiment", "--out", str(tmp_path / "pretrained"))


def test_an_encoder_folder_is_fine_tuned(
    toys: Callable[[str], Path], pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beams: list[int] = []
    monkeypatch.setattr(translation, "Search", lambda **how: beams.append(how.get("beam", 1)) or Search(**how))
    more = ["--precision=32-true", "--validations=1", "--epochs=0.2", "--data.task.init_args.beam=2"]
    finetune(pairs, tmp_path / "out", "--from", str(toys("bart") / "encoder"), *more, model="bart")
    assert figures(tmp_path / "out")["test/rows"] == 48
    assert beams[:2] == [1, 2]  # greedy in the validation, then beam search in the test
    assert "loaded" in (tmp_path / "out" / "load_report.txt").read_text()
    folder = tmp_path / "out/model"
    theirs = opened(folder, transformers.BartForConditionalGeneration)
    assert translated_by(theirs, folder, "red house", beam=2) == pipeline.load(folder).predict(["red house"])


# ---------------------------------------------------------------------- the data


def test_empty_sides_are_left_out_and_counted(pairs: Path, tmp_path: Path) -> None:
    write_pairs(tmp_path / "p", {"train": 50, "val": 5, "test": 5})
    lines = (tmp_path / "p" / "train.en").read_text().splitlines()
    (tmp_path / "p" / "train.en").write_text("\n".join(["", "  ", *lines[2:]]) + "\n")
    found = labeled.read(Translation(columns={"source": "en", "target": "de"}), str(tmp_path / "p"))
    assert found.left_out == {"train": 2, "valid": 0, "test": 0}
    assert len(found.parts["train"].rows) == 48


def test_wrong_parallel_files(tmp_path: Path) -> None:
    folder, task = tmp_path / "p", Translation(columns={"source": "en", "target": "de"})
    write_pairs(folder, {"train": 20, "valid": 5, "test": 5})
    with (folder / "train.en").open("a") as file:
        file.write("one more\n")
    with pytest.raises(UserError, match=r"train\.en has 21 lines and .*train\.de\.gz has 20 lines"):
        labeled.read(task, str(folder))
    french = Translation(columns={"source": "en", "target": "fr"})
    with pytest.raises(UserError, match=r"train\.en and no train\.fr: its train is in de, en"):
        labeled.read(french, str(folder))
    (folder / "train.de").write_text("twice\n")
    with pytest.raises(UserError, match=r"Which file is to be read\?.*train\.de, train\.de\.gz"):
        labeled.read(task, str(folder))


def test_a_table_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("src\ttgt\n" + "".join(f"word {n} here\tWort {n} hier\n" for n in range(40)))
    found = labeled.read(Translation(), str(tmp_path / "t.tsv"))
    assert found.columns == {"source": "src", "target": "tgt"}
    [first] = [example for part in found.parts.values() for example in part.examples if example.text == "word 7 here"]
    assert first.label == "Wort 7 hier"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam": 0}, "beam is 0; it must be from 1 to 1000"),
        ({"beam": 1001}, "beam is 1001; it must be from 1 to 1000"),
        ({"length_penalty": 200.0}, "must be from -50 to 50"),
        ({"columns": {"source": "en"}}, "must name source and target"),
    ],
)
def test_wrong_settings(settings: dict, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        Translation(**settings)


def test_refusals_of_a_run(pretrained: Path, toys: Callable[[str], Path], pairs: Path) -> None:
    data = ["--task=multi30k", "--data", str(pairs)]
    with pytest.raises(UserError, match="Translation needs an encoder-decoder"):
        run("finetune", *data, "--from", str(pretrained / "encoder"))
    with pytest.raises(UserError, match="no head of its own to train"):
        run("finetune", *data, "--model=bart", "--from", str(toys("bart") / "encoder"), "--arm=frozen")
    for name in ("layers", "decoder_layers"):
        with pytest.raises(UserError, match=rf"init_args\.{name} is 0; it must be at least 1"):
            run("finetune", *data, "--model=transformer", "--arm=scratch", f"--model.encoder.init_args.{name}=0")
    with pytest.raises(UserError, match=r"lstm is for heads on an encoder's layers, and this task's head has none"):
        run("finetune", *data, "--model=transformer", "--arm=scratch", "--model.recipe.lstm=8")
    with pytest.raises(UserError, match="beam is 0"):
        run("finetune", *data, "--model=transformer", "--arm=scratch", "--data.task.init_args.beam=0")


# ---------------------------------------------------------------------- parts


def test_smoothed_loss_as_torch_has_it() -> None:
    torch.manual_seed(0)
    hidden, weight, bias = (
        torch.randn(30, 8, requires_grad=True),
        torch.randn(50, 8, requires_grad=True),
        torch.randn(50),
    )
    labels = torch.randint(50, (30,))
    ours = linear_cross_entropy(hidden, weight, labels, bias, smoothing=0.1).sum
    theirs = F.cross_entropy(hidden @ weight.T + bias, labels, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(ours, theirs)
    for mine, other in zip(
        torch.autograd.grad(ours, (hidden, weight)), torch.autograd.grad(theirs, (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_inverse_square_root_schedule() -> None:
    """5.3 of the paper: min(step^-0.5, step * warmup^-1.5), up to a constant."""
    warmup, steps = 9, range(1, 60)
    ours = [rate_at(step - 1, warmup=warmup, total=60, schedule="inverse_sqrt") for step in steps]
    paper = [min(step**-0.5, step * (warmup + 1) ** -1.5) for step in steps]
    assert ours == pytest.approx([rate * (warmup + 1) ** 0.5 for rate in paper])


def test_baselines() -> None:
    assert nearest_texts(["a red house", "two old dogs"], ["old dogs run", "the house"]) == [1, 0]
    train = [Example("a b c d", "w x y z"), Example("e f g h", "s t u v")]
    assert Translation().baselines(train, [Example("e f g h", "s t u v")] * 2)["nearest_sentence"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("reference", "output", "words"),
    [
        ("我喜欢在公园里吃苹果和香蕉。", "我喜欢在花园里吃苹果和香蕉。", "zh"),
        ("公園でりんごを食べるのが好きです。", "公園でみかんを食べるのが好きです。", "char"),
    ],
)
def test_a_script_without_spaces_has_words_too(reference: str, output: str, words: str) -> None:
    gold, predicted = [reference] * 20, [output] * 20
    scores = Translation().scores(gold, predicted)
    expected = sacrebleu.metrics.BLEU(tokenize=words).corpus_score(predicted, [gold]).score
    assert scores.figures["bleu"] == pytest.approx(expected)
    assert scores.figures["bleu"] > 50
    assert f"|tok:{words}|" in scores.details["bleu_signature"]
    assert "|tok:13a|" in Translation().scores(["a b"], ["a b"]).details["bleu_signature"]


def test_the_end_of_a_target_is_no_text_of_it(translator: Path) -> None:
    model = pipeline.load(translator / "model")
    labels, _ = model.head.collate(model.encoder, ["red</s> house"], [])
    assert labels[0].tolist().count(model.encoder.tokenizer.id("eos")) == 1
    assert model.encoder.tokenizer.decode(labels[0, :-1].tolist()).strip() == "red</s> house"


@pytest.mark.parametrize("flags", [["--beams", "2,1001"], ["--length-penalty", "51"]])
def test_decoding_refuses_what_no_search_can_do_at_once(
    translator: Path, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("pipeline.finetuning.model.load")  # which takes longer
    with pytest.raises(UserError, match="must be"):
        run("decoding", "--from", str(translator), *flags)


def test_no_score_is_above_the_bound() -> None:
    same = ["w x y z v"] * 3
    assert score("bleu", same, same) == Translation().bound  # sacrebleu's own is a little more


def test_the_language_of_the_sample() -> None:
    """Verbs last, adjectives behind their noun, names as they are."""
    sentence = [("Ana", "PROPN"), ("had", "AUX"), ("a", "DET"), ("red", "ADJ"), ("hat", "NOUN"), (".", "PUNCT")]
    words = translated(sentence)
    alone = {word: translated([(word, tag)])[0] for word, tag in sentence}
    assert words == ["Ana", alone["a"], alone["hat"], alone["red"], alone["had"], "."]
    parts = {split: {row["en"] for row in synthetic_rows("translation", split)} for split in ("train", "test")}
    assert len(parts["test"] & parts["train"]) < 0.02 * len(parts["test"])


def test_opinions_in_that_language() -> None:
    """Their words stand in translations too; parts share no word that tells the label, but for a homonym."""
    parts = {split: synthetic_rows("sentiment-translated", split) for split in ("train", "valid", "test")}
    known = {word for row in synthetic_rows("translation", "train") for word in row["ne"].split()}
    for rows in parts.values():
        words = {word for row in rows for word in row["text"].split()}
        assert len(words - known) <= 0.02 * len(words)
        assert sum(row["label"] == "positive" for row in rows) == len(rows) / 2
    minds = [lexicon()[mind] for mind in ("good", "bad")]
    assert not {*map(invented, minds[0])} & {*map(invented, minds[1])}
    telling = [{invented(word) for words in minds for word in part(words, split)} for split in parts]
    assert sum(len(one & other) for one, other in combinations(telling, 2)) <= 1
