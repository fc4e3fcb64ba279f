"""A run that fine-tunes an encoder on a task, from its request to the finished folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from pipeline import encoders
from pipeline.console import typed
from pipeline.console.messages import inform
from pipeline.errors import UserError
from pipeline.presets import FRESH, task_file
from pipeline.storage.atomic import write_atomically
from pipeline.storage.paths import path_of
from pipeline.tracking import lineage
from pipeline.tracking.rank import is_main
from pipeline.training import advice
from pipeline.training.finetuning_report import finish, format_load_report
from pipeline.training.requests import FineTuneRequest
from pipeline.training.run import Configuration, Record, Run, group_of
from pipeline.training.run_folder import check_run_folder, run_folder
from pipeline.training.trainer import enough_memory, shards_weights


def finetune(request: FineTuneRequest, configuration: Configuration, encoder_folder: Path) -> None:
    """Trains, tests the best checkpoint, and writes model, predictions, plots and metrics.

    Raises:
        UserError: a setting, the task, the encoder or the folder does not allow it.
    """
    run = start(request, configuration, encoder_folder)
    data, settings = configuration.data, configuration.settings
    steps, most = max(1, round(data.epochs * data.steps_per_epoch)), settings.trainer.max_steps
    steps = min(steps, most) if most > 0 else steps
    if run.fit(
        best=(f"val/{data.task.metric}", data.task.mode),
        max_steps=steps,
        validate_every=max(1, steps // settings.validations),
        patience=settings.patience or None,
    ):
        finish(run, configuration.module, data)
        if is_main():
            named = {name: getattr(request, name) for name in ("model", "task", "data", "arm")}
            inform(advice.after_finetuning(**named, encoder=encoder_folder, out=run.out))


def start(request: FineTuneRequest, configuration: Configuration, encoder_folder: Path) -> Run:
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
    out = run_folder(
        request.out, "finetune", f"{request.model}-{file.stem}" + ("" if request.arm == "full" else f"-{request.arm}")
    )
    uses = [encoder_folder, file, *configuration.given, *([path_of(data.files)] if data.files is not None else [])]
    overwrite, resume = request.overwrite, request.resume
    check_run_folder(out, overwrite=overwrite, resume=resume, stage="finetune", uses=uses, rows=data.files)

    torch.manual_seed(request.seed)
    encoder, loaded = encoders.load_with_report(encoder_folder, weights=request.arm not in FRESH)
    data.prepare(encoder)
    with enough_memory(f"this {request.model} and its head"):
        module.build(data)
    load_report = format_load_report(encoder_folder, loaded, module)
    inform(load_report, data.report())
    record = Record(
        job_type="finetune",
        group=group_of(request.model, encoder.tokenizer),
        tags=[request.model, file.stem, request.arm],
        seed=request.seed,
        stages=[*lineage.read(encoder_folder), data.stage(file.stem)],
        uses=encoder_folder,
        command=replace(request, encoder=encoder_folder).command("finetune"),
        pictures=[f"{name}.png" for name in data.task.pictures],
    )
    run = Run(configuration, out, record, resume=resume and not overwrite)
    run.begin()
    if is_main():
        write_atomically(out / "receipt.txt", load_report + "\n")
        if data.found.made:
            write_atomically(out / "splits.csv", data.found.table())
    return run
