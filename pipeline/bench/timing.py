"""Interleaved timing of candidates, each in its own process.

A process has its own weights and its own settings of torch and of the C library, as a user's would. The load of the
machine affects all candidates alike, since their steps alternate.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from pipeline.errors import UserError
from pipeline.training.hardware import keep_memory, measured_peak

Row = dict[str, Any]  # of bench.csv
SPAWN = multiprocessing.get_context("spawn")


@dataclass
class Built:
    """The objects that a candidate has built.

    Attributes:
        step: one whole training step.
        losses: precision -> loss of the same batch before any update, without dropout, where it is comparable.
        flops: floating point operations of a step's matrix products; 0 where they are not counted.
        device: on which it trains.
        dtype: of the matrix products.
        result: what a step makes, where it is compared.
    """

    step: Callable[[], Any]
    losses: dict[str, float] = field(default_factory=dict)
    flops: float = 0.0
    device: str = "cpu"
    dtype: torch.dtype = torch.bfloat16
    result: Any = None


@dataclass
class Candidate:
    """An implementation to time: its name, and a function that builds it in its own process.

    Attributes:
        ours: whether it runs with the settings of our commands.
    """

    name: str
    build: Callable[[], Built]
    ours: bool = False


@dataclass
class Result:
    """Measurements of a candidate.

    Attributes:
        seconds: of each step.
        peak: FLOP/s of plain matrix products, measured between the steps.
        memory: most bytes of the GPU; 0 on processors.
        result: of a step, where it is compared.
    """

    seconds: list[float]
    losses: dict[str, float]
    flops: float
    peak: float
    memory: float
    result: Any = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def share_of_peak(self) -> float:
        return self.flops / self.median / self.peak if self.flops else 0.0


def _serve(pipe: Connection, candidate: Candidate) -> None:
    if candidate.ours:
        keep_memory()
    built = candidate.build()
    device = torch.device(built.device)
    for _ in range(2):
        built.step()
    pipe.send((built.losses, built.flops, built.result))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    memory = 0.0
    while pipe.recv():
        begin = time.perf_counter()
        built.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        if device.type == "cuda" and not memory:  # before the large products of measured_peak
            memory = torch.cuda.max_memory_allocated()
        pipe.send((seconds, measured_peak(built.dtype, device) if built.flops else 0.0))
    pipe.send(memory)


def _receive(pipe: Any, name: str, *, asked: bool | None = None) -> Any:
    """What a process sends, to `asked` where it waits for one more step or the end."""
    try:
        if asked is not None:
            pipe.send(asked)
        return pipe.recv()
    except (EOFError, OSError):
        raise UserError(f"The process of '{name}' died; its error is shown above.") from None


def interleave(candidates: list[Candidate], *, rounds: int) -> dict[str, Result]:
    """Times the steps of the candidates, one of each in turn.

    Raises:
        UserError: the process of a candidate died.
    """
    pipes = {}
    for candidate in candidates:
        pipe, other = SPAWN.Pipe()
        SPAWN.Process(target=_serve, args=(other, candidate), daemon=True).start()
        other.close()
        pipes[candidate.name] = pipe
    built = {name: _receive(pipe, name) for name, pipe in pipes.items()}
    seconds: dict[str, list[float]] = {name: [] for name in pipes}
    peaks: dict[str, list[float]] = {name: [] for name in pipes}
    for _ in range(rounds):
        for name, pipe in pipes.items():
            taken, peak = _receive(pipe, name, asked=True)
            seconds[name].append(taken)
            peaks[name].append(peak)
    results = {}
    for name, pipe in pipes.items():
        memory = _receive(pipe, name, asked=False)
        losses, flops, made = built[name]
        peak = statistics.median(peaks[name])
        results[name] = Result(seconds[name], losses, flops, peak, memory=memory, result=made)
    return results


def compared(work: str, against: str, ours: float, theirs: float, *, unit: str = "tokens/s", **more: float) -> Row:
    """A row of bench.csv: both speeds, and how many times as fast ours is."""
    speeds = {"ours": ours, "theirs": theirs, "unit": unit, "ratio": ours / theirs}
    return {"work": work, "against": against, **speeds, **more}


def run_in_subprocess(function: Callable[..., float], *args: Any) -> float:
    """Calls a function in a new process and returns its result."""
    with ProcessPoolExecutor(max_workers=1, mp_context=SPAWN) as pool:
        return pool.submit(function, *args).result()
