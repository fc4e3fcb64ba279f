"""The progress bar of a run, and running without output."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from pipeline.storage.atomic import new_file


class Progress(ProgressBar):
    """One bar for the whole run: loss, tokens per second, remaining time; a line for each validation."""

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
            terminal = sys.stderr.isatty()
            self.bar = tqdm(
                total=trainer.max_steps,
                initial=trainer.global_step,
                desc=module.stage,
                unit="step",
                mininterval=0.5 if terminal else 30,
                dynamic_ncols=terminal,
            )

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *args: Any) -> None:
        if self.bar is not None and trainer.global_step > self.bar.n:
            if time.monotonic() - self.shown >= self.bar.mininterval:
                self._show(module)
            self.bar.update(trainer.global_step - self.bar.n)

    def _show(self, module: Any) -> None:
        """Shows loss and rate, which are fetched from the device only when the bar is drawn."""
        assert self.bar is not None
        self.shown = time.monotonic()
        rate = (int(module.tokens_seen) - self.tokens) / max(1e-9, self.shown - self.started)
        self.bar.set_postfix_str(f"loss {float(module.last_loss):.3f}, {rate:,.0f} tokens/s", refresh=False)

    def on_validation_end(self, trainer: lightning.Trainer, module: Any) -> None:
        if self.bar is not None and not trainer.sanity_checking:
            metrics = trainer.callback_metrics.items()
            shown = ", ".join(f"{name[4:]} {float(value):.4g}" for name, value in metrics if name.startswith("val/"))
            self._show(module)  # printing redraws the bar
            self.print(f"step {trainer.global_step:,}: {shown}")

    def print(self, *args: Any, **kwargs: Any) -> None:
        tqdm.write(" ".join(map(str, args)), file=sys.stderr)

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


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Sends standard output and error into a file, so that of many runs only their common bar is shown."""
    with new_file(log) as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield
