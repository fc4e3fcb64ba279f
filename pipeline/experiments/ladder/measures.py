"""What a ladder measures of a trained model; each measure is kept in a file beside the key of what it depends on.

Shapes: N predicted tokens, T positions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.inspection.token_log_probs import TokenLogProbs, token_log_probs
from pipeline.models.base import Encoder
from pipeline.models.encoding import eval_mode
from pipeline.presets.tasks import task_file, task_of
from pipeline.prompting.evaluate import evaluate
from pipeline.prompting.report import metrics_of_run
from pipeline.prompting.run import read
from pipeline.storage.atomic import open_atomically, write_json
from pipeline.storage.validation import read_json
from pipeline.tokenization.base import PARTIAL, Tokenizer, printable
from pipeline.tracking.groups import THEIRS, by_column, published
from pipeline.training.corpus_data import CorpusData
from pipeline.training.throughput import flop_counter
from tasks.dataset import DataSet, Row

BLIMP, PHENOMENON = "blimp", "linguistics_term"
ARRAYS = ("tokens", "log_probs", "context", "documents", "spelling")  # of TokenLogProbs


@dataclass(frozen=True)
class Kept:
    """Measures of one model in `folder/NAME-...`, remade when the key is another."""

    folder: Path
    name: str
    key: str

    def value(self, what: str, made_of: Any, make: Callable[[], Any]) -> Any:
        """A JSON value; `made_of`: what it depends on beside the model and the text."""
        file, key = self.folder / f"{self.name}-{what}.json", [self.key, made_of]
        try:
            kept = read_json(file, dict[str, Any])
            if kept["key"] == json.loads(json.dumps(key)):
                return kept["value"]
        except (UserError, KeyError):  # missing or damaged
            pass
        value = make()
        write_json(file, {"key": key, "value": value}, indent=None)
        return value

    def scores(self, make: Callable[[], TokenLogProbs]) -> TokenLogProbs:
        """The log-probability of each token of the validation text."""
        file = self.folder / f"{self.name}-tokens.npz"
        try:
            with np.load(file, allow_pickle=False) as kept:
                if str(kept["key"]) == self.key:
                    arrays = {name: kept[name] for name in ARRAYS}
                    return TokenLogProbs(**arrays, per_byte=float(kept["per_byte"]))
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):  # missing or damaged
            pass
        scores = make()
        with open_atomically(file, "wb") as stream:
            np.savez_compressed(stream, key=np.array(self.key), **asdict(scores))
        return scores


def scores_of(encoder: Encoder, data: CorpusData) -> TokenLogProbs:
    """Each token of the validation text, in the rows of pretraining."""
    return token_log_probs(encoder, data.valid, data.objective, length=data.length)


# ---------------------------------------------------------------------- a text to look at


def paragraph(store: TokenStore, tokens: int) -> list[int]:
    """The first tokens of the first document that has so many, or of the longest."""
    starts = store.document_starts
    sizes = np.diff(starts)
    chosen = int(np.argmax(sizes >= tokens)) if (sizes >= tokens).any() else int(sizes.argmax())
    return store.tokens[starts[chosen] : starts[chosen] + min(tokens, sizes[chosen])].tolist()


def texts_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Each token as text; of a character in several tokens the last one has it."""
    texts, begin = [], 0
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(list(ids[begin:end]))
        whole = PARTIAL not in text or end == len(ids)
        texts.append(text if whole else "")
        begin = end if whole else begin
    return texts


@torch.no_grad()
def nats_of(encoder: Encoder, ids: Sequence[int]) -> list[float]:
    """Nats of each token of a text after the token that begins one."""
    row = torch.tensor([[encoder.tokenizer.id("bos"), *ids]], device=encoder.device)
    with eval_mode(encoder):
        scores = encoder.log_probs({"input_ids": row, "mask": torch.ones_like(row, dtype=torch.bool)})
    return [round(-score, 4) for score in scores[0, 1:].tolist()]


def continuation(encoder: Encoder, prompt: str, tokens: int) -> str:
    """What a model writes after a prompt: each token drawn from its whole distribution, with a fixed seed."""
    [ids] = encoder.tokenizer.encode_batch([prompt])
    ids = [encoder.tokenizer.id("bos"), *ids]
    with eval_mode(encoder):
        new = encoder.generate(ids, tokens=tokens, temperature=1.0, top_k=0, top_p=1.0, seed=0)
    return printable(encoder.tokenizer.decode(new))


def random_tokens(tokenizer: Tokenizer, tokens: int) -> str:
    """Tokens drawn from the uniform distribution, with a fixed seed."""
    return printable(tokenizer.decode(np.random.default_rng(0).integers(len(tokenizer), size=tokens).tolist()))


# ---------------------------------------------------------------------- minimal pairs, operations


def blimp(encoder: Encoder, folder: Path) -> dict[str, Any]:
    """Accuracy on minimal pairs of grammar, and by phenomenon (Warstadt et al. 2020)."""
    task, rows = minimal_pairs(folder)
    metrics = metrics_of_run(task, rows, evaluate(encoder, task, rows))
    return {"accuracy": metrics["zeroshot/accuracy"], "phenomena": by_column(metrics).get(PHENOMENON, {})}


def published_blimp(folder: Path) -> list[dict[str, Any]]:
    """The same of the models of Warstadt et al. 2020, for these pairs; none where the pairs are others."""
    metrics = metrics_of_run(*minimal_pairs(folder), {})
    groups = {model: by_column(metrics, f"{THEIRS}{model}/") for model in published(metrics)}
    return [
        {"title": model, "accuracy": accuracy, "phenomena": groups[model].get(PHENOMENON, {})}
        for model, accuracy in published(metrics).items()
    ]


def minimal_pairs(folder: Path) -> tuple[DataSet, list[Row]]:
    task = task_of(task_file(BLIMP))
    return task, read(task, str(folder), limit=0, with_examples=False)[0]


def step_flops(encoder: Encoder, data: CorpusData) -> int:
    """Floating point operations of the matrix products of a training step, forward and backward."""
    batch = data.batches(data.train, batch_size=data.batch_size, seed=0)(0).to(encoder.device)
    with flop_counter() as counter:
        sum(loss.sum for loss in data.objective(encoder, batch).values()).backward()
    encoder.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())
