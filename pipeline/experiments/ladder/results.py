"""The results of a ladder, as ladder.json has them: a row for each model, mixtures of pairs, a text token by token."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from pipeline import encoders
from pipeline.data.store_builder import FORMAT
from pipeline.experiments.conditions import CONDITIONS, value_of
from pipeline.experiments.ladder import measures
from pipeline.experiments.ladder.claims import claims_of
from pipeline.experiments.ladder.plan import BITS, Plan
from pipeline.experiments.ladder.rungs import Ladder, Rung
from pipeline.experiments.ladder.training import Trained
from pipeline.inspection.context_loss import loss_by_context
from pipeline.inspection.mixture import mix
from pipeline.inspection.token_log_probs import TokenLogProbs
from pipeline.models.base import Encoder
from pipeline.models.folder import FILES
from pipeline.storage.checksums import digest, file_hash
from pipeline.tokenization.base import Tokenizer
from pipeline.tracking.history import History, read_metrics

Results = dict[str, Any]  # the content of ladder.json
Row = dict[str, Any]  # a model


class Found:
    """What is known so far of the models of a ladder.

    Args:
        folder: where measures are kept.
        blimp: the folder of minimal pairs; None: they are not asked.
    """

    def __init__(self, ladder: Ladder, folder: Path, *, blimp: Path | None) -> None:
        self.ladder, self.folder, self.blimp = ladder, folder, blimp
        self.plans: dict[str, Plan] = {}
        self.rows: dict[str, Row] = {}
        self.scores: dict[str, TokenLogProbs] = {}
        self.nats: dict[str, list[float]] = {}
        self.mixed: dict[tuple[str, str], dict[str, Any]] = {}
        self.runs: list[dict[str, Any]] = []

    def add(self, plan: Plan, trained: Trained) -> Row:
        """Measures a model; returns its row."""
        name, data, metrics = plan.rung.name, plan.data, trained.metrics
        self.plans[name] = plan
        self.runs += [metrics, *map(read_metrics, trained.folders[1:])]
        models = [
            Measured(plan, encoder, self.folder, f"{name}-seed-{seed}" if seed else name)
            for seed, encoder in enumerate(trained.encoders)
        ]
        model, scores = models[0], [model.scores() for model in models]
        self.scores[name], self.nats[name] = scores[0], model.nats(self.paragraph)
        flops = 0 if plan.is_counting else model.step_flops()
        self.rows[name] = row_of(
            plan.rung,
            scores,
            data.tokenizer,
            folder=str(trained.encoders[0]),
            parameters=metrics["parameters"],
            seconds=metrics["seconds"],
            flops=flops * metrics["steps"],
            steps=metrics["steps"],
            tokens=metrics["tokens"],
            learning_rate=trained.rate,
            rates=trained.rates,
            history=[] if plan.is_counting else history_of(trained, plan, flops),
            validation_rows_bits_per_byte=metrics[BITS],
            blimp=None if self.blimp is None else model.blimp(self.blimp),
            continuation=model.continuation(self.ladder),
        )
        return self.rows[name]

    @cached_property
    def first(self) -> Plan:
        return next(iter(self.plans.values()))

    @cached_property
    def paragraph(self) -> list[int]:
        """The tokens of a held-out text."""
        if not (self.ladder.paragraph and self.ladder.one_tokenizer):
            return []
        return measures.paragraph(self.first.data.valid, min(self.ladder.paragraph, self.first.data.length - 1))

    @cached_property
    def published_blimp(self) -> list[dict[str, Any]]:
        return [] if self.blimp is None else measures.published_blimp(self.blimp)

    def results(self) -> Results:
        """The content of ladder.json."""
        rungs = {rung.name: rung for rung in self.ladder.rungs}
        rows = [self._uniform(rung) if rung.model is None else self.rows.get(name) for name, rung in rungs.items()]
        models = [row for row in rows if row is not None]
        mark_counting(models)
        results = {**self._about(), "models": models, "mixtures": self._mixtures(), "paragraph": None}
        if self.paragraph:
            tokenizer = self.first.data.tokenizer
            uniform = [math.log(len(tokenizer))] * len(self.paragraph)
            nats = {row["name"]: self.nats.get(row["name"], uniform) for row in models}
            results["paragraph"] = {"tokens": measures.texts_of(tokenizer, self.paragraph), "nats": nats}
        results["prompt"] = self.ladder.prompt
        results["published_blimp"] = self.published_blimp
        return {**results, "claims": claims_of(results)}

    def _about(self) -> dict[str, Any]:
        data = self.first.data
        return {
            "corpus": Path(str(self.ladder.corpus)).name,
            "tokenizer": about_tokenizer(data.tokenizer) if self.ladder.one_tokenizer else None,
            "train_tokens": data.train.meta["tokens"],
            "train_bytes": data.train.raw_bytes,
            "validation_tokens": data.valid.meta["tokens"],
            "validation_bytes": data.valid.raw_bytes,
            **{name: value_of(self.runs, name) for name in CONDITIONS},
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _uniform(self, rung: Rung) -> Row:
        """The uniform distribution over the pieces of the tokenizer."""
        same, tokenizer = self.scores[self.first.rung.name], self.first.data.tokenizer
        scores = replace(same, log_probs=np.full(len(same), -math.log(len(tokenizer)), np.float32))
        drawn = None if self.ladder.prompt is None else measures.random_tokens(tokenizer, self.ladder.continuation)
        nothing = dict.fromkeys(("parameters", "seconds", "flops", "steps", "tokens"), 0)
        return row_of(rung, [scores], tokenizer, **nothing, continuation=drawn)

    def _mixtures(self) -> list[dict[str, Any]]:
        """Every pair of models, each fitted on the first half of the validation text and scored on the second."""
        if not (self.ladder.mixtures and self.ladder.one_tokenizer):
            return []
        for pair in itertools.combinations(self.scores, 2):
            if pair not in self.mixed:
                mixture = mix(*(self.scores[name] for name in pair))
                self.mixed[pair] = {
                    "models": list(pair),
                    "weight": mixture.weight,
                    "bits_per_byte": mixture.bits_per_byte[2],
                    "better_half": pair[mixture.better_half],
                    "gain": mixture.gain,
                    "interval": list(mixture.interval),
                }
        return list(self.mixed.values())


class Measured:
    """A trained model and its measures, which are made once.

    Args:
        folder: of its encoder, which is opened when a measure is missing.
        kept: folder of the measures.
    """

    def __init__(self, plan: Plan, folder: Path, kept: Path, name: str) -> None:
        self.plan, self.folder = plan, folder
        of_encoder = [file_hash(folder / name) for name in FILES]
        key = digest(of_encoder, plan.data.parts_hash, FORMAT, plan.data.length)
        self.kept = measures.Kept(kept, name, key)

    @cached_property
    def encoder(self) -> Encoder:
        return encoders.load_with_heads(self.folder)

    def scores(self) -> TokenLogProbs:
        return self.kept.scores(lambda: measures.scores_of(self.encoder, self.plan.data))

    def nats(self, ids: list[int]) -> list[float]:
        return self.kept.value("nats", ids, lambda: measures.nats_of(self.encoder, ids)) if ids else []

    def continuation(self, ladder: Ladder) -> str | None:
        prompt, tokens = ladder.prompt, ladder.continuation
        if prompt is None:
            return None
        made = lambda: measures.continuation(self.encoder, prompt, tokens)  # noqa: E731
        return self.kept.value("continuation", [prompt, tokens], made)

    def blimp(self, folder: Path) -> dict[str, Any]:
        files = [file_hash(file) for file in sorted(folder.rglob("*.jsonl*"))]
        return self.kept.value("blimp", files, lambda: measures.blimp(self.encoder, folder))

    def step_flops(self) -> int:
        return self.kept.value("flops", None, lambda: measures.step_flops(self.encoder, self.plan.data))


def row_of(rung: Rung, scores: Sequence[TokenLogProbs], tokenizer: Tokenizer, **known: Any) -> Row:
    """A model of ladder.json: bits per byte and perplexity are means over seeds, all else is of the first one."""
    by_seed = [seed.bits_per_byte for seed in scores]
    bits = fmean(by_seed)
    return {
        **{name: getattr(rung, name) for name in ("name", "title", "year", "source", "kind", "axes")},
        "folder": None,
        "tokenizer": about_tokenizer(tokenizer),
        "bits_per_byte": bits,
        "perplexity": fmean(seed.perplexity for seed in scores),
        "by_seed": by_seed,
        "learning_rate": None,
        "rates": [],
        "history": [],
        "validation_rows_bits_per_byte": bits,
        "beats_counting": None,
        "by_context": [[bucket.first, bucket.last, bucket.loss] for bucket in loss_by_context(scores[0])],
        "blimp": None,
        **known,
    }


def about_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    return {"scheme": tokenizer.scheme, "vocabulary": len(tokenizer)}


def history_of(trained: Trained, plan: Plan, step_flops: int) -> list[dict[str, Any]]:
    """The validation curve of a run, with what it had cost; seconds are those of the run by the share of its steps."""
    steps, history = trained.metrics["steps"], History(trained.folders[0])
    history.restore(steps)
    return [
        {
            "step": step,
            "tokens": step * plan.step_tokens,
            "seconds": round(trained.metrics["seconds"] * step / steps, 2),
            "flops": step_flops * step,
            "bits_per_byte": bits,
        }
        for step, bits in zip(*history.series(BITS), strict=True)
    ]


def mark_counting(models: list[Row]) -> None:
    """Notes where the curve of each model first falls below the best model that counts, on the same rows."""
    counting = [row["validation_rows_bits_per_byte"] for row in models if row["kind"] == "counting"]
    for row in models:
        below = [point for point in row["history"] if counting and point["bits_per_byte"] < min(counting)]
        cost = ("step", "tokens", "seconds", "flops")
        row["beats_counting"] = {name: below[0][name] for name in cost} if below else None
