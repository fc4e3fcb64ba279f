"""Contenders that take turns, each in a process of its own.

A process has its own weights, its own settings of torch and of the C library, as the process of a user would; and
what the machine does meanwhile hits all of them alike, since one step of each follows the other.
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
from pipeline.training.hardware import keep_memory, matrix_peak

SPAWN = multiprocessing.get_context("spawn")


@dataclass
class Built:
    """What a contender has made.

    Attributes:
        step: one whole training step.
        losses: precision -> loss of the same batch before any update, without dropout, where it can be compared.
        flops: floating point operations of a step's matrix products, where somebody counts them.
        device: where it trains.
        dtype: of the matrix products.
    """

    step: Callable[[], Any]
    losses: dict[str, float] = field(default_factory=dict)
    flops: float = 0.0
    device: str = "cpu"
    dtype: torch.dtype = torch.bfloat16


@dataclass
class Contender:
    """A name, and a function that builds it in its own process.

    Attributes:
        ours: it has the settings of our commands.
    """

    name: str
    build: Callable[[], Built]
    ours: bool = False


@dataclass
class Result:
    """Seconds of each step; `peak`: FLOP/s of plain matrix products, measured in turn with the steps."""

    seconds: list[float]
    losses: dict[str, float]
    flops: float
    peak: float
    memory: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def share_of_peak(self) -> float:
        return self.flops / self.median / self.peak if self.flops else 0.0


def _serve(pipe: Connection, contender: Contender) -> None:
    if contender.ours:
        keep_memory()
    built = contender.build()
    device = torch.device(built.device)
    for _ in range(2):
        built.step()
    pipe.send((built.losses, built.flops))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    memory = 0.0
    while pipe.recv():
        begin = time.perf_counter()
        built.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        if device.type == "cuda" and not memory:  # before the peak's large products
            memory = torch.cuda.max_memory_allocated()
        pipe.send((seconds, matrix_peak(built.dtype, device) if built.flops else 0.0))
    pipe.send(memory)


def _receive(pipe: Any, name: str) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise UserError(f"The process of '{name}' died; its error stands above.") from None


def alternate(contenders: list[Contender], *, rounds: int) -> dict[str, Result]:
    """Steps of each in turn."""
    pipes = {}
    for contender in contenders:
        pipe, other = SPAWN.Pipe()
        SPAWN.Process(target=_serve, args=(other, contender), daemon=True).start()
        other.close()
        pipes[contender.name] = pipe
    built = {name: _receive(pipe, name) for name, pipe in pipes.items()}
    seconds: dict[str, list[float]] = {name: [] for name in pipes}
    peaks: dict[str, list[float]] = {name: [] for name in pipes}
    for _ in range(rounds):
        for name, pipe in pipes.items():
            pipe.send(True)
            taken, peak = _receive(pipe, name)
            seconds[name].append(taken)
            peaks[name].append(peak)
    results = {}
    for name, pipe in pipes.items():
        pipe.send(False)
        losses, flops = built[name]
        results[name] = Result(seconds[name], losses, flops, statistics.median(peaks[name]), memory=pipe.recv())
    return results


def alone(function: Callable[..., float], *args: Any) -> float:
    """What a function returns in a fresh process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=SPAWN) as pool:
        return pool.submit(function, *args).result()
