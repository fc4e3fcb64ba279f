"""A new left-to-right model, defined here: registered, it loads, is prompted and generates with no edit elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

import pipeline
from pipeline import prompting
from pipeline.data import store_builder
from pipeline.data.documents import Source
from pipeline.errors import UserError
from pipeline.inspection.show import check_word, fill_mask, show
from pipeline.models import generation, registry
from pipeline.models.base import Encoder
from pipeline.models.cbow import Cbow
from pipeline.models.folder import Size
from pipeline.models.generation import Search
from pipeline.models.inputs import Inputs, SpecialTokens
from pipeline.models.outputs import Encoded
from pipeline.objectives.causal_lm import CausalLM
from pipeline.prompting.evaluate import evaluate
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.byte_bpe import ByteBpe
from tasks.prompts import Prompt
from tasks.sentiment import Sentiment

TEXTS = ["a small text for a small tokenizer , and words", "the dog saw a cat . the cat saw a dog .", "was it good"] * 9


class GruConfig(TypedDict):
    vocab_size: Size
    size: Size
    max_length: Size


class GruLM(Encoder):
    """The smallest recurrent language model: no cache, no positions, no pairs of its own."""

    model_type = "gru-lm"
    scoring = "causal"
    context = ("left",)
    special = SpecialTokens(prefix=1, between=0, suffix=0)
    schema = GruConfig
    joint_pairs = False

    def __init__(self, tokenizer: Tokenizer, *, size: int, max_length: int) -> None:
        super().__init__()
        self.tokenizer, self.size, self.max_length = tokenizer, size, max_length
        sizes = {"vocab_size": len(tokenizer), "size": size, "max_length": max_length}
        self.config = {"model_type": self.model_type, **sizes}
        self.embedding = nn.Embedding(len(tokenizer), size)
        self.gru = nn.GRU(size, size, batch_first=True)
        self.output = nn.Linear(size, len(tokenizer))

    def forward(self, batch: Inputs, state: Any = None) -> Encoded:
        x = self.embedding(batch["input_ids"])
        return Encoded(layers=[x, self.gru(x)[0]], mask=batch["mask"], input_ids=batch["input_ids"])

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)

    def pooled(self, encoded: Encoded) -> Tensor:
        last = encoded.mask.sum(1) - 1
        return encoded.layers[-1][torch.arange(len(last)), last]

    @property
    def num_layers(self) -> int:
        return 2

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return [list(self.embedding.parameters()), list(self.gru.parameters())]

    def collate(self, texts: Sequence[Any]) -> Inputs:
        begin = self.tokenizer.id("bos")
        rows = [torch.tensor([begin, *text[: self.max_length - 1]]) for text in texts]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return {"input_ids": ids, "mask": torch.arange(ids.shape[1]) < torch.tensor([[len(row)] for row in rows])}

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        return {"embedding.weight": (config["vocab_size"], config["size"])}


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Encoder]:
    """A GruLM from its folder."""
    torch.manual_seed(0)
    GruLM(ByteBpe.train(TEXTS, vocab_size=290, lowercase=False), size=8, max_length=64).save(tmp_path / "encoder")
    registry.register(GruLM)
    try:
        yield pipeline.encoders.load(tmp_path / "encoder")
    finally:
        registry._REGISTERED.pop(GruLM.model_type, None)


def test_a_new_model_is_registered(model: Encoder, tmp_path: Path) -> None:
    assert type(model) is GruLM
    assert "gru-lm" in registry.names()
    _, report = pipeline.encoders.load_with_report(tmp_path / "encoder")
    assert not report.new
    assert not report.unused
    assert registry.register(GruLM) is GruLM  # twice is no error

    class Other(GruLM):
        pass

    with pytest.raises(ValueError, match="model_type 'gru-lm' is taken"):
        registry.register(Other)


def test_a_folder_of_an_unregistered_model_is_refused(model: Encoder, tmp_path: Path) -> None:
    registry._REGISTERED.pop(GruLM.model_type)
    with pytest.raises(UserError, match=r"There is no encoder 'gru-lm'; there are .*bert, cbow, elmo, "):
        pipeline.encoders.load(tmp_path / "encoder")


def expected_score(model: Encoder, context: str, continuation: str) -> float:
    """The sum of log p over the tokens of the continuation, in a row of its own; only an empty context is a token."""
    before, whole = model.tokenize([context, context + continuation])
    begin = [] if before else [model.tokenizer.id("bos")]
    ids, first = torch.tensor([[*begin, *whole]]), len(begin) + len(before)
    with torch.no_grad():
        hidden = model({"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}).layers[-1]
        log_probs = model.logits(hidden)[0].log_softmax(-1)
    return float(sum(log_probs[i - 1, ids[0, i]] for i in range(first, ids.shape[1])))


def test_a_new_model_is_prompted(model: Encoder) -> None:
    pairs = [("", "the dog saw a cat")]
    assert prompting.log_likelihoods(model, pairs) == pytest.approx([expected_score(model, *pairs[0])], abs=1e-4)
    prompt = Prompt("choice", "{text} was it", {"no": " small", "yes": " a dog"})
    task = Sentiment(labels={"no": "no", "yes": "yes"}, prompts=[prompt])
    rows = [(f"row {n}", {"text": text, "label": "no"}) for n, text in enumerate(["the dog saw a cat", "words"])]
    results = evaluate(model, task, rows, {0: [], 1: rows[:1]})
    for [result] in results.values():
        for answer in result.answers:
            left, candidates = answer.question.left, answer.question.candidates
            assert answer.scores["sum"] == pytest.approx([expected_score(model, left, c) for c in candidates], abs=1e-4)


def test_a_new_model_generates(model: Encoder) -> None:
    [prompt] = model.tokenize(["the dog"])
    ids, end = list(prompt), model.tokenizer.id("eos")
    with torch.no_grad():
        for _ in range(5):
            row = torch.tensor([ids])
            hidden = model({"input_ids": row, "mask": torch.ones_like(row, dtype=torch.bool)}).layers[-1]
            if (token := int(model.logits(hidden)[0, -1].argmax())) == end:
                break
            ids.append(token)
    settings: dict[str, Any] = {"tokens": 5, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0}
    assert model.generate(prompt, **settings) == ids[len(prompt) :]
    shown = show(model, "the dog", score=False, how=Search(**settings))
    assert shown.startswith("the dog")
    assert show(model, "the dog", score=True, how=Search()).startswith("token")


def test_samples_of_a_new_model(model: Encoder, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(f"the dog saw {n} and a cat ." for n in range(20)) + "\n")
    store = store_builder.build(Source(files=[tmp_path / "text.txt"]), model.tokenizer, tmp_path / "stores")
    columns, rows = CausalLM().samples(model, store)
    assert columns == ["text", "continuation", "generated"]
    assert rows


def test_what_a_new_model_cannot_do_is_refused(model: Encoder) -> None:
    with pytest.raises(UserError, match="Only masked models fill masks; gru-lm is causal"):
        fill_mask(model, "the [MASK] saw")
    with pytest.raises(UserError, match="--word is for models that read whole words"):
        check_word(model)


def test_two_files_of_one_model_type_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a file that was copied to begin from: folders of the one would open as the other."""

    class Copied(Cbow):
        pass

    class Other(Cbow):
        pass

    modules = {}
    for name, kind in (("copied", Copied), ("other", Other)):
        kind.__module__ = f"pipeline.models.{name}"
        modules[kind.__module__] = SimpleNamespace(__name__=kind.__module__, kind=kind)
    monkeypatch.setattr(registry, "modules_of", lambda _: modules.values())
    with pytest.raises(
        UserError, match=r"models\.copied and pipeline\.models\.other define the same model_type 'cbow'"
    ):
        registry._in_package.__wrapped__()


def test_a_state_may_be_a_dict_and_its_tensors_begin_with_the_rows() -> None:
    state = {"a": torch.arange(3), "b": [torch.arange(6).view(3, 2), None]}
    generation.check_rows(state, 3)
    chosen = generation.select(state, torch.tensor([2, 0]))
    assert chosen["a"].tolist() == [2, 0]
    assert chosen["b"][0].tolist() == [[4, 5], [0, 1]]
    with pytest.raises(TypeError, match=r"a tensor \(1, 3, 4\); its first dimension must be 3"):
        generation.check_rows({"h": torch.zeros(1, 3, 4)}, 3)
