"""A run that fine-tunes an encoder on a task, from its request to the finished folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.console import typed
from pipeline.console.messages import inform
from pipeline.console.rank import is_main
from pipeline.errors import UserError
from pipeline.experiments.feasible import effective
from pipeline.presets.tasks import task_file
from pipeline.storage.atomic import write_atomically
from pipeline.storage.paths import path_of
from pipeline.tracking import lineage
from pipeline.training import advice
from pipeline.training.configuration import Configuration, Record, group_of
from pipeline.training.finetuning_report import finish, format_load_report
from pipeline.training.requests import FineTuneRequest
from pipeline.training.run import Run
from pipeline.training.run_folder import check_run_folder, run_folder
from pipeline.training.task_report import task_report
from pipeline.training.trainer import enough_memory, shards_weights


def finetune(request: FineTuneRequest, configuration: Configuration, encoder_folder: Path | None) -> None:
    """Trains, tests the best checkpoint, and writes model, predictions, plots and metrics.

    Args:
        encoder_folder: None: the model needs none, as it counts or begins with fresh weights.

    Raises:
        UserError: a setting, the task, the encoder or the folder does not allow it.
    """
    run = start(request, configuration, encoder_folder)
    if run.fit(**course(configuration)):
        finish(run, configuration.module, configuration.data)
        if is_main():
            module, answers = configuration.module, configuration.data.task.answers
            settings = effective(request.overrides, module.trained.learning, request.task, "scratch")
            others = None if module.is_counting else settings
            said = advice.after_finetuning(
                request, encoder=encoder_folder, out=run.out, answers=answers, settings=others
            )
            inform(said)


def run_name(request: FineTuneRequest) -> str:
    """MODEL-TASK, and another arm than `full`."""
    return f"{request.model}-{task_file(request.task).stem}" + ("" if request.arm == "full" else f"-{request.arm}")


def between_validations(steps: int, validations: int) -> int:
    """Steps from one validation to the next, of at most so many."""
    return -(-steps // validations)


def course(configuration: Configuration) -> dict[str, Any]:
    """Steps and validations of a run, and what its best checkpoint is chosen by, see `Run.fit`."""
    data, settings, module = configuration.data, configuration.settings, configuration.module
    if module.is_counting:
        return {"max_steps": 1, "validate_every": 1}
    steps, most = max(1, round(data.epochs * data.steps_per_epoch)), settings.trainer.max_steps
    if most > steps:
        inform(f"Warning: data.epochs ends the run at step {steps:,}, before trainer.max_steps ({most:,}): raise it.")
    steps = min(steps, most) if most > 0 else steps
    return {
        "best": (f"val/{data.task.metric}", data.task.mode),
        "max_steps": steps,
        "validate_every": between_validations(steps, settings.validations),
        "patience": settings.patience or None,
    }


def start(request: FineTuneRequest, configuration: Configuration, encoder_folder: Path | None) -> Run:
    """Data, encoder, head and run folder: all that comes before the first step.

    Raises:
        UserError: a setting, the task, the encoder or the folder does not allow it.
    """
    data, module = configuration.data, configuration.module
    if module.arm != request.arm:
        raise UserError(f"Set {typed.flag('arm', module.arm)}, not model.arm: it also chooses the weights.")
    if shards_weights(configuration.settings.trainer.strategy):
        raise UserError("Sharded weights are for pretraining; fine-tune with trainer.strategy ddp.")
    file = task_file(request.task)
    out = run_folder(request.out, "finetune", run_name(request))
    uses = [file, *configuration.given, *([path_of(data.files)] if data.files is not None else [])]
    uses += [] if encoder_folder is None else [encoder_folder]
    uses += [] if module.distillation is None else [path_of(module.distillation.teacher)]
    overwrite, resume = request.overwrite, request.resume
    check_run_folder(out, overwrite=overwrite, resume=resume, stage="finetune", uses=uses, rows=data.files)

    encoder, loaded = module.open_encoder(encoder_folder, data)
    data.prepare(encoder)
    with enough_memory(f"this {request.model} and its head"):
        module.build(data)
    begun = [] if encoder_folder is None else lineage.read(encoder_folder)
    if encoder_folder is None and not module.is_counting:  # made of the texts, or from a file
        begun = [{"stage": "tokenizer", "scheme": encoder.tokenizer.scheme, "sha256": encoder.tokenizer.hash}]
    teacher = None if module.teacher is None else module.teacher.folder
    load_report = format_load_report(encoder_folder, loaded, module)
    inform(load_report, task_report(data))
    record = Record(
        job_type="finetune",
        group=group_of(request.model, encoder.tokenizer),
        tags=[request.model, file.stem, request.arm],
        seed=configuration.resolved["model"]["seed"],  # that of a file too
        stages=[
            *begun,
            *([] if teacher is None else [lineage.teacher(teacher)]),
            data.stage(file.stem),
        ],
        uses=[folder for folder in (encoder_folder, teacher) if folder is not None],
        command=replace(request, encoder=encoder_folder).command("finetune"),
        pictures=[f"{name}.png" for name in data.task.pictures],
    )
    run = Run(configuration, out, record, resume=resume)
    run.begin()
    if is_main():
        write_atomically(out / "load_report.txt", load_report + "\n")
        if data.found.made:
            write_atomically(out / "splits.csv", data.found.table())
    return run
