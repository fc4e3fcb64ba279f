"""Does a killed run end as the uninterrupted one, bit for bit?

One run is left alone; a second one is killed (SIGKILL, nothing can catch it) between steps, while it validates and
while it writes a checkpoint, and resumed each time. Then every batch, loss, weight and metric is compared.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import lightning
import torch
import yaml

from pipeline.console.progress import progress
from pipeline.errors import UserError
from pipeline.experiments.finetuning_run import between_validations
from pipeline.storage.atomic import write_json
from pipeline.storage.checksums import damage, sha256
from pipeline.tracking.history import WALL_CLOCK
from pipeline.training import checkpoints
from pipeline.training.requests import FineTuneRequest, PretrainRequest
from pipeline.training.run_folder import check_place

TrainRequest = PretrainRequest | FineTuneRequest

Moment = Literal["step", "save", "validation"]  # between two steps, while a checkpoint is written, amid a validation
CLOCKS = ("Energy", "Timer")  # callbacks whose state is the time or the energy that a run has taken


class Trace(lightning.Callback):
    """Writes a line for each batch that is trained on: its rows, a hash of its content, and its loss.

    Args:
        file: is added to, so that all parts of a killed run stand in it.
    """

    def __init__(self, file: str) -> None:
        self.file = file

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        content = hashlib.sha256()
        for tensors in (batch.inputs, batch.shared, *(vars(target) for target in batch.targets.values())):
            for name in sorted(tensors):
                if tensors[name] is not None:
                    content.update(name.encode() + tensors[name].cpu().numpy().tobytes())
        rows = batch.rows.tolist()
        row = {"batch": batch_idx, "rows": rows, "content": content.hexdigest(), "loss": float(module.last_loss).hex()}
        with open(self.file, "a") as file:
            file.write(json.dumps(row) + "\n")


class Kill(lightning.Callback):
    """Kills its own process at a moment of a step.

    Args:
        step: how many optimizer steps are done then.
        moment: when in that step.
    """

    def __init__(self, step: int, moment: Moment) -> None:
        self.step, self.moment = step, moment

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if self.moment == "step" and trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_validation_batch_end(self, trainer: Any, *args: Any) -> None:
        if self.moment == "validation" and trainer.state.fn == "fit" and trainer.global_step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        if self.moment == "save" and trainer.global_step >= self.step:
            trainer.strategy.checkpoint_io.write = write_half


def write_half(checkpoint: dict[str, Any], stream: Any) -> None:
    """The first half of a checkpoint's bytes, and then nothing more."""
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    stream.write(buffer.getbuffer()[: buffer.tell() // 2])
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Killed:
    """Where a run was killed."""

    step: int
    moment: Moment

    def __str__(self) -> str:
        place = {"step": "after step", "save": "saving at step", "validation": "validating at step"}[self.moment]
        return f"{place} {self.step}"


def length(out: Path) -> tuple[int, int]:
    """Optimizer steps of a finished run, and between its validations."""
    config = yaml.safe_load((out / "config.yaml").read_text())
    steps = int(json.loads((out / "metrics.json").read_text())["steps"])
    return steps, config.get("validate_every") or between_validations(steps, config["validations"])


def plan(steps: int, every: int, seed: int) -> list[Killed]:
    """Where to kill a run of `steps` steps that validates after each `every`: all three moments, at random steps.

    The last one is between steps, a whole interval after the one before, so that it follows a resume.

    Raises:
        UserError: fewer than five validations.
    """
    marks = list(range(every, steps, every))
    if len(marks) < 4:
        raise UserError(f"{steps} steps with a validation after each {every} are too few: at least 5 validations.")
    rng = random.Random(seed)
    first, second, third, fourth = sorted(rng.sample(marks, 4))
    between = lambda mark: min(steps - 1, mark + rng.randrange(1, max(2, every)))  # noqa: E731
    moments = [Killed(between(first), "step"), Killed(second, "save"), Killed(third, "validation")]
    return [*moments, Killed(between(fourth), "step")]


def verify(stage: str, request: TrainRequest, out: Path, *, seed: int) -> dict[str, Any]:
    """Runs a stage uninterrupted and killed, in folders under `out`, and compares.

    Args:
        stage: `pretrain` or `finetune`.
        request: of the run, without a folder.
        seed: of the moments to kill at.

    Returns:
        The certificate: `passed`, `differences`, where it was killed, and the hashes.

    Raises:
        UserError: the run itself failed.
    """
    check_place(out)
    straight, killed = out / f"{stage}-straight", out / f"{stage}-killed"
    made = "encoder" if stage == "pretrain" else "model"
    with progress(total=6, desc=f"verify {stage}", unit="run") as bar:
        start(stage, replace(request, out=straight, overwrite=True))
        bar.update()
        kills = plan(*length(straight), seed)
        for number, kill in enumerate(kills):
            bar.set_postfix_str(f"killed {kill}")
            start(stage, replace(request, out=killed, overwrite=not number, resume=number > 0), kill=kill)
            bar.update()
        start(stage, replace(request, out=killed, resume=True))
        bar.update()
    differences = compare(straight, killed, made)
    weights = sha256(straight / made / "model.safetensors")
    return {
        "passed": not differences,
        "differences": differences,
        "killed": [str(kill) for kill in kills],
        "batches": len(batches(straight)),
        "sha256": weights,
        "state": state_hash(straight),
    }


def start(stage: str, request: TrainRequest, *, kill: Killed | None = None) -> None:
    """One process of a run: to its end, or to where it is killed."""
    out = request.out
    assert out is not None
    trace = out.with_name(f"{out.name}.jsonl")
    if request.overwrite:
        out.mkdir(parents=True, exist_ok=True)
        trace.write_text("")
    callbacks = [f"--trainer.callbacks+={__name__}.Trace", f"--trainer.callbacks.file={trace}"]
    if kill is not None:
        callbacks += [f"--trainer.callbacks+={__name__}.Kill", f"--trainer.callbacks.step={kill.step}"]
        callbacks += [f"--trainer.callbacks.moment={kill.moment}"]
    command = [sys.executable, "-m", "pipeline", stage, *request.arguments(), *callbacks]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "WANDB_MODE": "disabled"})
    expected = 0 if kill is None else -signal.SIGKILL
    if done.returncode != expected:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise UserError(f"The run in {out} ended with status {done.returncode} instead of {expected}; it said: {last}")


def batches(out: Path) -> dict[int, list[tuple[str, str]]]:
    """Batch -> hash and loss of each time that it was trained on."""
    trained: dict[int, list[tuple[str, str]]] = {}
    for line in out.with_name(f"{out.name}.jsonl").read_text().splitlines():
        row = json.loads(line)
        trained.setdefault(row["batch"], []).append((row["content"], row["loss"]))
    return trained


def compare(straight: Path, killed: Path, made: str) -> list[str]:
    """The differences between two runs, as sentences."""
    differences = []
    one, two = batches(straight), batches(killed)
    if one.keys() != two.keys():
        differences.append(f"{len(one)} batches in one run, {len(two)} in the other.")
    for number in sorted(one.keys() & two.keys()):
        for name, index in (("content", 0), ("loss", 1)):
            if any(seen[index] != one[number][0][index] for seen in two[number]):
                differences.append(f"The {name} of batch {number} differs.")
    if history(straight) != history(killed):
        differences.append("metrics.csv differs.")
    if state_hash(straight) != state_hash(killed):
        differences.append("The last checkpoints differ: weights, optimizer, schedule, counters or callbacks.")
    if sha256(straight / made / "model.safetensors") != sha256(killed / made / "model.safetensors"):
        differences.append(f"The weights in {made} differ.")
    for folder in (straight, killed):
        if why := damage(folder / made, sha256):
            differences.append(why)
    return differences


def history(out: Path) -> list[dict[str, str]]:
    """The history of a run without its wall-clock metrics."""
    with open(out / "metrics.csv", newline="") as file:
        return [{**row, **dict.fromkeys(WALL_CLOCK, "")} for row in csv.DictReader(file)]


def state_hash(out: Path) -> str:
    """Hash of the last checkpoint, but for what two equal runs may differ in: time, energy, and where they lie."""
    state, content = checkpoints.read(out / "checkpoints" / checkpoints.LAST), hashlib.sha256()
    kept = {name: value for name, value in state["callbacks"].items() if name not in CLOCKS}
    _add(content, {name: value for name, value in state.items() if name not in ("identity", "seconds", "callbacks")})
    for name in sorted(kept):
        checkpoints.move({"callbacks": kept}, Path("/"), name)  # paths as if the runs lay in one place
        _add(content, {name: {key: value for key, value in kept[name].items() if key != "current_score"}})
    return content.hexdigest()


def _add(content: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        content.update(str((value.dtype, tuple(value.shape))).encode())
        content.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            content.update(str(key).encode())
            _add(content, value[key])
    elif isinstance(value, (list, tuple)):
        for part in value:
            _add(content, part)
    else:
        content.update(repr(value).encode())


def certificate(out: Path, results: dict[str, dict[str, Any]], **about: Any) -> str:
    """Writes resume.json into `out`; returns what it says in a few lines."""
    content = {**about, "torch": torch.__version__, "threads": torch.get_num_threads(), **results}
    write_json(out / "resume.json", content)
    lines = []
    for stage, result in results.items():
        verdict = "PASS" if result["passed"] else "FAIL"
        lines.append(f"{verdict} {stage}: {result['batches']} batches, killed {', '.join(result['killed'])}")
        lines += [f"     {difference}" for difference in result["differences"][:10]]
        lines.append(f"     weights {result['sha256'][:16]}, state {result['state'][:16]}")
    return "\n".join(lines)
