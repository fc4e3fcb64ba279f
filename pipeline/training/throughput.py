"""Throughput of training: FLOP/s, the fraction of the machine's peak, and a profile of a few steps."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from pipeline.storage.atomic import write_atomically
from pipeline.training.hardware import matrix_peak


def _recurrent(factor: int) -> Any:
    """The count of a recurrent layer that is one operation, from the shapes of its input (T, B, D) and weights."""

    def flops(inputs: Any, *weights: Any, **_: Any) -> int:
        matrices = weights[0] if isinstance(weights[0], list) else weights[:2]
        products = sum(math.prod(shape) for shape in matrices if shape is not None and len(shape) == 2)
        return factor * 2 * math.prod(inputs[:-1]) * products

    return flops


def _attention(count: Any, tensors: int) -> Any:
    """The count of attention on a processor, from the shapes of its first tensors."""
    return lambda *shapes, **_: count(*shapes[:tensors])


def _nothing(*_: Any, **__: Any) -> int:
    """The count of what has no matrix product."""
    return 0


# What torch leaves out. It counts RNN and GRU on processors, whose products are special operations there.
KERNELS = {
    torch.ops.aten.mkldnn_rnn_layer: _recurrent(1),
    torch.ops.aten.mkldnn_rnn_layer_backward: _recurrent(2),
    torch.ops.aten._cudnn_rnn: _recurrent(1),
    torch.ops.aten._cudnn_rnn_backward: _recurrent(2),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention(sdpa_flop_count, 3),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention(sdpa_backward_flop_count, 4),
}

# The counter writes an operation as several others where torch can, unless it is listed. Here the last bits are others
# then, and a run whose first step is counted again, as it is resumed, would not end with the same weights.
WHOLE = (torch.ops.aten.silu_backward.default, torch.ops.aten.mish_backward.default)


def flop_counter() -> FlopCounterMode:
    """Counts the operations of matrix products, also of those within kernels for layers; changes no result."""
    return FlopCounterMode(display=False, custom_mapping=KERNELS | dict.fromkeys(WHOLE, _nothing))


PRODUCTS = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64}  # by the beginning of a precision


class Speed(lightning.Callback):
    """Logs the FLOP/s of this process, padding and recomputed layers included, without validation and saving.

    Attributes:
        peak: FLOP/s of plain matrix products, measured at the start.
        per_position: floating point operations of the matrix products of a position, forward and backward, counted in
            the first step.
    """

    def __init__(self) -> None:
        self.peak = self.per_position = 0.0
        self.counted = False
        self.seconds, self.waited, self.positions = 0.0, 0.0, 0
        self.counting = ExitStack()

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        kind = str(trainer.precision).partition("-")[0]
        self.peak = matrix_peak(PRODUCTS.get(kind, torch.float32), module.device)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if not self.counted:
            self.counter = self.counting.enter_context(flop_counter())
        self.begin = time.perf_counter()

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.counting.close()  # Muon's own products are not the network's

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not self.counted:  # counting makes the first step slow: it is not timed
            self.counting.close()
            self.counted = True
            self.per_position = self.counter.get_total_flops() / batch.mask.numel()
            self.waited_before = trainer.train_dataloader.waited
            return
        self.seconds += time.perf_counter() - self.begin
        self.positions += batch.mask.numel()
        self.waited = trainer.train_dataloader.waited - self.waited_before
        whole = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if whole and trainer.global_step % trainer.log_every_n_steps == 0 and trainer.is_global_zero:
            module.log_all(self.metrics())

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self.counting.close()

    def metrics(self) -> dict[str, float]:
        """`flops_per_second`, `share_of_peak`, and `data_share`: the fraction of time spent waiting for batches."""
        whole = self.seconds + self.waited
        if not whole:
            return {}
        achieved = self.per_position * self.positions / whole
        share = achieved / self.peak
        return {"flops_per_second": achieved, "share_of_peak": share, "data_share": self.waited / whole}

    def __str__(self) -> str:
        metrics = self.metrics()
        if not metrics:
            return "Speed: too few steps to measure."
        rate, share, waiting = metrics.values()
        return (
            f"Speed: {rate / 1e9:,.0f} GFLOP/s, {share:.0%} of what plain matrix products reach here; "
            f"{waiting:.1%} of the time waiting for batches"
        )


class Profile(lightning.Callback):
    """Profiles a few steps by torch.profiler: a table of operations, and a trace for chrome://tracing.

    Args:
        folder: where `profile.txt` and `trace.json` are written.
    """

    SKIPPED, STEPS = 5, 5  # steps before the profile, and in it

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, 0

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        self.on_cuda = trainer.strategy.root_device.type == "cuda"
        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.on_cuda
        # Without shapes: recording them keeps tensors alive, so that each step takes new memory and is slower.
        self.profiler = profile(activities=kinds, acc_events=True)

    def on_train_batch_start(self, *args: Any) -> None:
        if self.seen == self.SKIPPED:
            self.profiler.start()
        self.seen += 1

    def on_train_batch_end(self, trainer: lightning.Trainer, *args: Any) -> None:
        if self.seen == self.SKIPPED + self.STEPS:
            self.profiler.stop()
            if not trainer.is_global_zero:
                return
            by = "self_cuda_time_total" if self.on_cuda else "self_cpu_time_total"
            self.table = self.profiler.key_averages().table(sort_by=by, row_limit=30, max_name_column_width=60)
            write_atomically(self.folder / "profile.txt", self.table + "\n")
            self.profiler.export_chrome_trace(str(self.folder / "trace.json"))
