"""BART and mBART against transformers, and the noise that they are pretrained by."""

from __future__ import annotations

import itertools
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pipeline.data import files, store_builder
from pipeline.data.documents import Source
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.finetuning.features import cut_texts
from pipeline.finetuning.heads.translation import TranslationHead
from pipeline.inspection.decoding import mean_log_probability, with_right_words
from pipeline.inspection.retrieval import text_vectors
from pipeline.models import registry
from pipeline.models.bart import Bart
from pipeline.models.encoder_decoder import set_language
from pipeline.models.generation import Search
from pipeline.models.outputs import Encoded
from pipeline.objectives.batch import Batch
from pipeline.objectives.denoising import Denoising
from pipeline.objectives.infilling import infill, permute
from pipeline.objectives.sampling import StepBatches
from pipeline.tokenization import registry as tokenizers
from pipeline.tokenization.seq2seq_bpe import Seq2SeqBpe
from tasks.errors import TaskError
from tasks.translation import Translation
from tests.test_seq2seq import SIZES, SOURCES, TARGETS

THEIRS = {
    "post": (transformers.BartConfig, transformers.BartForConditionalGeneration),
    "pre": (transformers.MBartConfig, transformers.MBartForConditionalGeneration),
}


@pytest.fixture(scope="module")
def tokenizer() -> Seq2SeqBpe:
    texts = [*SOURCES, *TARGETS] * 9
    trained = tokenizers.train("bpe-seq2seq", texts, vocab_size=300, lowercase=False, languages=["en", "de"])
    assert isinstance(trained, Seq2SeqBpe)
    return trained


def bart(tokenizer: Seq2SeqBpe, norm: str) -> Bart:
    """With random weights that are far from 0."""
    torch.manual_seed(0)
    model = Bart(tokenizer, layers=2, norm=norm, **SIZES).eval()  # type: ignore[arg-type]
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.set_languages("en", "de")
    return model


@pytest.mark.parametrize("origin", ["ours", "theirs"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_it_is_transformers_model(tokenizer: Seq2SeqBpe, tmp_path: Path, norm: str, origin: str) -> None:
    """Our folder there, or theirs here: no missing tensor, the same logits and layers, the same text."""
    make_config, kind = THEIRS[norm]
    model = bart(tokenizer, norm)
    if origin == "ours":
        model.save(tmp_path)
        other, info = kind.from_pretrained(tmp_path, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
    else:
        config = {**model.config, "decoder_layers": 1, "scale_embedding": norm == "pre", "init_std": 0.3}
        other = kind(make_config(**{name: value for name, value in config.items() if name != "architectures"}))
        other.final_logits_bias.normal_()
        other.save_pretrained(tmp_path)
        tokenizer.save(tmp_path, max_length=40)
        model, report = registry.load_with_report(tmp_path)  # type: ignore[assignment]
        assert (report.new, report.unused) == ([], [])
    other.eval()
    batch = model.collate(model.tokenize(SOURCES)) | model.collate_targets(model.tokenize(TARGETS))
    theirs = {"input_ids": batch["input_ids"], "attention_mask": batch["mask"].long()}
    with torch.no_grad():
        logits = other(**theirs, decoder_input_ids=batch["decoder_input_ids"]).logits
        torch.testing.assert_close(model.logits(model.teacher_forced(batch)), logits, rtol=0, atol=1e-4)
        if norm == "post":  # an mBART there begins a target with the last of its labels
            there = batch["labels"] >= 0
            labels = batch["labels"].masked_fill(~there, -100)
            torch.testing.assert_close(other(**theirs, labels=labels).logits[there], logits[there])
        top, layers = other.model(**theirs).last_hidden_state, model(batch).layers
    torch.testing.assert_close(layers[-1][batch["mask"]], top[batch["mask"]], rtol=0, atol=1e-4)
    assert len(layers) == model.num_layers == len(model.layer_groups())
    special = {*tokenizer.special_ids, *tokenizer.languages.values()}
    for beam in (1, 5):
        rows = other.generate(**theirs, num_beams=beam, max_new_tokens=20, do_sample=False).tolist()
        texts = [[token for token in row if token not in special] for row in rows]
        assert model.write(batch, Search(tokens=20, beam=beam)) == texts


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_saved_tokenizer_writes_what_the_model_reads(tokenizer: Seq2SeqBpe, tmp_path: Path, norm: str) -> None:
    model = bart(tokenizer, norm)
    model.set_languages("de", "en")
    model.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (SOURCES[0], (SOURCES[0], SOURCES[1])):
        given = text if isinstance(text, tuple) else (text,)
        assert theirs(*given)["input_ids"] == model.collate(model.tokenize([text]))["input_ids"][0].tolist()
    assert model.tokenizer.hash == tokenizer.hash
    again = registry.load(tmp_path)
    batches = [loaded.collate(loaded.tokenize(SOURCES)) for loaded in (model, again)]
    assert torch.equal(*(batch["input_ids"] for batch in batches))


def test_a_model_without_its_output_writes_all_the_same(tokenizer: Seq2SeqBpe, tmp_path: Path) -> None:
    """facebook/bart-base is such a folder: its output is the embedding."""
    model = bart(tokenizer, "post")
    model.save(tmp_path / "ours")
    transformers.BartModel.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "ours" / name, tmp_path / "bare")
    bare = registry.load_with_heads(tmp_path / "bare")
    assert not bare.untrained
    source = model.tokenize(SOURCES)[0]
    assert bare.generate(source, tokens=10) == model.generate(source, tokens=10)


def test_heads_see_the_end_of_the_source_in_the_decoder(tokenizer: Seq2SeqBpe, tmp_path: Path) -> None:
    """The vector of a text is what the classification head of transformers sees."""
    model, seen = bart(tokenizer, "post"), []
    model.save(tmp_path)
    other = transformers.BartForSequenceClassification.from_pretrained(tmp_path).eval()
    other.classification_head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    batch = model.collate(model.tokenize(SOURCES))
    with torch.no_grad():
        other(input_ids=batch["input_ids"], attention_mask=batch["mask"].long())
        torch.testing.assert_close(model.pooled(model(batch)), seen[0], rtol=0, atol=1e-4)


def test_retrieval_reads_each_side_in_its_language(tokenizer: Seq2SeqBpe) -> None:
    """And the model has its own languages again; one that marks none reads as before."""
    model, before = (made := bart(tokenizer, "pre")), dict(made.config)
    sources, targets = (text_vectors(model, SOURCES, language=name, name="test")[-1] for name in ("en", "de"))
    assert model.config == before
    assert torch.equal(sources, text_vectors(model, SOURCES, language="en", name="test")[-1])
    assert (sources - targets).abs().max() > 1e-3
    unmarked = bart(tokenizer, "post")
    either = [text_vectors(unmarked, SOURCES, language=name, name="test")[-1] for name in ("en", "de")]
    assert torch.equal(*either)


def test_what_is_inspected_goes_to_the_device_of_the_model(
    tokenizer: Seq2SeqBpe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another device here: batches arrive on it, and nothing of the CPU meets what comes from it."""
    model, meta = bart(tokenizer, "post"), torch.device("meta")
    features = partial(cut_texts, model, max_length=20, cut="head")
    tuned: Any = SimpleNamespace(encoder=model, head=TranslationHead, features=features)
    monkeypatch.setattr(Bart, "device", meta)

    def arrived(batch: dict[str, torch.Tensor]) -> None:
        assert {value.device for value in batch.values()} == {meta}
        raise InterruptedError

    monkeypatch.setattr(model, "teacher_forced", arrived)
    monkeypatch.setattr(model, "log_probs", arrived)
    for inspected in (with_right_words, mean_log_probability):
        with pytest.raises(InterruptedError):
            inspected(tuned, SOURCES, TARGETS)
    there = torch.ones(4, 9, dtype=torch.bool, device=meta)
    encoded = Encoded([torch.zeros(4, 9, 8, device=meta)], there, there.long())
    monkeypatch.setattr(model, "encode", lambda *args, **options: encoded)
    [vectors] = text_vectors(model, SOURCES, language="en", name="test")
    assert (vectors.shape, vectors.device) == ((4, 8), meta)


def test_a_batch_names_the_language_of_each_row(tokenizer: Seq2SeqBpe) -> None:
    model, codes = bart(tokenizer, "pre"), torch.tensor([tokenizer.language_id("de"), tokenizer.language_id("en")])
    texts = model.tokenize(SOURCES[:2])
    batch = model.name_languages(model.collate(texts) | model.collate_targets(texts), codes, codes)
    for row, text in enumerate(texts):
        there, end = batch["mask"][row], tokenizer.id("eos")
        assert batch["input_ids"][row][there].tolist() == [*text, end, int(codes[row])]
        assert batch["decoder_input_ids"][row, : len(text) + 1].tolist() == [int(codes[row]), *text]
        assert batch["labels"][row, : len(text) + 1].tolist() == [*text, end]
    with pytest.raises(UserError, match="no token for the language 'fr'; it has <en>, <de>"):
        model.set_languages("en", "fr")


# ---------------------------------------------------------------------- noise

TEXT = np.arange(100, 220)  # each token once


@pytest.mark.parametrize(("size", "rate", "span"), [(120, 0.3, 3.0), (120, 0.15, 1.0), (7, 0.3, 3.0), (40, 0.9, 3.5)])
def test_as_many_tokens_are_hidden_in_as_many_spans(size: int, rate: float, span: float) -> None:
    rng, hidden, spans = np.random.default_rng(0), [], []
    for _ in range(2000):
        text = TEXT[:size]
        ids, begins, lengths = infill(text, rng, mask_rate=rate, mean_span=span, mask_id=0)
        masks = ids == 0
        assert masks.sum() == len(lengths)
        assert not (masks[1:] & masks[:-1]).any()  # a token stays between any two
        covered = {int(i) for begin, length in zip(begins, lengths, strict=True) for i in range(begin, begin + length)}
        assert ids[~masks].tolist() == [token for i, token in enumerate(text) if i not in covered]
        hidden.append(len(covered))
        spans.append(len(lengths))
        assert abs(hidden[-1] - rate * size) < 1
    assert np.mean(hidden) == pytest.approx(rate * size, rel=0.02)
    if rate * size > 2 * span and rate < 0.5:  # few tokens make a short span, and many leave no room between spans
        assert np.mean(spans) == pytest.approx(rate * size / span, rel=0.02)


def test_lengths_of_spans_are_of_a_poisson_distribution() -> None:
    rng = np.random.default_rng(0)
    text = np.arange(3000)
    lengths = np.concatenate([infill(text, rng, mask_rate=0.3, mean_span=3.0, mask_id=0).lengths for _ in range(60)])
    poisson = np.cumprod([np.exp(-3), *(3 / k for k in range(1, 9))])
    assert np.bincount(lengths)[:9] / len(lengths) == pytest.approx(poisson, abs=0.01)


def test_sentences_change_places_whole() -> None:
    text, inner, rng = TEXT[:9], np.array([2, 5]), np.random.default_rng(0)
    parts = [text[:2], text[2:5], text[5:]]
    orders = [tuple(np.concatenate(order).tolist()) for order in itertools.permutations(parts)]
    seen = [tuple(permute(text, inner, rng).tolist()) for _ in range(600)]
    assert set(seen) == set(orders)
    assert min(map(seen.count, orders)) > 60  # 100 on average
    assert permute(text, inner[:0], rng).tolist() == text.tolist()


def test_a_batch_shows_noise_and_asks_for_the_text(tokenizer: Seq2SeqBpe) -> None:
    """A pure function of its arguments; a target that is longer than a row loses its end in source and target."""
    sentences = tokenizer.encode_plain(["Anna reads.", " Bob sleeps well.", " A dog runs and runs and runs."] * 4)
    sizes = [len(sentence) for sentence in sentences]
    store = TokenStore(
        tokens=np.concatenate(sentences), sentences=np.cumsum([0, *sizes]), documents=np.array([0, 3, 6, 12]), meta={}
    )
    objective = Denoising()
    objective.setup(bart(tokenizer, "post"), store)
    steps = StepBatches(objective, store, tokenizer, length=32, batch_size=4, seed=0)
    first, again = steps(0), StepBatches(objective, store, tokenizer, length=32, batch_size=4, seed=0)(0)
    assert all(torch.equal(first.inputs[name], again.inputs[name]) for name in first.inputs)
    check(first, steps, tokenizer)
    assert not list(objective.parameters())  # the model is not a part of it


def check(batch: Batch, steps: StepBatches, tokenizer: Seq2SeqBpe) -> None:
    begin, end, mask_id = (tokenizer.id(role) for role in ("bos", "eos", "mask"))
    for row, (text, _) in enumerate(steps.rows(batch.rows.numpy())):
        labels = batch.targets["denoising"].labels[row]
        source = batch.inputs["input_ids"][row][batch.mask[row]].tolist()
        assert labels[labels >= 0].tolist() == [begin, *text.tolist(), end]
        assert source.count(mask_id) >= 1
        assert (source[0], source[-1]) == (begin, end)
        assert len(source) <= 32


@pytest.mark.parametrize(
    ("options", "named"), [({"mask_rate": 1.0}, "mask_rate"), ({"mean_span": 0.5}, "mean_span")], ids=str
)
def test_options_have_bounds(options: dict[str, float], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Denoising(**options)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- a corpus in several languages


def test_each_file_has_its_language_in_its_name(tokenizer: Seq2SeqBpe, tmp_path: Path) -> None:
    for place, text in (("train.en", "Anna reads.\nBob sleeps."), ("de/1.txt", "Anna liest."), ("notes.md", "#")):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
    found, ignored = files.find_and_ignore(str(tmp_path), ["en", "de"])
    assert [path.name for path in ignored] == ["notes.md"]
    source = Source(files=found, languages=["en", "de"], document_start="^")
    stored = store_builder.build(source, tokenizer, tmp_path / "stores")
    assert stored.languages is not None
    assert stored.languages.tolist() == [tokenizer.language_id("de"), *[tokenizer.language_id("en")] * 2]
    rows = Denoising().rows(stored, tokenizer, length=32, phase=0, seed=0)
    assert rows.languages(np.array([2, 0])).tolist() == [tokenizer.language_id("en"), tokenizer.language_id("de")]
    with pytest.raises(UserError, match=r"train\.en must have one of the languages de, fr in its name"):
        list(Source(files=found, languages=["de", "fr"]).documents())


def test_examples_of_a_pretraining_name_the_language_of_each_text(
    tokenizer: Seq2SeqBpe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.de").write_text("Anna liest heute ein Buch im Garten.\n")
    (tmp_path / "train.en").write_text("Anna reads a book in the garden today.\n")
    found, _ = files.find_and_ignore(str(tmp_path), ["en", "de"])
    stored = store_builder.build(Source(files=found, languages=["en", "de"]), tokenizer, tmp_path / "stores")
    model, seen = bart(tokenizer, "pre"), []
    before = dict(model.config)

    def generate(source: list[int], **how: int) -> list[int]:
        seen.append((int(model.collate([source])["input_ids"][0, -1]), model.decoder_start))
        return source

    monkeypatch.setattr(model, "generate", generate)
    rows = Denoising(mask_rate=0.3).samples(model, stored)[1]
    codes = [tokenizer.language_id("de" if "liest" in text else "en") for text, _, _ in rows]
    assert len(set(codes)) == 2
    assert seen == [(code, code) for code in codes]
    assert model.config == before


# ---------------------------------------------------------------------- the language of texts of a task


def test_texts_of_a_task_are_read_in_its_language(tokenizer: Seq2SeqBpe) -> None:
    model = bart(tokenizer, "pre")
    note = set_language(model, None)
    assert note is not None
    assert note.startswith("Note: texts are read as en, of en, de;")
    assert set_language(model, "de") is None
    batch = model.collate(model.tokenize(SOURCES))
    assert batch["input_ids"][0, batch["mask"][0].sum() - 1] == tokenizer.language_id("de")
    assert (model.language, model.decoder_start) == ("de", tokenizer.language_id("de"))
    with pytest.raises(UserError, match="no token for the language 'fr'"):
        set_language(model, "fr")
    assert set_language(bart(tokenizer, "post"), "de") is None  # it marks no language
    assert model.unit_text(tokenizer.id("mask")) == "<mask>"  # as `try --score` shows it
    with pytest.raises(TaskError, match="columns name those of a translation"):
        Translation(language="de")
