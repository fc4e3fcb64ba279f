"""What a run leaves behind: history, curves, Weights & Biases, progress bar, checkpoints, final figures."""

from __future__ import annotations

import contextlib
import csv
import json
import netrc
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.loggers import Logger, WandbLogger
from tqdm import tqdm

from pipeline.text import file_hash, write_atomically


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM: a checkpoint has been written. Exit status 130."""


class History(Logger):
    """`metrics.csv`: one row a logging step, all figures as logged; the file is whole at any moment."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.file = folder / "metrics.csv"
        self.rows: dict[int, dict[str, Any]] = {}

    name = "history"
    version = ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass  # config.yaml has them

    def restore(self, step: int) -> None:
        """Takes up the rows of an earlier part of the run, up to the step that is resumed."""
        if self.file.exists():
            with open(self.file, newline="") as file:
                kept = [row for row in csv.DictReader(file) if int(row["step"]) <= step]
            self.rows = {int(row["step"]): {k: v for k, v in row.items() if v and k != "step"} for row in kept}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.setdefault(step or 0, {}).update(metrics)

    def save(self) -> None:
        names = self.names()
        lines = [",".join(["step", *names])]
        lines += [",".join([str(step), *(_number(row.get(name)) for name in names)]) for step, row in self.rows.items()]
        write_atomically(self.file, "\n".join(lines) + "\n")

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows.values() for name in row))

    def series(self, name: str) -> tuple[list[int], list[float]]:
        points = [(step, float(row[name])) for step, row in self.rows.items() if name in row]
        return [step for step, _ in points], [value for _, value in points]

    def finalize(self, status: str) -> None:
        self.save()


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)


def wandb_logger(
    folder: Path, *, job_type: str, group: str, tags: list[str], config: dict[str, Any]
) -> WandbLogger | None:
    """Weights & Biases: offline without a key, never a login prompt; None when WANDB_MODE=disabled."""
    mode = os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline")
    if mode == "disabled":
        return None
    os.environ["WANDB_MODE"] = mode
    os.environ.setdefault("WANDB_SILENT", "true")
    id_file = folder / "wandb" / "run-id"  # a resumed run continues the same W&B run
    if not id_file.exists():
        write_atomically(id_file, uuid.uuid4().hex[:8])
    return WandbLogger(
        project=os.environ.get("WANDB_PROJECT", "pretrain-finetune"),
        save_dir=folder,
        id=id_file.read_text(),
        offline=mode == "offline",
        name=folder.name,
        group=group,
        job_type=job_type,
        tags=tags,
        config=config,
        resume="allow",
    )


def folder_artifact(kind: str, folder: Path) -> Any:
    """A folder as an artifact; its content is its version, so the same folder is the same artifact everywhere."""
    import wandb

    artifact = wandb.Artifact(f"{kind}-{file_hash(folder / 'model.safetensors')[:12]}", type=kind)
    artifact.add_dir(str(folder))
    return artifact


def use_artifact(logger: WandbLogger, encoder: Path) -> None:
    """Declares that a run uses an encoder. Offline, W&B cannot: the run's config has the hash of the weights."""
    if os.environ.get("WANDB_MODE") == "online":
        logger.experiment.use_artifact(folder_artifact("encoder", encoder))


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0]
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class Progress(ProgressBar):
    """One bar over the whole run: loss, tokens a second, remaining time; a line for each validation."""

    def __init__(self) -> None:
        super().__init__()
        self.bar: tqdm | None = None
        self.is_enabled = True  # Lightning asks for it

    def disable(self) -> None:
        self.is_enabled = False

    def enable(self) -> None:
        self.is_enabled = True

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        if self.is_enabled:
            self.started, self.tokens = time.monotonic(), int(module.tokens_seen)
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
            seconds = max(1e-9, time.monotonic() - self.started)
            rate = (int(module.tokens_seen) - self.tokens) / seconds
            self.bar.set_postfix_str(f"loss {module.last_loss:.3f}, {rate:,.0f} tokens/s", refresh=False)
            self.bar.update(trainer.global_step - self.bar.n)

    def on_validation_end(self, trainer: lightning.Trainer, module: Any) -> None:
        if self.bar is not None and not trainer.sanity_checking:
            figures = trainer.callback_metrics.items()
            shown = ", ".join(f"{name[4:]} {float(value):.4g}" for name, value in figures if name.startswith("val/"))
            self.print(f"step {trainer.global_step:,}: {shown}")

    def print(self, *args: Any, **kwargs: Any) -> None:
        tqdm.write(" ".join(map(str, args)), file=sys.stderr)

    def on_train_end(self, *args: Any) -> None:
        self._close()

    def on_exception(self, *args: Any) -> None:
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


class StopCleanly(Callback):
    """Ctrl-C and SIGTERM end the run after the step at hand, with a checkpoint to go on from."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint, self.asked = checkpoint, False
        self.before: dict[int, Any] = {}

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        def ask(signal_number: int, frame: FrameType | None) -> None:
            self.asked = True

        for number in (signal.SIGINT, signal.SIGTERM):
            self.before[number] = signal.signal(number, ask)
        module.between_steps = self.between_steps

    def between_steps(self, trainer: lightning.Trainer) -> None:
        """The module calls this after each whole optimiser step, when it is logged: a place that resumes exactly."""
        assert isinstance(trainer.val_check_batch, int)
        every = trainer.val_check_batch // trainer.accumulate_grad_batches
        if self.asked and trainer.global_step % every:
            trainer.save_checkpoint(self.checkpoint)
            raise Interrupted

    def on_validation_end(self, trainer: lightning.Trainer, *args: Any) -> None:
        if self.asked and trainer.global_step < trainer.max_steps:  # LatestCheckpoint has just saved
            raise Interrupted

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """What is printed meanwhile goes into a file: a run among many leaves the screen to the bar over all."""
    with open(log, "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


def plot_curves(history: History, file: Path, *, floors: dict[str, float], losses: list[str]) -> None:
    """Loss curves with the floor lines, and the learning rate, as one PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(8, 6), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    for name in losses:
        steps, values = history.series(name)
        if steps:
            above.plot(steps, values, label=name, marker="o" if name.startswith("val/") else None, markersize=3)
    for name, value in floors.items():
        above.axhline(value, linestyle="--", color="grey", linewidth=0.8)
        above.annotate(name, (0, value), fontsize=8, color="grey", va="bottom")
    above.set_ylabel("nats")
    above.legend()
    below.plot(*history.series("train/learning_rate"))
    below.set_ylabel("learning rate")
    below.set_xlabel("optimiser step")
    save_figure(figure, file)


def plot_mix(history: History, file: Path) -> None:
    """What each layer counts in the scalar mix, over the run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for name in sorted(name for name in history.names() if name.startswith("mix/layer_")):
        axes.plot(*history.series(name), label=name.removeprefix("mix/"), marker="o", markersize=3)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel("softmax weight of the layer")
    axes.legend()
    save_figure(figure, file)


def plot_confusion(counts: list[list[int]], labels: list[str], file: Path) -> None:
    """Rows: gold, columns: predicted."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = 2.5 + 0.6 * len(labels)
    figure, axes = pyplot.subplots(figsize=(size + 1, size), layout="constrained")
    axes.imshow(counts, cmap="Blues", vmin=0)
    top = max(max(row) for row in counts)
    for i, row in enumerate(counts):
        for j, value in enumerate(row):
            axes.text(j, i, str(value), ha="center", va="center", color="white" if value > top / 2 else "black")
    axes.set_xticks(range(len(labels)), labels, rotation=30)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("predicted")
    axes.set_ylabel("gold")
    save_figure(figure, file)


def plot_types(by_type: dict[str, dict[str, float]], file: Path) -> None:
    """Precision, recall and F1 of each type of span, with how many there are."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = sorted(by_type, key=lambda name: -by_type[name]["support"])
    figure, axes = pyplot.subplots(figsize=(3 + 1.1 * len(names), 4), layout="constrained")
    for place, score in enumerate(("precision", "recall", "f1")):
        positions = [i + 0.27 * (place - 1) for i in range(len(names))]
        bars = axes.bar(positions, [by_type[name][score] for name in names], width=0.25, label=score)
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    axes.set_xticks(range(len(names)), [f"{name}\n({by_type[name]['support']:,})" for name in names])
    axes.set_ylim(0, 1.08)
    axes.set_xlabel("type of span (how many in the test)")
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.12))
    save_figure(figure, file)


def plot_shots(by_shots: dict[int, dict[str, float]], file: Path) -> None:
    """Accuracy by the number of examples in front, with the spread of the templates."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shots = sorted(by_shots)
    means = [by_shots[count]["accuracy"] for count in shots]
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(shots, means, marker="o", label="mean of the templates")
    low, high = ([by_shots[count][f"accuracy_{side}"] for count in shots] for side in ("min", "max"))
    axes.fill_between(shots, low, high, alpha=0.2, label="lowest to highest template")
    if "chance" in by_shots[shots[0]]:
        axes.axhline(by_shots[shots[0]]["chance"], linestyle="--", color="grey", linewidth=0.8, label="chance")
    axes.set_xticks(shots)
    axes.set_xlabel("examples in front of the question")
    axes.set_ylabel("accuracy")
    axes.legend()
    save_figure(figure, file)


def save_figure(figure: Any, file: Path) -> None:
    """A PNG that appears whole or not at all."""
    from matplotlib import pyplot

    aside = file.with_name(f".{file.name}")
    figure.savefig(aside, dpi=120, format="png")
    os.replace(aside, file)
    pyplot.close(figure)


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """A folder that appears whole or not at all: written aside, then renamed over an old one."""
    aside, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    for path in (aside, old):
        shutil.rmtree(path, ignore_errors=True)
    write(aside)
    if folder.exists():
        folder.rename(old)
    aside.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def write_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """`metrics.json`: flat, and written last: a run folder with it is finished."""
    write_atomically(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
