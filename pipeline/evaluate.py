"""`make evaluate`: the pretraining losses of a saved encoder on any text, for instance one it has not seen."""

from __future__ import annotations

import torch
from tqdm import tqdm

from pipeline import UserError
from pipeline.batches import Steps
from pipeline.corpus import CorpusData
from pipeline.encoders.base import Encoder
from pipeline.objectives import Objective


@torch.no_grad()
def evaluate(encoder: Encoder, objective: Objective, data: CorpusData) -> dict[str, float]:
    """Every whole row of the validation part, or of the corpus when it has none; what is left at its end fills no row.

    With `carry`, the rows that fill no batch (`data.batch_size`) are left out too.

    Raises:
        UserError: rows longer than the encoder's positions, or a corpus that does not suffice.
    """
    if data.length > encoder.max_length:
        raise UserError(
            f"data.length is {data.length}, but the encoder has only {encoder.max_length} positions; "
            f"set ARGS=--data.length={encoder.max_length}."
        )
    store = data.evaluation_store(encoder.tokenizer)
    data.maker.check(store, "evaluation")
    steps = Steps(data.maker, store, encoder.tokenizer, length=data.length, batch_size=data.batch_size, seed=0)
    batches = -(-steps.rows // data.batch_size)
    sums: dict[str, list[float]] = {}
    encoder.eval()
    for batch in tqdm(steps.whole(), total=batches, desc="evaluate", unit="batch", leave=False, delay=1):
        for name, loss in objective(encoder, batch).items():
            sums[name] = [a + b for a, b in zip(sums.get(name, [0.0] * 4), loss.figures().tolist(), strict=True)]
    figures: dict[str, float] = {}
    for name, (total, count, correct, spelling) in sums.items():
        if not count:
            raise UserError("The encoder knows no token of this text, so there is nothing to predict.")
        means = {"loss": total / count, "accuracy": correct / count, "spelling": spelling / count}
        figures |= {f"{name}_{key}": value for key, value in means.items() if value == value}
    per_byte = data.maker.predictions_per_byte(steps.windows)
    figures |= objective.report(figures, per_byte=per_byte)
    return {"documents": store.meta["documents"], "bytes": store.meta["bytes"], **figures}
