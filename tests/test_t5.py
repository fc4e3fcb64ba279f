"""T5 against transformers, and the spans that it is pretrained on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.t5.modeling_t5 import T5Attention

from pipeline.data import store_builder
from pipeline.data.documents import Source
from pipeline.errors import UserError
from pipeline.inspection.show import write
from pipeline.models import registry
from pipeline.models.bart import Bart
from pipeline.models.generation import Search
from pipeline.models.t5 import T5, bucket
from pipeline.objectives.sampling import StepBatches
from pipeline.objectives.span_corruption import SpanCorruption, composition, spans_of
from pipeline.tokenization import registry as tokenizers
from pipeline.tokenization.seq2seq_bpe import Seq2SeqBpe
from pipeline.training.blocks import CompiledBlocks, RecomputedBlocks
from tests.conftest import run
from tests.test_seq2seq import SOURCES, TARGETS

SIZES = {"size": 32, "heads": 4, "inner_size": 64, "max_length": 40, "dropout": 0.1}


@pytest.fixture(scope="module")
def tokenizer() -> Seq2SeqBpe:
    texts = [*SOURCES, *TARGETS] * 9
    options = {"vocab_size": 300, "lowercase": False, "languages": ["en"], "sentinels": 9}
    trained = tokenizers.train("bpe-seq2seq", texts, **options)  # type: ignore[arg-type]
    assert isinstance(trained, Seq2SeqBpe)
    return trained


def t5(tokenizer: Seq2SeqBpe, **changes: float) -> T5:
    """With random weights that are far from 0."""
    torch.manual_seed(0)
    model = T5(tokenizer, layers=2, **{**SIZES, **changes}).eval()  # type: ignore[arg-type]
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("origin", ["ours", "theirs"])
def test_it_is_transformers_model(tokenizer: Seq2SeqBpe, tmp_path: Path, origin: str) -> None:
    """Our folder there, or theirs here: no missing tensor, the same logits and layers, the same text."""
    model = t5(tokenizer, head_size=5, buckets=8, max_distance=20)
    if origin == "ours":
        model.save(tmp_path)
        other, info = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
    else:
        config = {**model.config, "num_decoder_layers": 1}
        del config["architectures"]
        other = transformers.T5ForConditionalGeneration(transformers.T5Config(**config))
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
        there = batch["labels"] >= 0
        labels = batch["labels"].masked_fill(~there, -100)
        torch.testing.assert_close(other(**theirs, labels=labels).logits[there], logits[there])
        top, layers = other.encoder(**theirs).last_hidden_state, model(batch).layers
    torch.testing.assert_close(layers[-1][batch["mask"]], top[batch["mask"]], rtol=0, atol=1e-4)
    assert len(layers) == model.num_layers == 3
    assert sum(len(group) for group in model.layer_groups()) == len(list(model.parameters()))
    special = {*tokenizer.special_ids, *tokenizer.languages.values()}
    for beam in (1, 5):
        rows = other.generate(**theirs, num_beams=beam, max_new_tokens=20, do_sample=False).tolist()
        texts = [[token for token in row if token not in special] for row in rows]
        assert model.write(batch, Search(tokens=20, beam=beam)) == texts


def test_distances_fall_into_the_buckets_of_transformers() -> None:
    apart = torch.arange(-300, 301)
    for count, farthest in ((32, 128), (8, 20), (6, 200)):
        for both in (False, True):
            theirs = T5Attention._relative_position_bucket(apart, both, count, farthest)
            assert torch.equal(bucket(apart, count, farthest, both_sides=both), theirs)


def test_a_saved_tokenizer_writes_what_the_model_reads(tokenizer: Seq2SeqBpe, tmp_path: Path) -> None:
    model = t5(tokenizer)
    model.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (SOURCES[0], (SOURCES[0], SOURCES[1])):
        given = text if isinstance(text, tuple) else (text,)
        assert theirs(*given)["input_ids"] == model.collate(model.tokenize([text]))["input_ids"][0].tolist()
    assert tokenizers.load(tmp_path).hash == tokenizer.hash


def test_a_prompt_without_a_sentinel_is_said_to_have_none(tokenizer: Seq2SeqBpe) -> None:
    how = Search(tokens=3, beam=1)
    assert "(The text has no <extra_id_0>, in whose place" in write(t5(tokenizer), SOURCES[0], how)
    assert "(The text has no" not in write(t5(tokenizer), f"{SOURCES[0]} <extra_id_0>", how)


def test_sentinels_are_no_languages(tokenizer: Seq2SeqBpe, tmp_path: Path) -> None:
    tokenizer.save(tmp_path, max_length=40)
    again = tokenizers.load(tmp_path)
    assert again.languages == {"<en>": 5}
    assert again.sentinels == list(range(6, 15))
    assert again.encode_batch(["<extra_id_1>"]) == [[7]]
    assert 7 not in again.encode_plain(["<extra_id_1>"])[0]  # a text that happens to have it
    with pytest.raises(UserError, match=r"data\.tokenizer\.sentinels is for scheme bpe-seq2seq"):
        tokenizers.train("bpe", SOURCES, vocab_size=300, lowercase=False, sentinels=2)
    for number in (-1, 300):
        with pytest.raises(UserError, match=rf"sentinels is {number}; it must be at least 0, and below vocab_size"):
            tokenizers.train("bpe-seq2seq", SOURCES, vocab_size=300, lowercase=False, sentinels=number)


def test_spans_are_those_of_the_paper(tokenizer: Seq2SeqBpe) -> None:
    """round(0.15 N) tokens in round(that / 3) spans, with a token between any two; all cuts are as likely."""
    objective, rng = SpanCorruption(), np.random.default_rng(0)
    for count, hidden, spans in ((1, 0, 0), (2, 1, 1), (20, 3, 1), (60, 9, 3), (126, 19, 6)):
        tokens = rng.integers(20, 300, count)
        for _ in range(20):
            ids, begins, lengths = objective.noisy(tokens, np.zeros(0), tokenizer, rng)
            assert (lengths.sum(), len(lengths)) == (hidden, spans)
            ends = begins + lengths
            assert (begins[1:] > ends[:-1]).all()
            pieces = {mark: tokens[b:e].tolist() for mark, b, e in zip(tokenizer.sentinels, begins, ends, strict=False)}
            assert [token for i in ids.tolist() for token in pieces.get(i, [i])] == tokens.tolist()
    places = [int(objective.noisy(np.arange(4), np.zeros(0), tokenizer, rng).begins[0]) for _ in range(4000)]
    assert np.bincount(places) == pytest.approx(1000, abs=150)
    few = tokenizers.train("bpe-seq2seq", SOURCES * 9, vocab_size=300, lowercase=False, sentinels=2)
    assert objective.noisy(np.arange(100), np.zeros(0), few, rng).lengths.shape == (2,)  # longer than a row, to look at
    drawn = np.array([composition(5, 3, rng) for _ in range(6000)])
    assert (drawn.sum(1) == 5).all()
    assert (drawn > 0).all()
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 6  # 4 over 2
    assert counts == pytest.approx(1000, abs=150)
    assert spans_of([6, 40, 41, 7, 42, 2], tokenizer.sentinels, tokenizer.special_ids) == {6: [40, 41], 7: [42]}


def test_a_row_needs_a_sentinel_for_each_span(tmp_path: Path) -> None:
    flags = ["--data.tokenizer.vocab_size=400", "--data.sample_documents=40", "--trainer.max_steps=1"]
    with pytest.raises(UserError, match=r"64 tokens has 3 hidden spans.* 2 sentinels.*data\.tokenizer\.sentinels to 3"):
        run("pretrain", "--model=t5", "--out", str(tmp_path / "run"), *flags, "--data.tokenizer.sentinels=2")


def test_words_per_token_and_the_audit_count_what_targets_have(tokenizer: Seq2SeqBpe, tmp_path: Path) -> None:
    """Also of documents of a word or two, and of sentences that do not fill a row and are cut."""
    sentences = "\n".join(f"A {'b ' * (3 + 5 * n % 14)}c." for n in range(20))
    for texts in (["a b c d e f g h i j k l m n o p q r s t u v"] * 30, ["a b", "c", "d e f"] * 20, [sentences] * 10):
        folder = tmp_path / str(len(texts))
        folder.mkdir()
        (folder / "text.txt").write_text("\n\n".join(texts) + "\n")
        store = store_builder.build(Source(files=[folder / "text.txt"]), tokenizer, folder / "stores")
        objective, model = SpanCorruption(), t5(tokenizer)
        objective.setup(model, store)
        steps = StepBatches(objective, store, tokenizer, length=30, batch_size=10, seed=0)
        batches = list(steps.first_epoch())
        seen = sum(int(batch.tokens) for batch in batches)
        shown = sum(len(tokens) for tokens, _ in steps.rows(np.arange(len(steps.rows))))  # a row has 30 tokens at most
        words = store.meta["words"] * shown / store.meta["tokens"]
        assert seen * objective.words_per_token(steps.rows, store) == pytest.approx(words)
        assert (shown < store.meta["tokens"]) == (len(texts) == 10)
        assert all(check.passed for check in objective.checks(model, steps, batches))


def test_muon_trains_no_table_of_positions(tokenizer: Seq2SeqBpe) -> None:
    model = t5(tokenizer)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    assert len(tables) == 3
    assert {id(weight) for weight in model.layer_groups()[0]} == tables


@pytest.mark.parametrize(
    ("callback", "dropout"),
    [(RecomputedBlocks(), 0.3), (CompiledBlocks(backend="aot_eager"), 0.0)],
    ids=["recomputed", "compiled"],
)
def test_blocks_computed_otherwise_have_the_same_gradients(
    tokenizer: Seq2SeqBpe, callback: Any, dropout: float
) -> None:
    model = t5(tokenizer, dropout=dropout).train()
    batch = model.collate(model.tokenize(SOURCES)) | model.collate_targets(model.tokenize(TARGETS))
    results = []
    for changed in (False, True):
        if changed:
            callback.on_train_start(None, SimpleNamespace(trained=model))
            callback.on_train_batch_end(None, SimpleNamespace(trained=model), None, None, 0)
        torch.manual_seed(1)
        there = batch["labels"] >= 0
        loss = model.token_loss(model.teacher_forced(batch)[there], batch["labels"][there]).sum
        results.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    callback.on_train_end(None, SimpleNamespace(trained=model))
    for plain, other in zip(*results, strict=True):
        torch.testing.assert_close(other, plain, atol=1e-5, rtol=1e-4)


def test_a_row_names_its_language(tokenizer: Seq2SeqBpe, tmp_path: Path) -> None:
    """Where the model has languages: mBART takes the objective too."""
    texts = [*SOURCES, *TARGETS] * 9
    options = {"vocab_size": 300, "lowercase": False, "languages": ["en", "de"], "sentinels": 9}
    two = tokenizers.train("bpe-seq2seq", texts, **options)  # type: ignore[arg-type]
    for language, lines in (("en", SOURCES), ("de", TARGETS)):
        (tmp_path / f"{language}.txt").write_text("\n\n".join(lines * 5) + "\n")
    source = Source(files=sorted(tmp_path.glob("*.txt")), languages=["en", "de"])
    store = store_builder.build(source, two, tmp_path / "stores")
    objective = SpanCorruption()
    objective.setup(Bart(two, layers=1, norm="pre", attention_dropout=0.0, **SIZES), store)  # type: ignore[arg-type]
    steps = StepBatches(objective, store, two, length=30, batch_size=30, seed=0)
    batch = next(iter(steps.first_epoch()))
    starts = batch.inputs["decoder_input_ids"][:, 0]
    assert set(starts.tolist()) == set(two.languages.values())
    assert torch.equal(starts, torch.from_numpy(steps.rows.languages(batch.rows.numpy())))
