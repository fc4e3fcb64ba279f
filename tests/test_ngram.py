"""N-gram models: equal to nltk's, sums, samples, ARPA by an independent reader, refusals."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from nltk.lm import NgramCounter, Vocabulary
from nltk.lm.models import AbsoluteDiscountingInterpolated, KneserNeyInterpolated, Lidstone, WittenBellInterpolated
from nltk.util import everygrams

import pipeline
from pipeline.errors import UserError
from pipeline.interop import arpa
from pipeline.models.generation import Search, choose
from pipeline.models.layers.ngram_counts import Probabilities, Smoothing, count, stream_of
from pipeline.models.ngram import Ngram
from pipeline.tokenization.whole_words import WholeWords
from pipeline.training import counting
from tests.conformance import flags, pretraining
from tests.conftest import figures, run

V, END = 9, 0  # the last one is in no text, as nltk's unknown word
TEXT = np.random.default_rng(0).choice(np.arange(1, V - 1), 400, p=np.arange(1, V - 1) / 28)
ORDER = 3
IRSTLM = Path("/usr/lib/irstlm/bin/compile-lm")  # of Debian


def counted(smoothing: Smoothing, *, order: int = ORDER, **options: Any) -> Probabilities:
    """A model of `TEXT`."""
    stream = stream_of(TEXT, np.array([0, len(TEXT)]), END)
    levels = count(stream, order=order, vocab_size=V, end=END, neighbors="kneser-ney" in smoothing)
    return Probabilities(levels, smoothing, V, **{"k": 1.0, "discount": None, **options})


def nltk_model(kind: Callable[..., Any], lowest: Callable[[Any, int], tuple[float, float]] | None = None) -> Any:
    """A model of nltk of `TEXT` as our stream has it; `lowest`: share and rest of a unigram, since nltk's end there."""
    padded = [END, *TEXT.tolist(), END]
    ngrams = list(everygrams(padded, max_len=ORDER))
    ngrams.remove((END,))  # the first one is no event
    counter = NgramCounter([ngrams])
    model = kind(vocabulary=Vocabulary([*TEXT.tolist(), END]), counter=counter)
    if lowest is not None:
        model.estimator.unigram_score = lambda word: (lambda own, rest: own + rest / V)(*lowest(model.estimator, word))
    return model


def of_witten_bell(estimator: Any, word: int) -> tuple[float, float]:
    unigrams = estimator.counts.unigrams
    whole = unigrams.N() + unigrams.B()
    return unigrams[word] / whole, unigrams.B() / whole


def of_absolute(estimator: Any, word: int) -> tuple[float, float]:
    unigrams, d = estimator.counts.unigrams, estimator.discount
    return max(unigrams[word] - d, 0) / unigrams.N(), d * unigrams.B() / unigrams.N()


def of_kneser_ney(estimator: Any, word: int) -> tuple[float, float]:
    after, total = estimator._continuation_counts(word)
    d = estimator.discount
    return max(after - d, 0) / total, d * estimator.counts.unigrams.B() / total


PAIRS: dict[str, tuple[Any, Any]] = {
    "laplace": (counted("add-k"), nltk_model(lambda **options: Lidstone(1, ORDER, **options))),
    "lidstone": (counted("add-k", k=0.3), nltk_model(lambda **options: Lidstone(0.3, ORDER, **options))),
    "witten-bell": (
        counted("witten-bell"),
        nltk_model(lambda **options: WittenBellInterpolated(ORDER, **options), of_witten_bell),
    ),
    "absolute-discounting": (
        counted("absolute-discounting", discount=0.75),
        nltk_model(lambda **options: AbsoluteDiscountingInterpolated(ORDER, **options), of_absolute),
    ),
    "kneser-ney": (
        counted("kneser-ney", discount=0.1),
        nltk_model(lambda **options: KneserNeyInterpolated(ORDER, **options), of_kneser_ney),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_probabilities_are_those_of_nltk(name: str) -> None:
    """Of every token after every history of 0, 1 and 2 tokens that does not begin the text."""
    ours, theirs = PAIRS[name]
    histories = [h for length in range(ORDER) for h in itertools.product(range(1, V), repeat=length)]
    padded = np.array([[-1] * (ORDER - 1 - len(h)) + list(h) for h in histories])
    found = ours.distributions(padded)
    for row, history in enumerate(histories):
        expected = [theirs.unmasked_score(word, history) for word in range(V)]
        np.testing.assert_allclose(found[row], expected, rtol=0, atol=1e-9)
        single = ours.of(np.repeat(padded[row : row + 1], V, 0), np.arange(V))
        np.testing.assert_allclose(single, found[row], rtol=0, atol=1e-15)


def test_modified_discounts_are_those_of_the_paper() -> None:
    """Chen and Goodman (1998), section 3: of the highest order, from its counts of counts."""
    grams = Counter(everygrams([END, *TEXT.tolist(), END], min_len=2, max_len=2))
    n = Counter(grams.values())
    y = n[1] / (n[1] + 2 * n[2])
    expected = [0, 1 - 2 * y * n[2] / n[1], 2 - 3 * y * n[3] / n[2], 3 - 4 * y * n[4] / n[3]]
    if min(expected[1:]) <= 0:
        expected = [0, 0.5, 1.0, 1.5]
    np.testing.assert_allclose(counted("modified-kneser-ney", order=2).levels[-1].discount, expected)


@pytest.mark.parametrize("smoothing", get_args(Smoothing))
@pytest.mark.parametrize("order", [1, 2, 7])
def test_every_distribution_sums_to_one(smoothing: Smoothing, order: int) -> None:
    texts = [np.random.default_rng(i).integers(1, V - 1, 1 + 3 * i) for i in range(20)]
    stream = stream_of(np.concatenate(texts), np.cumsum([0, *map(len, texts)]), END)
    levels = count(stream, order=order, vocab_size=V, end=END, neighbors="kneser-ney" in smoothing)
    model = Probabilities(levels, smoothing, V, k=0.5, discount=None)
    history = np.random.default_rng(0).integers(0, V, (200, max(1, order - 1)))
    for row, begin in zip(history, itertools.cycle(range(order)), strict=False):
        row[: max(0, begin)] = -1
    p = model.distributions(history)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)
    assert (p > 0).all() == (smoothing != "mle")


# ---------------------------------------------------------------------- models of the sample


@pytest.fixture(scope="module")
def encoder(toys: Callable[[str], Path]) -> Ngram:
    """Of the toy run; never changed."""
    return pipeline.encoders.load(toys("ngram") / "encoder")  # type: ignore[return-value]


def test_samples_have_the_frequencies_of_the_model(encoder: Ngram) -> None:
    """Pearson's chi-squared of what is drawn behind three histories; and texts end."""
    end, generator = encoder.tokenizer.id("eos"), torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"tokens": 40, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    texts = [encoder.generate([end], seed=seed, **options) for seed in range(8)]
    assert 0 < sum(len(text) < 40 for text in texts) < 8, "some end by themselves"
    text = max(texts, key=len)
    for history in ([-1, end], [end, text[0]], text[:2]):
        logits = encoder.logits(torch.tensor(history)).float()
        drawn = [choose(logits[None], Search(temperature=1.0), [generator])[0] for _ in range(2000)]
        observed, tokens = np.bincount(drawn, minlength=len(logits)), torch.arange(len(logits))
        p = encoder.token_log_probs(torch.tensor(history).expand(len(logits), -1), tokens).exp().numpy()
        expected = p * len(drawn)
        common = expected >= 5
        cells = [*zip(observed[common], expected[common], strict=True)]
        cells.append((observed[~common].sum(), expected[~common].sum()))
        freedom = len(cells) - 1
        assert freedom > 0
        assert sum((o - e) ** 2 / e for o, e in cells) < freedom + 4.5 * (2 * freedom) ** 0.5


def read_arpa(file: Path) -> dict[tuple[str, ...], tuple[float, float]]:
    """An ARPA file as words -> log10 of probability and of what is left to shorter contexts."""
    lines = gzip.decompress(file.read_bytes()).decode().split("\n")
    assert lines[0] == "\\data\\"
    assert lines[-2] == "\\end\\"
    promised = dict(line.removeprefix("ngram ").split("=") for line in lines if line.startswith("ngram "))
    found: dict[tuple[str, ...], tuple[float, float]] = {}
    for line in lines:
        if "\t" in line:
            cost, words, *rest = line.split("\t")
            found[tuple(words.split(" "))] = (float(cost), float(rest[0]) if rest else 0.0)
    for order, number in promised.items():
        assert sum(len(words) == int(order) for words in found) == int(number)
    return found


def back_off(model: dict[tuple[str, ...], tuple[float, float]], words: tuple[str, ...]) -> float:
    """log10 of the last word's probability, by the definition of the format."""
    if words in model or len(words) == 1:
        return model[words][0]
    return model.get(words[:-1], (0.0, 0.0))[1] + back_off(model, words[1:])


@pytest.mark.parametrize("smoothing", ["witten-bell", "modified-kneser-ney"])
def test_arpa_says_the_same_to_another_reader(encoder: Ngram, smoothing: str, tmp_path: Path) -> None:
    model = Ngram(encoder.tokenizer, order=3, smoothing=smoothing, k=1.0, discount=None, max_length=48)  # type: ignore[arg-type]
    rng, end = np.random.default_rng(0), encoder.tokenizer.id("eos")
    texts = [rng.choice(np.arange(5, 40), rng.integers(1, 30)) for _ in range(50)]
    model.fit(np.concatenate(texts), np.cumsum([0, *map(len, texts)]))
    arpa.write(model, tmp_path / "model.arpa.gz")
    read = read_arpa(tmp_path / "model.arpa.gz")
    words = [arpa.word(model.tokenizer.backend.id_to_token(i)) for i in range(len(model.tokenizer))]
    histories = [[-1, end], *([end, int(i)] for i in rng.integers(5, 45, 20)), *rng.integers(5, 45, (40, 2)).tolist()]
    log_probs = model.logits(torch.tensor(histories)).numpy() / np.log(10)
    for history, row in zip(histories, log_probs, strict=True):
        context = tuple(arpa.BEGIN if i == end else words[i] for i in history if i >= 0)
        for token in range(0, 60):
            said = back_off(read, (*context, arpa.END if token == end else words[token]))
            assert said == pytest.approx(row[token], abs=1e-5)


@pytest.mark.skipif(not IRSTLM.exists(), reason="IRSTLM is not installed")
@pytest.mark.parametrize("smoothing", ["witten-bell", "modified-kneser-ney"])
def test_irstlm_reads_arpa(encoder: Ngram, smoothing: str, tmp_path: Path) -> None:
    """The perplexity that a program of others gives to each text: to 1e-4 of log10 a token, beside its rounding."""
    model = Ngram(encoder.tokenizer, order=4, smoothing=smoothing, k=1.0, discount=None, max_length=48)  # type: ignore[arg-type]
    rng, end = np.random.default_rng(0), encoder.tokenizer.id("eos")
    texts = [rng.choice(np.arange(5, 40), rng.integers(1, 30)) for _ in range(50)]
    model.fit(np.concatenate(texts), np.cumsum([0, *map(len, texts)]))
    arpa.write(model, tmp_path / "model.arpa.gz")
    (tmp_path / "model.arpa").write_bytes(gzip.decompress((tmp_path / "model.arpa.gz").read_bytes()))
    asked = [*texts[:10], *(rng.integers(5, 90, size) for size in range(1, 15))]  # some have tokens that never occurred
    words = [arpa.word(model.tokenizer.backend.id_to_token(i)) for i in range(len(model.tokenizer))]
    lines = [" ".join([arpa.BEGIN, *(words[token] for token in text), arpa.END]) for text in asked]
    (tmp_path / "texts").write_text("\n".join(lines) + "\n")
    command = [str(IRSTLM), "model.arpa", "--eval=texts", "--sentence=yes"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.findall(r"sent_Nw=(\d+) sent_PP=([\d.]+) .*sent_Noov=(\d+)", said)
    assert len(found) == len(asked)
    for text, (number, perplexity, unknown) in zip(asked, found, strict=True):
        ids = torch.tensor([[end, *text.tolist(), end]])
        scores = model.log_probs({"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)})[0, 1:]
        assert (int(number), int(unknown)) == (len(text) + 1, 0)
        exact = 1e-4 + 0.005 / float(perplexity) / np.log(10)  # it is printed to two decimals
        assert np.log10(float(perplexity)) == pytest.approx(-float(scores.mean()) / np.log(10), abs=exact)


def test_unknown_words_have_the_name_that_readers_look_for(tmp_path: Path) -> None:
    """And a word of the text that is spelled so has another."""
    words = WholeWords.train(["a <unk> b a b a"], vocab_size=8, lowercase=False)
    model = Ngram(words, order=2, smoothing="witten-bell", k=1.0, discount=None, max_length=48)
    [ids] = words.encode_plain(["a zzz <unk> b"])
    model.fit(np.array(ids), np.array([0, len(ids)]))
    arpa.write(model, tmp_path / "model.arpa.gz")
    read = read_arpa(tmp_path / "model.arpa.gz")
    unigrams = {words[0] for words in read if len(words) == 1}
    assert {"<unk>", "\\<unk>", "<s>", "</s>"} <= unigrams
    log_probs = model.logits(torch.tensor([[-1]])).numpy()[0] / np.log(10)
    assert read[("<unk>",)][0] == pytest.approx(log_probs[words.id("unk")], abs=1e-5)


def test_words_of_arpa_have_no_spaces() -> None:
    assert [arpa.word(token) for token in ("a b", "<s>", "\u00a0", "Ġthe")] == ["a\\u0020b", "\\<s>", "\\u00a0", "Ġthe"]


# ---------------------------------------------------------------------- runs


def test_a_run_that_counts_is_a_run(toys: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = toys("ngram")
    stored = pipeline.encoders.load(folder / "encoder").config["ngrams"]
    assert sum(stored[1:]) < figures(folder)["parameters"] <= sum(stored)
    assert len(read_arpa(folder / "model.arpa.gz")) == sum(stored) + 1  # the end of text is two words
    assert not (folder / "curves.png").exists()
    assert not (folder / "checkpoints").exists()
    assert len((folder / "metrics.csv").read_text().splitlines()) == 2
    before = (folder / "metrics.json").stat().st_mtime_ns
    run("pretrain", "--out", str(folder), "--resume", *pretraining("ngram"))
    assert "is finished: nothing left to do" in capsys.readouterr().out
    assert (folder / "metrics.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("text", ["sun", "red sun"])
def test_texts_that_are_shorter_than_the_order_are_counted(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "short.jsonl"
    file.write_text(f"{json.dumps({'text': text})}\n" * 300)
    flags = ["--model", "ngram", "--corpus", str(file)]
    run("pretrain", *flags, "--out", str(tmp_path / "run"), "--data.tokenizer.scheme=whole-words")
    encoder = pipeline.encoders.load(tmp_path / "run/encoder")
    assert len(encoder.config["ngrams"]) == len(text.split()) + 2  # with the end of text on both sides
    run("evaluate", *flags, "--from", str(tmp_path / "run/encoder"))
    assert "bits_per_byte" in capsys.readouterr().out


def test_what_a_counting_run_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ["pretrain", "--out", str(tmp_path / "run")]
    for setting, said in (
        ("model.encoder.init_args.order=0", "it must be at least 1"),
        ("model.encoder.init_args.order=8", "it must be 1 to 7"),
        ("model.encoder.init_args.smoothing=katz", "modified-kneser-ney"),
        ("trainer.devices=2", "one process"),
        (
            "model.encoder.init_args.discount=0.5",
            "discount is of absolute-discounting and kneser-ney, and .* is modified-",
        ),
        ("model.encoder.init_args.k=0.5", "k is of add-k, and"),
    ):
        with pytest.raises(UserError, match=said):
            run(*place, *flags("ngram", setting))
    with pytest.raises(UserError, match=r"model\.optimization"):
        run(*place, *flags("ngram"), "--model.optimization.learning_rate=1")
    with pytest.raises(UserError, match=r"trainer\.max_steps has no effect: ngram counts"):
        run(*place, *flags("ngram"), "--steps", "5")
    monkeypatch.setattr(counting, "memory", lambda: 4e6)
    with pytest.raises(UserError, match="order 1 fits"):
        run(*place, *flags("ngram"))
    for command in ("verify-resume", "profile"):
        with pytest.raises(UserError, match="no steps"):
            run(command, "--out", str(tmp_path / "other"), *flags("ngram"))
    assert not (tmp_path / "run").exists()


def test_without_smoothing_an_unseen_ngram_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unsmoothed = flags("ngram", "model.encoder.init_args.smoothing=mle")
    run("pretrain", "--out", str(tmp_path / "run"), *unsmoothed)
    assert "costs infinitely many bits" in capsys.readouterr().err
    assert "val/loss" not in json.loads((tmp_path / "run/metrics.json").read_text())
    with pytest.raises(UserError, match="infinitely many bits"):
        run("evaluate", "--from", str(tmp_path / "run/encoder"), "--model", "ngram", "--data.sample_documents=300")
    encoder = pipeline.encoders.load(tmp_path / "run/encoder")
    with pytest.raises(UserError, match="probability 0"):
        pipeline.prompting.log_likelihoods(encoder, [("The soup", " zzzz")])
