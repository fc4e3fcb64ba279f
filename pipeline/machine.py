"""What the machine can do, and how a process asks it for memory."""

from __future__ import annotations

import ctypes
import platform
import statistics
import time
from pathlib import Path

import torch

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
