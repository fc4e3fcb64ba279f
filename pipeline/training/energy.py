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
    """Reads the counters when training begins, and again whenever a checkpoint or the metrics are written."""

    def __init__(self) -> None:
        self.begin: tuple[float, dict[str, float]] | None = None
        self.earlier: dict[str, Any] = {}  # of the parts of a resumed run

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        device = trainer.strategy.root_device
        if device.type in ("cpu", "cuda"):  # no counter, and no estimate, of other devices
            self.gpu = (device.index or 0) if device.type == "cuda" else None
            self.begin = (time.process_time(), counters(self.gpu))

    def metrics(self) -> dict[str, Any]:
        """`energy_wh` of the run so far, and `energy_source`: nvml, rapl, or estimate if a part of it is one."""
        if self.begin is None:
            return self.earlier
        processor, before = self.begin
        after = counters(self.gpu)
        joules = sum(after[name] - value for name, value in before.items() if after.get(name, 0.0) >= value)
        source = ("rapl" if self.gpu is None else "nvml") if joules else "estimate"
        if not joules and self.gpu is not None:
            return {}
        joules = joules or (time.process_time() - processor) * WATTS_PER_CORE
        source = "estimate" if "estimate" in (source, self.earlier.get("energy_source")) else source
        return {"energy_wh": self.earlier.get("energy_wh", 0.0) + round(joules / 3600, 4), "energy_source": source}

    def state_dict(self) -> dict[str, Any]:
        return self.metrics()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.earlier = dict(state_dict)


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
