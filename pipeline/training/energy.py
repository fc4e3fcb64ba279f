"""The energy of training: as counters of the hardware have it where they can be read, otherwise an estimate.

Counters are of all processor packages (RAPL) or of the run's GPUs (NVML), those of this machine: they include what
other programs use at the same time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import torch

RAPL = Path("/sys/class/powercap")
WATTS_PER_CORE = 10.0  # of a busy core with its share of memory and fans: servers have 5 to 15


class Energy(lightning.Callback):
    """Reads the counters when training begins, and again whenever a checkpoint or the metrics are written."""

    def __init__(self) -> None:
        self.begin: float | None = None  # seconds of the processor
        self.processes = 1  # of this machine, which all do the same work
        self.gpus: list[int] = []
        self.before: dict[str, Counter] = {}
        self.joules = 0.0
        self.earlier: dict[str, Any] = {}  # of the parts of a resumed run

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        kind = trainer.strategy.root_device.type
        if kind in ("cpu", "cuda"):  # no counter, and no estimate, of other devices
            self.gpus = list(trainer.device_ids) if kind == "cuda" else []
            self.processes = trainer.num_devices if kind == "cpu" else 1
            self.begin, self.before, self.joules = time.process_time(), counters(self.gpus), 0.0

    def _read(self) -> None:
        """Adds what the counters have counted since they were read last."""
        now = counters(self.gpus)
        for name, before in self.before.items():
            if name in now:
                used = now[name].joules - before.joules
                self.joules += used if used >= 0 else max(0.0, used + before.most)  # it has begun again at 0
        self.before = now

    def metrics(self) -> dict[str, Any]:
        """`energy_wh` of the run so far, and `energy_source`: nvml, rapl, or estimate if a part of it is one."""
        if self.begin is None:
            return self.earlier
        self._read()
        source = ("nvml" if self.gpus else "rapl") if self.joules else "estimate"
        if not self.joules and self.gpus:
            return {}
        joules = self.joules or (time.process_time() - self.begin) * WATTS_PER_CORE * self.processes
        source = "estimate" if "estimate" in (source, self.earlier.get("energy_source")) else source
        return {"energy_wh": self.earlier.get("energy_wh", 0.0) + round(joules / 3600, 4), "energy_source": source}

    def state_dict(self) -> dict[str, Any]:
        return self.metrics()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.earlier = dict(state_dict)


class Counter(NamedTuple):
    """Joules since some moment, and the number with which the counter begins again at 0."""

    joules: float
    most: float = 0.0


def counters(gpus: Sequence[int]) -> dict[str, Counter]:
    """Counters of these GPUs, or without any of all processor packages; none where they are hidden."""
    if gpus:
        return _gpu_counters(gpus)
    found = {}
    for folder in sorted(RAPL.glob("intel-rapl:*")) if RAPL.is_dir() else ():
        with contextlib.suppress(OSError, ValueError):  # on most systems only root may read it
            if (folder / "name").read_text().startswith("package"):  # others are parts of one, or the whole machine
                numbers = [int((folder / name).read_text()) / 1e6 for name in ("energy_uj", "max_energy_range_uj")]
                found[folder.name] = Counter(*numbers)
    return found


def _gpu_counters(gpus: Sequence[int]) -> dict[str, Counter]:
    try:
        import pynvml  # of the package nvidia-ml-py
    except ImportError:
        return {}
    found = {}
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for gpu in gpus:  # NVML numbers all of the machine, torch those of CUDA_VISIBLE_DEVICES
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(gpu).uuid}")
            found[f"gpu {gpu}"] = Counter(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
    return found
