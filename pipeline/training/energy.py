"""The energy of training: as counters of the hardware have it where they can be read, otherwise an estimate.

Counters are of the whole package (RAPL) or GPU (NVML): they include what other programs use at the same time.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import lightning

RAPL = Path("/sys/class/powercap")
WATTS_PER_CORE = 10.0  # of a busy core with its share of memory and fans: servers have 5 to 15


class Energy(lightning.Callback):
    """Reads the counters when training begins, and again when it is asked."""

    def __init__(self) -> None:
        self.begin: tuple[float, float, dict[str, float]] | None = None

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        device = trainer.strategy.root_device
        self.gpu = (device.index or 0) if device.type == "cuda" else None
        self.is_known = device.type in ("cpu", "cuda")  # no counter, and no estimate, of other devices
        self.begin = (time.monotonic(), time.process_time(), counters(self.gpu))

    def metrics(self, seconds: float) -> dict[str, Any]:
        """`energy_wh` of a run, and `energy_source`: nvml, rapl or estimate.

        Args:
            seconds: of the whole run; where this process trained a part of it, the rest is estimated from that.
        """
        if self.begin is None or not self.is_known:
            return {}
        began, processor, before = self.begin
        here, after = time.monotonic() - began, counters(self.gpu)
        joules = sum(after[name] - value for name, value in before.items() if after.get(name, 0.0) >= value)
        source = ("rapl" if self.gpu is None else "nvml") if joules else "estimate"
        if not joules and self.gpu is not None:
            return {}
        joules = joules or (time.process_time() - processor) * WATTS_PER_CORE
        share = seconds / here if here else 1.0
        if share > 1.05:  # earlier parts of a resumed run
            joules, source = joules * share, "estimate"
        return {"energy_wh": round(joules / 3600, 4), "energy_source": source}


def counters(gpu: int | None) -> dict[str, float]:
    """Joules since some moment, by counter: of one GPU, or of all processor packages; none where they are hidden."""
    if gpu is not None:
        return _gpu_counter(gpu)
    found = {}
    for folder in sorted(RAPL.glob("intel-rapl:*")) if RAPL.is_dir() else ():
        if folder.name.count(":") == 1:  # a package; what has two is a part of one
            with contextlib.suppress(OSError, ValueError):  # on most systems only root may read it
                found[folder.name] = int((folder / "energy_uj").read_text()) / 1e6
    return found


def _gpu_counter(gpu: int) -> dict[str, float]:
    try:
        import pynvml  # of the package nvidia-ml-py
    except ImportError:
        return {}
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
        return {f"gpu {gpu}": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3}
    return {}
