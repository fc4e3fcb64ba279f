"""`make evaluate`: the pretraining losses of a saved encoder on any text, for instance one it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from typing_extensions import TypedDict

from pipeline.console import typed
from pipeline.console.progress import progress
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.objectives.sampling import StepBatches
from pipeline.storage.validation import read_yaml
from pipeline.tracking import lineage
from pipeline.training.corpus_data import CorpusData


class DataOfRun(TypedDict):
    length: Annotated[int, Field(ge=1)]


class ConfigOfRun(TypedDict):
    """The part of a run's config.yaml that is used."""

    data: DataOfRun


def training_length(encoder: Encoder, folder: Path) -> int | None:
    """Tokens of a row in pretraining, as `config.json` says, or the run that the folder lies in; None: neither."""
    if "training_length" in encoder.config:
        return encoder.config["training_length"]
    try:  # folders of 0.12 do not say it
        return read_yaml(folder.resolve().parent / "config.yaml", ConfigOfRun)["data"]["length"]
    except UserError:
        return None


def note_on_length(encoder: Encoder, length: int, trained: int | None) -> str | None:
    """A note where rows are longer than those of pretraining, or may be; None: they are not."""
    if trained is None:
        return f"Note: the folder does not say on which length its encoder was trained; rows have {length} tokens here."
    if length > trained and encoder.learned_positions:
        return (
            f"Warning: rows have {length} tokens, but the encoder was trained on {trained}: what it predicts at later "
            f"positions is meaningless. Leave --data.length out, or set {typed.setting('data.length', trained)}."
        )
    return None


def note_on_text(encoder: Encoder, folder: Path, data: CorpusData) -> str | None:
    """A warning where the encoder was trained on the text that it is evaluated on."""
    corpus = data.evaluation_store(encoder.tokenizer).meta["corpus"]
    if corpus not in (stage.get("sha256") for stage in lineage.read(folder) if stage["stage"] == "corpus"):
        return None
    return (
        "Warning: the encoder was pretrained on this very text, but for what was set aside for validation: these "
        "figures say little of other text."
    )


FEW_UNKNOWN = 0.02  # share of unknown words that changes a perplexity little


@torch.no_grad()
def evaluate(encoder: Encoder, data: CorpusData) -> dict[str, float]:
    """Every whole row of the validation part, or of the corpus when it has none; what is left at its end fills no row.

    With `stateful`, the rows that fill no batch (`data.batch_size`) are left out too. `bytes` are those of the raw
    text; `bytes_not_predicted` are in no token: blank lines and spaces around sentences. `unknown` is the share of
    the text that the encoder knows only as [UNK]. The baselines are of this text too, in nats as the losses are.

    Raises:
        UserError: an objective that the encoder does not serve, rows longer than its positions, or a corpus that does
            not suffice.
    """
    data.objective.check_model(encoder)
    if data.length > encoder.max_length:
        raise UserError(
            f"data.length is {data.length}, but the encoder has only {encoder.max_length} positions; "
            f"set {typed.setting('data.length', encoder.max_length)}."
        )
    encoder.forget_between_batches()  # only the objective's own state goes from batch to batch
    objective, store = data.objective, data.evaluation_store(encoder.tokenizer)
    objective.check_corpus(store, "evaluation")
    objective.setup(encoder, store)
    steps = StepBatches(
        objective, store, encoder.tokenizer, length=data.length, batch_size=data.batch_size, seed=data.seed
    )
    batches, state = -(-len(steps.rows) // data.batch_size), None
    sums: dict[str, list[float]] = {}
    encoder.eval()
    for batch in progress(steps.first_epoch(), total=batches, desc="evaluate", unit="batch", leave=False, delay=1):
        batch.state = state
        losses = objective(encoder, batch)
        state = batch.state
        for name, loss in losses.items():
            sums[name] = [a + b for a, b in zip(sums.get(name, [0.0] * 4), loss.statistics().tolist(), strict=True)]
    figures: dict[str, float] = {}
    for name, (total, count, correct, spelling) in sums.items():
        if not count and (name == objective.main or len(sums) == 1):
            raise UserError("The encoder knows no token of this text, so there is nothing to predict.")
        if not count:  # no row of a short text has this loss
            continue
        means = {"loss": total / count, "accuracy": correct / count, "spelling": spelling / count}
        figures |= {f"{name}_{key}": value for key, value in means.items() if value == value}
    per_byte = steps.rows.predictions_per_byte
    figures |= objective.report(figures, per_byte=per_byte)
    figures["unknown"] = objective.unknown(store, encoder.tokenizer)
    uniform, unigram = objective.baselines(store, encoder.tokenizer)
    figures |= {"baseline/uniform": uniform, "baseline/unigram": unigram}
    sizes = {"bytes": store.raw_bytes, "bytes_not_predicted": store.unpredicted_bytes}
    return {"documents": store.meta["documents"], **sizes, **figures}
