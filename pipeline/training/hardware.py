"""What the machine can do and hold, and how a process asks it for memory."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from pipeline.errors import UserError

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


def best_precision(device: str | None = None) -> str:
    """bf16 where the processor (or the GPU, if there is one) multiplies it natively, else float32."""
    if torch.cuda.is_available() and device != "cpu":
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        flags = ""
    return "bf16-mixed" if "avx512_bf16" in flags or "amx_bf16" in flags else "32-true"


def memory() -> float:
    """Bytes of the machine's memory; without end where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return math.inf


def bytes_of_weights(make: Callable[[], Any]) -> float:
    """How many bytes the parameters take that a function makes, without taking them: it runs on torch's `meta` device.

    There numbers are missing, so that what looks at one of them ends the function, after its parameters are made.
    """
    found: dict[int, nn.Parameter] = {}

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.is_meta:
            found[id(parameter)] = parameter

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            make()
    except NotImplementedError:  # a number is looked at
        pass
    except (RuntimeError, TypeError) as error:
        if "overflow" in str(error).lower():  # more than 64 bits count
            return math.inf
    finally:
        hook.remove()
    return sum(parameter.numel() * parameter.element_size() for parameter in found.values())


def check_size(make: Callable[[], Any], what: str) -> None:
    """Refuses a network whose weights alone do not fit into the machine's memory, before any are made.

    Args:
        make: builds it.
        what: the settings that it is built from, for the message.

    Raises:
        UserError: how much it would need.
    """
    needed, there = bytes_of_weights(make), memory()
    if needed > there:
        about = "more memory than can be counted" if math.isinf(needed) else f"about {in_bytes(needed)}"
        raise UserError(
            f"The weights alone would need {about}; this machine has {in_bytes(there)}. Lower the sizes in {what}."
        )


def in_bytes(count: float) -> str:
    """A number of bytes, rounded, with its unit."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = min(int(math.log(max(count, 1), 1000)), len(units) - 1)
    return f"{count / 1000**power:,.0f} {units[power]}"


def know_node(num_nodes: int) -> None:
    """Tells a process of another node than the first, before its trainer does, that it is not the main one.

    Lightning reads RANK and its like at its import, but NODE_RANK (or GROUP_RANK) only in a trainer. To a run on one
    node these say nothing: a cluster may set them for every job.
    """
    node = os.environ.get("NODE_RANK", os.environ.get("GROUP_RANK", "0"))
    if num_nodes > 1 and node != "0" and "RANK" not in os.environ:
        rank_zero_only.rank = max(1, getattr(rank_zero_only, "rank", 0))  # type: ignore[attr-defined]


def prepare_nodes(trainer: Any) -> None:
    """Sets how long the machines of a run wait for one another: $PIPELINE_NODE_TIMEOUT minutes, else Lightning's 30.

    Raises:
        UserError: they could never meet, since no port is agreed on, or the time is none.
    """
    if trainer.num_nodes < 2:
        return
    if (text := os.environ.get("PIPELINE_NODE_TIMEOUT")) is not None:
        try:
            minutes = float(text)
        except ValueError:
            minutes = 0
        if not 0 < minutes < 10**6:
            raise UserError(f"PIPELINE_NODE_TIMEOUT is {text}; it must be a number of minutes above 0.")
        trainer.strategy._timeout = timedelta(minutes=minutes)  # of the process group, also where a node is lost later
    if not trainer.strategy.cluster_environment.creates_processes_externally and "MASTER_PORT" not in os.environ:
        raise UserError(
            f"trainer.num_nodes is {trainer.num_nodes}, but no other node could find this one: set MASTER_ADDR and "
            "MASTER_PORT to the same on all of them and NODE_RANK to 0, 1, ..., or start them by SLURM."
        )


def announce_nodes(trainer: Any) -> None:
    """Says where a run of several machines waits for the others, and for how long."""
    if trainer.num_nodes > 1 and trainer.is_global_zero:
        there, longest = trainer.strategy.cluster_environment, getattr(trainer.strategy, "_timeout", None)
        where, minutes = f"{there.main_address}:{there.main_port}", (longest or default_pg_timeout).total_seconds() / 60
        print(f"Waiting for the other nodes at {where}, for at most {minutes:g} minutes ...", flush=True)


def keep_memory() -> None:
    """Lets the C library keep freed memory instead of giving it back to the system after every step.

    A step frees and takes the same few hundred megabytes each time, and fresh pages must be zeroed one by one. Kept,
    a step of BERT was 1.2 times as fast on two cores, GPT's 1.1, ELMo's 1.65 times, in turn with the same code
    without; the most memory that was taken stayed the same within 3 %. For training alone: tokenising in many
    threads is slower with it.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def matrix_peak(dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of plain products of square matrices, the best that steps of training can hope for; measured in < 1 s."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(8):
        begin = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return 2 * size**3 / statistics.median(seconds[2:])
