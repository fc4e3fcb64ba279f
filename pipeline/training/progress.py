"""The progress bar of a run, and running without output."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from pipeline.console.progress import progress, write
from pipeline.storage.atomic import new_file
from pipeline.tracking.amounts import rounded

HIDDEN = ("_spelling", "standard_error", "support")  # ends of names of metrics that are no progress


class Progress(ProgressBar):
    """One bar for the whole run: losses, tokens and their rate, remaining time; a line for each validation."""

    def __init__(self) -> None:
        super().__init__()
        self.bar: tqdm | None = None
        self.is_enabled = True  # read by Lightning

    def disable(self) -> None:
        self.is_enabled = False

    def enable(self) -> None:
        self.is_enabled = True

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        if self.is_enabled and trainer.is_global_zero:
            self.started = self.shown = time.monotonic()
            self.tokens = int(module.tokens_seen)
            bar = progress(total=trainer.max_steps, initial=trainer.global_step, desc=module.stage, unit="step")
            self.bar = None if bar.disable else bar

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *args: Any) -> None:
        if self.bar is not None and trainer.global_step > self.bar.n:
            if time.monotonic() - self.shown >= self.bar.mininterval:
                self._show(module)
            self.bar.update(trainer.global_step - self.bar.n)

    def _show(self, module: Any) -> None:
        """Shows losses and rate, which are fetched from the device only when the bar is drawn."""
        assert self.bar is not None
        self.shown, tokens = time.monotonic(), int(module.tokens_seen)
        rate = (tokens - self.tokens) / max(1e-9, self.shown - self.started)
        losses = {f"{name}_loss": float(loss) for name, loss in module.last_losses.items()}
        parts = [formatted(module, losses), f"{tqdm.format_sizeof(tokens)} tokens", f"{rate:,.0f} tokens/s"]
        self.bar.set_postfix_str(", ".join(parts), refresh=False)

    def on_validation_end(self, trainer: lightning.Trainer, module: Any) -> None:
        if self.bar is not None and not trainer.sanity_checking:
            metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
            self._show(module)  # printing redraws the bar
            self.print(f"step {trainer.global_step:,}: {formatted(module, validated(module, metrics))}")

    def print(self, *args: Any, **kwargs: Any) -> None:
        write(" ".join(map(str, args)))

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        if self.bar is not None:
            self._show(module)
        self._close()

    def on_exception(self, *args: Any) -> None:
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def validated(module: Any, metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a validation that show progress: those that its objective names, or all but details."""
    named = {name.removeprefix("val/"): value for name, value in metrics.items() if name.startswith("val/")}
    if shown := module.shown:
        return {name: named[name] for name in shown if name in named}
    if sum(name.endswith("_loss") for name in named) == 1:  # which is the whole
        named.pop("loss", None)
    return {name: value for name, value in named.items() if not name.endswith(HIDDEN)}


def formatted(module: Any, metrics: Mapping[str, float]) -> str:
    """`mlm_loss 4.639 (unigram 5.36), ...`: losses beside their baseline."""
    baseline = {f"{name}_loss": f" (unigram {value:.2f})" for name, value in module.loss_baseline.items()}
    return ", ".join(f"{name} {rounded(value)}{baseline.get(name, '')}" for name, value in metrics.items())


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Sends standard output and error into a file, so that of many runs only their common bar is shown."""
    with new_file(log) as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield
