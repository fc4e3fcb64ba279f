"""Whole words: the vocabulary, what unknown words cost, and a run with them."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from pipeline.data import store_builder
from pipeline.data.documents import Source
from pipeline.errors import UserError
from pipeline.models.fflm import FeedForward
from pipeline.objectives.causal_lm import CausalLM
from pipeline.tokenization import registry
from pipeline.tokenization.byte_bpe import END_OF_TEXT
from pipeline.tokenization.whole_words import WholeWords
from tests.conftest import run

TEXTS = ["a robin sat , a robin sang", "Robin sat in the garden ."]


def test_words_are_split_at_spaces_and_rare_ones_are_unknown(tmp_path: Path) -> None:
    tokenizer = registry.train("whole-words", TEXTS, vocab_size=100, lowercase=False, min_frequency=2)
    assert set(tokenizer.backend.get_vocab()) == {END_OF_TEXT, "[UNK]", "a", "robin", "sat"}
    [ids] = tokenizer.encode_plain(["a  robin\tsat.  [UNK] sat"])
    unknown = tokenizer.id("unk")
    assert [index == unknown for index in ids] == [False, False, True, True, False]
    assert tokenizer.decode([*ids[:3], tokenizer.id("eos")]) == " a robin [UNK]"
    tokenizer.save(tmp_path, max_length=8)
    again = registry.load(tmp_path)
    assert isinstance(again, WholeWords)
    assert (again.hash, again.special) == (tokenizer.hash, tokenizer.special)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("a robin sings").input_ids == tokenizer.encode_batch(["a robin sings"])[0]
    assert tokenizer.reads_as(again)
    again.save_with_ends(tmp_path, begin=[0], between=[0], end=[0])  # as a fine-tuned model does, for transformers
    assert registry.load(tmp_path).reads_as(tokenizer)
    assert not registry.train("whole-words", TEXTS, vocab_size=100, lowercase=False).reads_as(tokenizer)
    folded = registry.train("whole-words", ["Ärger ärger arger"], vocab_size=100, lowercase=True)
    assert len(folded) == 3


def test_a_word_spelled_as_a_special_token_is_unknown(tmp_path: Path) -> None:
    text = f"a robin {END_OF_TEXT} sat [UNK] a"
    tokenizer = registry.train("whole-words", [text] * 2, vocab_size=100, lowercase=False)
    assert tokenizer.backend.get_vocab() == {END_OF_TEXT: 0, "[UNK]": 1, "a": 2, "robin": 3, "sat": 4}
    (tmp_path / "text.txt").write_text(f"{text}\n")
    store = store_builder.build(Source(files=[tmp_path / "text.txt"]), tokenizer, tmp_path / "stores")
    assert store.tokens.tolist() == [2, 3, 1, 4, 1, 2]  # no end of text within a document
    assert tokenizer.encode_batch([text])[0][2] == 0  # a prompt may have one


def test_only_whole_words_have_a_least_frequency() -> None:
    with pytest.raises(UserError, match="min_frequency is for scheme whole-words"):
        registry.train("bpe", TEXTS, vocab_size=300, lowercase=False, min_frequency=2)
    for count, message in ((0, "at least 1"), (99, "No word is left")):
        with pytest.raises(UserError, match=message):
            registry.train("whole-words", TEXTS, vocab_size=300, lowercase=False, min_frequency=count)


def test_an_unknown_word_costs_its_spelling(tmp_path: Path) -> None:
    tokenizer = registry.train("whole-words", TEXTS, vocab_size=100, lowercase=False, min_frequency=2)
    known = "arobinsat"  # the vocabulary, of three words; every byte has one count more than that
    counts, total = Counter(known.encode()), len(known) + 3 + 257

    def nats(word: str) -> float:
        return -sum(math.log((counts[byte] + 1) / total) for byte in word.encode()) - math.log((3 + 1) / total)

    text = "a robin sings Ärger"
    expected = nats("sings") + nats("Ärger")
    assert tokenizer.unknown_nats(text, tokenizer.encode_plain([text])[0]) == pytest.approx(expected)
    (tmp_path / "text.txt").write_text(f"{text}\n")
    store = store_builder.build(Source(files=[tmp_path / "text.txt"]), tokenizer, tmp_path / "stores")
    assert store.unknown_nats == pytest.approx(expected / 2)

    objective = CausalLM()
    rows = objective.rows(store, tokenizer, length=8, phase=0, seed=0)
    batch = objective.batch(rows, np.arange(1), tokenizer, rng=np.random.default_rng(0))
    sizes = {"order": 3, "embedding_size": 4, "hidden_size": 4, "max_length": 8, "dropout": 0.0}
    loss = objective(FeedForward(tokenizer, **sizes), batch)["lm"]
    assert float(loss.spelling) == pytest.approx(expected)
    report = objective.report({"lm_loss": 2.0, "lm_spelling": 1.0}, per_byte=0.3)
    assert report == {"perplexity": pytest.approx(math.exp(2)), "bits_per_byte": pytest.approx(0.9 / math.log(2))}


def test_what_bits_per_byte_leave_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("A robin sat .\nA robin sang .\n\n" * 200)
    flags = ["--model=ngram", f"--corpus={tmp_path}/text.txt", "--data.tokenizer.scheme=whole-words"]
    for lowercase in (False, True):
        run("data", *flags, f"--data.tokenizer.lowercase={lowercase}")
        said = "case and accents are dropped; bits per byte leave out what they would cost" in capsys.readouterr().out
        assert said == lowercase
