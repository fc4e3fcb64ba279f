"""The machine: precision, memory and peak speed."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from pipeline.errors import UserError

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


def best_precision(device: str | None = None) -> str:
    """`bf16-mixed` where it is native; else `16-mixed` on a CUDA GPU, `32-true` on a processor and on Apple's GPU."""
    if device == "mps":
        return "32-true"
    if torch.cuda.is_available() and device != "cpu":
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "16-mixed"
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        flags = ""
    return "bf16-mixed" if "avx512_bf16" in flags or "amx_bf16" in flags else "32-true"


def device_name(device: torch.device) -> str:
    """The name of a GPU, or of the processor with the number of threads in use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    try:
        [name, *_] = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    except (OSError, ValueError):
        name = platform.processor() or platform.machine() or "processor"
    threads = torch.get_num_threads()
    return f"{' '.join(name.split())}, {threads} thread{'s' if threads > 1 else ''}"


def memory() -> float:
    """Bytes of the machine's memory; infinite where the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return math.inf


def bytes_of_weights(make: Callable[[], Any]) -> float:
    """Bytes of the parameters that a function makes, without allocating them: it runs on torch's `meta` device.

    Tensors have no values there, so a function that reads one of them ends early; by then its parameters are made.
    """
    parameters: dict[int, nn.Parameter] = {}

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.is_meta:
            parameters[id(parameter)] = parameter

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            make()
    except NotImplementedError:  # a value was read
        pass
    except (RuntimeError, TypeError) as error:
        if "overflow" in str(error).lower():  # more than 64 bits can count
            return math.inf
    finally:
        hook.remove()
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())


def check_size(make: Callable[[], Any], what: str) -> None:
    """Refuses a network whose weights alone exceed the machine's memory, before they are allocated.

    Args:
        make: builds the network.
        what: the settings of its sizes, for the message.

    Raises:
        UserError: it does not fit; says how much memory it needs.
    """
    needed, available = bytes_of_weights(make), memory()
    if needed > available:
        about = "more memory than can be counted" if math.isinf(needed) else f"about {in_bytes(needed)}"
        raise UserError(
            f"The weights alone would need {about}; this machine has {in_bytes(available)}. Lower the sizes in {what}."
        )


def in_bytes(count: float) -> str:
    """A number of bytes, rounded, with its unit."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = min(int(math.log(max(count, 1), 1000)), len(units) - 1)
    return f"{count / 1000**power:,.0f} {units[power]}"


def keep_memory() -> None:
    """Lets the C library keep freed memory instead of returning it to the system after every step.

    A step frees and allocates the same few hundred megabytes each time, and the system zeroes new pages one by one.
    With this a step was 1.2 (BERT), 1.1 (GPT) and 1.65 (ELMo) times as fast on two cores, interleaved with the same
    code without it; peak memory stayed the same within 3 %. Only for training: multi-threaded tokenization is slower.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def measured_peak(dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of plain products of square matrices, an upper bound for training steps; takes less than a second."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(8):
        begin = time.perf_counter()
        torch.mm(a, b)
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
        seconds.append(time.perf_counter() - begin)
    return 2 * size**3 / statistics.median(seconds[2:])


matrix_peak = functools.cache(measured_peak)  # once in a process, however many runs a grid has
