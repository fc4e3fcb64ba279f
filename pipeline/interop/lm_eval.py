"""Any encoder as a model of lm-evaluation-harness: `python -m pipeline lm-eval --tasks ... --from DIR`.

A causal model gives the log-likelihoods of lm-eval's own `hf` model, a masked one pseudo-log-likelihoods, a
bidirectional one those of its forward language model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.prompting.causal import CausalScorer
from pipeline.prompting.requests import Request, beginning
from pipeline.prompting.scoring import score, scorer_of
from pipeline.storage.atomic import first_line
from pipeline.tracking.tables import markdown_table

MOST_TOKENS = 256  # that a text is generated to, where a task does not say: as lm-eval's own models


class PipelineLM(LM):
    """An encoder behind lm-eval's interface."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(nats, whether each token was the likeliest) of continuations after contexts."""
        pairs = [Request(*request.args) for request in requests]
        with tqdm(total=len(pairs), desc="lm-eval", unit="text", disable=disable_tqdm) as bar:
            results = score(self.encoder, pairs, both_ways=False, progress=bar.update)
        return [(scored.total, scored.greedy) for scored in results]

    @torch.no_grad()
    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Nats of whole texts, those longer than the positions in windows: a causal model's as lm-eval cuts them."""
        texts, scorer = [request.args[0] for request in requests], scorer_of(self.encoder)
        if not isinstance(scorer, CausalScorer):
            windows = [(number, part) for number, text in enumerate(texts) for part in self._windows(text)]
            results = score(self.encoder, [Request("", part) for _, part in windows], both_ways=False)
            totals = [0.0] * len(texts)
            for (number, _), scored in zip(windows, results, strict=True):
                totals[number] += scored.total
            return totals
        prefix, length, totals = self.encoder.tokenizer.id("bos"), self.encoder.max_length, []
        for text in tqdm(texts, desc="lm-eval", unit="text", disable=disable_tqdm):
            [ids] = self.encoder.tokenize([text])
            token_windows = get_rolling_token_windows(
                token_list=ids, prefix_token=prefix, max_seq_len=length, context_len=1
            )
            pairs = [make_disjoint_window(window) for window in token_windows]
            totals.append(sum(scored.total for scored in scorer.score_tokens(pairs, lambda n: None)))
        return totals

    def _windows(self, text: str) -> Iterator[str]:
        while text.strip():
            part = beginning(self.encoder, text, self.encoder.max_length - self.encoder.special.count())
            if self.encoder.tokenize([part])[0]:
                yield part
            text = text[len(part) :]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy text until a stop string, of causal models only."""
        model, texts = self.encoder, []
        for prompt, options in (request.args for request in requests):
            room = min(int(options.get("max_gen_toks", MOST_TOKENS)), model.max_length // 2)
            [ids] = model.tokenize([prompt])
            ids = (ids or [model.tokenizer.id("bos")])[-(model.max_length - room) :]
            text = model.tokenizer.decode(model.generate(ids, tokens=room, temperature=0, top_k=0, top_p=1.0, seed=0))
            stops = options.get("until", [])
            for stop in filter(None, [stops] if isinstance(stops, str) else stops):
                text = text.split(stop)[0]
            texts.append(text)
        return texts


def run(encoder: Encoder, tasks: list[str], *, limit: int, include: Path | None) -> str:
    """lm-eval's table for tasks, by name or from YAML files in a folder.

    Raises:
        UserError: no such task, or its data cannot be read.
    """
    manager = TaskManager(include_path=None if include is None else str(include), verbosity="ERROR")
    if missing := [task for task in tasks if task not in manager.all_tasks]:
        raise UserError(f"lm-eval has no task '{missing[0]}'; --include-path names a folder with further ones.")
    options: dict[str, Any] = {"limit": limit or None, "bootstrap_iters": 100, "task_manager": manager}
    try:
        results = simple_evaluate(model=PipelineLM(encoder), tasks=tasks, **options)
    except (OSError, ValueError) as error:
        raise UserError(f"lm-eval cannot run this: {first_line(error)}.") from None
    return table(results)


def table(results: Mapping[str, Any]) -> str:
    """A row for each task, filter and metric. (In lm-eval's own, an older pytablewriter leaves out the header.)"""
    rows = []
    for task, metrics in results["results"].items():
        for key, value in metrics.items():
            name, _, rule = key.partition(",")
            if rule and not name.endswith("_stderr"):
                error = metrics.get(f"{name}_stderr,{rule}")
                shots = str(results["n-shot"].get(task, ""))
                rows.append(
                    [task, rule, shots, name, f"{value:.4f}", f"{error:.4f}" if isinstance(error, float) else ""]
                )
    return markdown_table(["task", "filter", "shots", "metric", "value", "standard error"], rows)
