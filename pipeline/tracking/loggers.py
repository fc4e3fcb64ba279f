"""What a run tells: history, Weights & Biases, progress bar, final figures."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import netrc
import os
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from tqdm import tqdm

from pipeline import encoders
from pipeline.errors import UserError
from pipeline.storage.atomic import new_file, write_atomically
from pipeline.storage.checksums import file_hash
from pipeline.storage.folders import remove
from pipeline.storage.validation import read_json
from pipeline.tracking import lineage

# Figures that hang on the clock: no two runs have the same.
CLOCKED = ("tokens_per_second", "flops_per_second", "share_of_peak", "data_share")


def is_main() -> bool:
    """Whether this process writes: of several, the first does."""
    return getattr(rank_zero_only, "rank", 0) == 0


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
        """Takes up the rows of an earlier part of the run, up to the step that is resumed; says if some are damaged."""
        if not self.file.exists():
            return
        text = self.file.read_bytes().decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        reader = csv.DictReader(io.StringIO(text))
        damaged = int("step" not in (reader.fieldnames or ["step"]))
        for row in reader:
            try:
                number = int(row.pop("step"))
                figures = {name: value for name, value in row.items() if value}
                for value in figures.values():
                    float(value)
            except (KeyError, TypeError, ValueError):  # no such column, more cells than columns, no number
                damaged += 1
                continue
            if number <= step:
                self.rows[number] = figures
        if damaged:
            print(f"Warning: {self.file} is damaged: {damaged:,} lines of it are left out of the history.")

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.setdefault(step or 0, {}).update(metrics)

    def save(self) -> None:
        if not is_main():
            return
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


class ContinuedWandb(WandbLogger):
    """Weights & Biases; a run that was killed and goes on from a checkpoint has neither a gap nor a step back there.

    What W&B's own process holds when a run is killed is lost, while the curves may reach beyond the checkpoint. So
    the history of the run is the truth: what W&B has not got of it is sent again, what it has got is left out.
    """

    def __init__(self, *, folder: Path, mode: str, **options: Any) -> None:
        # Lightning's own `offline` would set WANDB_MODE for the whole process, and so for the next run in it.
        super().__init__(mode=mode, **options)
        self._wandb_init.pop("anonymous", None)  # W&B warns of it, even where it is None
        self.mode = mode
        self.closed = folder / "wandb" / "closed.json"  # the parts that were ended as they should, and their last step
        self.had = self.step = -1

    @rank_zero_only
    def go_on(self, history: History) -> None:
        """Sends the rows of a resumed run that W&B has not got."""
        if self.mode == "offline":
            parts, self.had = read_json(self.closed, tuple[list[str], int]) if self.closed.exists() else ([], -1)
            for part in self.closed.parent.glob("offline-run-*"):
                if part.name not in parts:
                    remove(part)
        else:  # the row of the last step may have come in part
            self.had = int(self.experiment.summary.get("trainer/global_step") or 0) - 1
        for step, row in history.rows.items():
            self.log_metrics({name: float(value) for name, value in row.items()}, step)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.step = step or 0
        if self.step > self.had:
            super().log_metrics(metrics, step)

    def close(self, *, whole: bool = True) -> None:
        """Ends this part of the run; not `whole`: the last step may have been logged in part."""
        import wandb

        wandb.finish()
        parts = sorted(path.name for path in self.closed.parent.glob("offline-run-*"))
        write_atomically(self.closed, json.dumps([parts, max(self.step - (not whole), self.had)]))


def end_what_is_open() -> None:
    """Ends a run of Weights & Biases that has not ended itself: the next one of this process would be taken for it."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        with tolerated():
            wandb.finish(exit_code=int(sys.exc_info()[0] is not None))


@contextlib.contextmanager
def tolerated() -> Iterator[None]:
    """What Weights & Biases cannot do is a warning where the run itself is whole without it."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] != "wandb":
            raise
        print(f"Warning: Weights & Biases has not got all of this run: {' '.join(str(error).split())}", file=sys.stderr)


@contextlib.contextmanager
def last_words(logger: ContinuedWandb) -> Iterator[Any]:
    """The run of Weights & Biases, to be told what is left, and its end; what it cannot take is a warning."""
    with tolerated(), _staged_in(logger.closed.parent):
        yield logger.experiment
        logger.close()


@contextlib.contextmanager
def _staged_in(folder: Path) -> Iterator[None]:
    """W&B's copies of what is to be uploaded lie with the run, not in the user's own folders, and go with it."""
    given = os.environ.get("WANDB_DATA_DIR")
    os.environ["WANDB_DATA_DIR"] = given or str(folder.resolve())
    try:
        yield
    finally:
        del os.environ["WANDB_DATA_DIR"]
        if given is not None:
            os.environ["WANDB_DATA_DIR"] = given


SECRET = re.compile(r"(^|_)(token|key|password|secret)$")


def public(value: Any, name: str = "") -> Any:
    """A configuration without secrets and the folders of this machine: of a path only its last name is logged."""
    if isinstance(value, dict):
        return {key: public(part, key) for key, part in value.items() if not SECRET.search(str(key))}
    if isinstance(value, list):
        return [public(part, name) for part in value]
    if not isinstance(value, str) or "/" not in value:
        return value
    with contextlib.suppress(OSError):  # a text longer than any path
        if name == "files" or value[0] in "/~." or Path(value).exists():
            return Path(value).name
    return value


def wandb_mode() -> str:
    """WANDB_MODE, or whether there is a key.

    Raises:
        UserError: there is no such mode.
    """
    mode = os.environ.get("WANDB_MODE") or ("online" if has_key() else "offline")
    if mode not in ("online", "offline", "disabled"):
        raise UserError(f"WANDB_MODE is {mode}; it may be online, offline or disabled.")
    return mode


RUN_ID = re.compile(r"(?!\s)[^:;,#?/'\\\0-\x1f]{1,128}(?<!\s)")


def check_environment() -> None:
    """Refuses settings of Weights & Biases with which a run would fail after its start.

    Raises:
        UserError: there is no such mode, no key to be online with, or a name that cannot be.
    """
    mode, name = wandb_mode(), os.environ.get("WANDB_RUN_ID")
    if mode == "online" and not has_key():
        raise UserError("WANDB_MODE is online, but there is no key: set WANDB_API_KEY, or leave WANDB_MODE out.")
    if mode != "disabled" and name and not RUN_ID.fullmatch(name):
        shown = name if len(name) <= 60 else f"{name[:60]}..."
        raise UserError(f"WANDB_RUN_ID is {shown!r}; it may have up to 128 characters, and none of :;,#?/'\\.")


def wandb_logger(
    folder: Path, *, job_type: str, group: str, tags: list[str], config: dict[str, Any]
) -> ContinuedWandb | None:
    """Weights & Biases: offline without a key, never a login prompt; None when WANDB_MODE=disabled.

    It is told the figures and the configuration, not what it would find out about the machine, its user, the command
    line, the repository, the installed packages and the screen.
    """
    mode = wandb_mode()
    if mode == "disabled":
        return None
    id_file = folder / "wandb" / "run-id"  # a resumed run continues the same W&B run
    if not id_file.exists() or not RUN_ID.fullmatch(id_file.read_text(errors="replace")):
        write_atomically(id_file, os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:8])  # a sweep gives one
    import wandb

    return ContinuedWandb(
        folder=folder,
        project=os.environ.get("WANDB_PROJECT", "pretrain-finetune"),
        save_dir=folder,
        id=id_file.read_text(),
        mode=mode,
        name=folder.name,
        group=group,
        job_type=job_type,
        tags=tags,
        config=public(config),
        resume="allow",
        settings=wandb.Settings(
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            disable_git=True,
            console="off",
            silent=True,
        ),
    )


def artifact_name(kind: str, folder: Path) -> str:
    """A name that stays the same from run to run, so that what they make are versions of it: encoder-bert-sample."""
    model = encoders.family(read_json(folder / "config.json", dict[str, Any])["model_type"])
    origin = {"encoder": "corpus", "model": "task"}[kind]
    names = [str(stage["name"]) for stage in lineage.read(folder) if stage["stage"] == origin and "name" in stage]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join([kind, model, *names[-1:]]))[:128]


def folder_artifact(kind: str, folder: Path) -> tuple[Any, str]:
    """A folder as an artifact, and the alias of its version: the hash of the weights, which is the same everywhere."""
    import wandb

    content = file_hash(folder / "model.safetensors")
    artifact = wandb.Artifact(artifact_name(kind, folder), type=kind, metadata={"sha256": content})
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            # It is not copied into the user's folders: the run's own stays as it is.
            artifact.add_file(str(file), name=file.name, policy="immutable", skip_cache=True)
    return artifact, content[:12]


def log_artifact(run: Any, kind: str, folder: Path) -> None:
    """Keeps what a run has made, as the latest version of it."""
    artifact, alias = folder_artifact(kind, folder)
    run.log_artifact(artifact, aliases=["latest", alias])


def use_artifact(logger: ContinuedWandb, encoder: Path) -> None:
    """Declares that a run uses an encoder, unless it is private: that would upload it, with its vocabulary.

    Offline, W&B cannot. The run's config has the hash of the weights in any case, so that a failure is a warning.
    """
    if logger.mode == "online" and lineage.is_public(lineage.read(encoder)):
        run = logger.experiment  # without it there is no logging at all: no warning
        with tolerated(), _staged_in(logger.closed.parent):
            artifact, alias = folder_artifact("encoder", encoder)
            run.use_artifact(artifact, aliases=[alias])


def has_key() -> bool:
    """Whether a key of Weights & Biases is configured, in the environment or by `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0]
        return netrc.netrc(os.environ.get("NETRC") or None).authenticators(host) is not None
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
                self._tell(module)
            self.bar.update(trainer.global_step - self.bar.n)

    def _tell(self, module: Any) -> None:
        """Loss and rate; they are fetched from the device only when the bar is drawn."""
        assert self.bar is not None
        self.shown = time.monotonic()
        rate = (int(module.tokens_seen) - self.tokens) / max(1e-9, self.shown - self.started)
        self.bar.set_postfix_str(f"loss {float(module.last_loss):.3f}, {rate:,.0f} tokens/s", refresh=False)

    def on_validation_end(self, trainer: lightning.Trainer, module: Any) -> None:
        if self.bar is not None and not trainer.sanity_checking:
            figures = trainer.callback_metrics.items()
            shown = ", ".join(f"{name[4:]} {float(value):.4g}" for name, value in figures if name.startswith("val/"))
            self._tell(module)  # printing draws the bar anew
            self.print(f"step {trainer.global_step:,}: {shown}")

    def print(self, *args: Any, **kwargs: Any) -> None:
        tqdm.write(" ".join(map(str, args)), file=sys.stderr)

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        if self.bar is not None:
            self._tell(module)
        self._close()

    def on_exception(self, *args: Any) -> None:
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """What is printed meanwhile goes into a file: a run among many leaves the screen to the bar over all."""
    with new_file(log) as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


def write_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """`metrics.json`: flat, and written last: a run folder with it is finished."""
    write_atomically(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
