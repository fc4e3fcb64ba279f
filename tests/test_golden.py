"""Golden values: the same command and seed compute today what they computed in 0.13.

Elsewhere the tests compare two runs of one version. Here a change of the split of a corpus, of the order of its rows,
of the masks that are drawn, of an initialization or of a loss is seen, which every other test would pass.
The numbers are of 0.13.0, losses of BERT of 0.17, without counted embeddings. A change that is meant changes them too:
say in the changelog that it does.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline
from pipeline.training.finetuning import FineTuning
from pipeline.training.pretraining import Pretraining
from tests.conftest import figures, run

pytestmark = pytest.mark.slow

SIZES = {
    "bert": ["size=32", "layers=2", "heads=2", "inner_size=64", "max_length=32", "dropout=0.1"],
    "gpt": ["size=32", "layers=2", "heads=2", "inner_size=64", "max_length=32", "dropout=0.1"],
    "elmo": [
        "character_size=8",
        "filters=[[1, 8], [2, 8], [3, 16]]",
        "projection=16",
        "cell=32",
        "cutoffs=[20]",
        "dropout=0.1",
    ],
}
MADE = "--model.objective.init_args"
# What is pretrained, and the flags that make another draw or another loss than the configuration of the model.
RUNS = {
    "masked_lm": ("bert", []),
    "masked_lm, whole words, order of sentences": ("bert", [f"{MADE}.whole_word=true", f"{MADE}.next_sentence=sop"]),
    "causal_lm": ("gpt", []),
    "causal_lm, documents apart": ("gpt", [f"{MADE}.packing=document"]),
    "bidirectional_lm": ("elmo", []),
    "bidirectional_lm, state carried": ("elmo", [f"{MADE}.stateful=true"]),
}
# What the recipes of BERT and ELMo have that the recorded runs had not; counted embeddings begin with singular vectors,
# whose signs differ from one processor to another.
BEFORE = [
    "--model.embeddings=random",
    f"{MADE}.first_mask_rate=null",
    *(f"--model.optimization.{one}" for one in ("optimizer=adamw", "learning_rate=1e-3")),
]
TASKS = ["sentiment", "entailment", "tagging"]
STEPS = ["--trainer.max_steps=3", "--trainer.log_every_n_steps=1", "--precision=32-true", "--seed=7"]

# train/loss of steps 1 to 3, then val/loss.
LOSSES: dict[str, list[float]] = {
    "masked_lm": [5.967374, 5.950735, 5.967414, 5.957939],
    "masked_lm, whole words, order of sentences": [5.977329, 6.022404, 5.927447, 5.933764],
    "causal_lm": [5.700747, 5.685426, 5.640239, 5.575847],
    "causal_lm, documents apart": [5.701461, 5.685349, 5.638831, 5.572818],
    "bidirectional_lm": [7.96611, 7.988334, 8.148702, 7.931515],
    "bidirectional_lm, state carried": [8.211795, 8.412332, 8.197994, 7.930276],
    "sentiment": [0.700423, 0.694586, 0.690641, 0.693217],
    "entailment": [1.095755, 1.102455, 1.097693, 1.098731],
    "tagging": [1.660248, 1.653604, 1.679172, 1.657223],
}
# Of the files tokens.bin of both stores, training first: the split of the corpus, the tokenizer and the token ids.
STORES: dict[str, list[str]] = {
    "bert": ["0963c5ea5211a48f", "07d3500bce0a417e"],
    "gpt": ["55ffa762ae34bde2", "bc530b1fae607de5"],
    "elmo": ["d266d4ed277d7501", "3b0d56e4db6340b8"],
}
LOG_LIKELIHOODS: dict[str, list[float]] = {
    "masked_lm": [-10.78626, -25.78722],
    "masked_lm, whole words, order of sentences": [-10.43609, -25.90624],
    "causal_lm": [-32.64218, -56.55837],
    "causal_lm, documents apart": [-32.61861, -56.61704],
    "bidirectional_lm": [-6.25626, -48.69356],
    "bidirectional_lm, state carried": [-6.26768, -48.67846],
}  # nats, of two continuations
# Of the tensors of the first batch, found by their content, whatever they are called.
BATCHES: dict[str, dict[str, str]] = {
    "masked_lm": {
        "input_ids": "c6874e30a4e46bc9",
        "token_type_ids": "8818d30b7243e4ca",
        "mask": "2483789f37eb323f",
        "positions": "a672215b216f56dd",
        "labels": "16fd7f7981b2ab1e",
        "pair_labels": "22370232421eb98e",
        "rows": "0b13d1445bfc02a0",
    },
    "masked_lm, whole words, order of sentences": {
        "input_ids": "ba2a0fa90abce694",
        "token_type_ids": "b4e4d82281fc605f",
        "mask": "21fe34c71df8312f",
        "positions": "925a234ee663aea4",
        "labels": "cc4a1ee59a431840",
        "pair_labels": "116413a142daaa8c",
        "rows": "e5d2ba98a0c24539",
    },
    "causal_lm": {
        "input_ids": "b3e1e7328b79390d",
        "mask": "a690db07ad0d20a6",
        "labels": "de191fab9aa8d60e",
        "rows": "78f9a21631ff4053",
    },
    "causal_lm, documents apart": {
        "input_ids": "b3e1e7328b79390d",
        "mask": "a690db07ad0d20a6",
        "labels": "de191fab9aa8d60e",
        "documents": "a77770da7989b645",
        "rows": "78f9a21631ff4053",
    },
    "bidirectional_lm": {
        "characters": "067db663f4ada999",
        "words": "48693d31aa720f4b",
        "mask": "a690db07ad0d20a6",
        "input_ids": "597b6637dcb3ae05",
        "next": "07ea15a87d3450c4",
        "spelling/next": "8f27f4ef1fe081db",
        "previous": "ed767434d6a482d2",
        "spelling/previous": "5d11329cba2955e6",
        "rows": "d9313041c6ae0ce2",
    },
    "bidirectional_lm, state carried": {
        "characters": "65400cbf29631983",
        "words": "bdb0b46a4debe8b3",
        "mask": "a690db07ad0d20a6",
        "input_ids": "50c2ac3fb8cf8a20",
        "next": "a92d99b0f8b1532a",
        "spelling/next": "986dc7f92378ad97",
        "previous": "7e1325c8ae9a40a2",
        "spelling/previous": "080910b5cf7e69cd",
        "rows": "1cc6912fd8b74764",
    },
    "sentiment": {
        "input_ids": "37796442fe8a1164",
        "token_type_ids": "76f289a79af53359",
        "mask": "b8654a1e53befcff",
        "labels": "fd84f929f159bea5",
        "rows": "bb96df947f02992d",
    },
    "entailment": {
        "input_ids": "581b6133c2b8a1d6",
        "token_type_ids": "44a6b6cbd8f3b277",
        "mask": "2272e1bdd6217e4b",
        "labels": "fd1f168ffa3d5820",
        "rows": "5ecceaae74d913bb",
    },
    "tagging": {
        "input_ids": "33033a533943b040",
        "token_type_ids": "cdafc8997e834171",
        "mask": "0fd98f40f5402177",
        "word_ids": "6c1c7b01fd00761e",
        "labels": "b91edf96f7df897f",
        "rows": "f9522710bab84626",
    },
}


def corpus() -> str:
    """60 documents of 3 to 9 sentences, by arithmetic: the same on every machine."""
    subjects = ["The cat", "A gardener", "My neighbour", "The old captain", "Nobody", "Every second pupil", "She"]
    verbs = ["sees", "carries", "forgot", "painted", "will mend", "keeps", "never sold", "brought back", "counts"]
    objects = ["a lantern", "the blue door", "seven boats", "letters", "an umbrella", "bread and honey", "the map"]
    places = ["in spring", "near the harbour", "for her brother", "without a word", "at noon", "again"]
    documents = []
    for number in range(60):
        lines = []
        for index in range(3 + number * 5 % 7):
            key = number * 31 + index * 17
            words = [subjects[key % 7], verbs[key // 3 % 9], objects[key // 5 % 7], places[key // 2 % 6]]
            lines.append(" ".join(words) + ".")
        documents.append("\n".join(lines) + "\n")
    return "\n".join(documents)


def hash_of(tensor: torch.Tensor) -> str:
    """Of type, shape and values."""
    value = tensor.detach().cpu().contiguous()
    content = f"{value.dtype} {tuple(value.shape)} ".encode() + value.numpy().tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


def tensors(batch: Any, name: str = "") -> dict[str, torch.Tensor]:
    """All tensors of a batch, however nested, by their path."""
    if isinstance(batch, torch.Tensor):
        return {name: batch}
    if dataclasses.is_dataclass(batch):
        batch = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    if isinstance(batch, (list, tuple)):
        batch = dict(enumerate(batch))
    if not isinstance(batch, dict):
        return {}
    return {path: t for key, value in batch.items() for path, t in tensors(value, f"{name}/{key}".strip("/")).items()}


def hashes(batch: Any) -> dict[str, str]:
    return {name: hash_of(tensor) for name, tensor in tensors(batch).items() if tensor.dim()}


def recorded(monkeypatch: pytest.MonkeyPatch, stage: type) -> list[dict[str, str]]:
    """Hashes of the batches that the stage is trained on, filled while it trains."""
    seen: list[dict[str, str]] = []
    step = stage.training_step  # type: ignore[attr-defined]

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        seen.append(hashes(batch))
        return step(self, batch, batch_idx)

    monkeypatch.setattr(stage, "training_step", training_step)
    return seen


def losses(folder: Path) -> list[float]:
    with open(folder / "metrics.csv", newline="") as file:
        steps = [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]
    return [*steps, figures(folder)["val/loss"]]


def same_content(found: dict[str, str], golden: dict[str, str]) -> None:
    missing = {name: value for name, value in golden.items() if value not in found.values()}
    assert not missing, f"no tensor of the batch is {missing}; it has {found}"


def pretrain(model: str, folder: Path, *flags: str) -> None:
    (folder / "corpus.txt").write_text(corpus())
    small = ["--data.length=24", "--data.batch_size=8", "--data.validation_every=5"]
    small += ["--model.optimization.warmup_steps=2", "--validate_every=100"]
    small += [f"--data.tokenizer.vocab_size={40 if model == 'elmo' else 300}"]  # so few that words are unknown
    small += [f"--model.encoder.init_args.{size}" for size in SIZES[model]]
    rate = "--model.optimization.learning_rate=2e-3"
    small += {"bert": BEFORE, "gpt": [rate], "elmo": [BEFORE[2], rate]}[model]
    where = ["--corpus", str(folder / "corpus.txt"), "--out", str(folder / "run")]
    run("pretrain", "--model", model, *where, *small, *STEPS, *flags)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    pretrain("bert", folder)
    return folder / "run/encoder"


@pytest.mark.parametrize("name", RUNS)
def test_pretraining(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, flags = RUNS[name]
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))  # with no store but its own
    batches = recorded(monkeypatch, Pretraining)
    pretrain(model, tmp_path, *flags)
    files = sorted((tmp_path / "cache/stores").glob("*/tokens.bin"), key=lambda file: -file.stat().st_size)
    stores = [hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files]
    pairs = [("The cat sees", " a lantern"), ("", "She forgot the map.")]
    found = pipeline.prompting.log_likelihoods(pipeline.encoders.load(tmp_path / "run/encoder"), pairs)
    assert stores == STORES[model]
    same_content(batches[0], BATCHES[name])
    assert losses(tmp_path / "run") == pytest.approx(LOSSES[name], rel=1e-4)
    assert found == pytest.approx(LOG_LIKELIHOODS[name], rel=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_fine_tuning(task: str, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = recorded(monkeypatch, FineTuning)
    small = ["--data.batch_size=8", "--data.train_rows=24", "--data.epochs=1", "--validations=1"]
    run("finetune", "--task", task, "--from", str(encoder), "--out", str(tmp_path / "run"), *small, *STEPS)
    same_content(batches[0], BATCHES[task])
    assert losses(tmp_path / "run") == pytest.approx(LOSSES[task], rel=1e-4)
