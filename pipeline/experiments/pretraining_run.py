"""A run that pretrains an encoder, from its request to the finished folder; and one that only times its steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.cards.encoder import encoder_card
from pipeline.console.messages import inform
from pipeline.console.rank import is_main
from pipeline.errors import UserError
from pipeline.interop import arpa
from pipeline.models.outputs import LoadReport, lines_of_tensors
from pipeline.storage.atomic import write_atomically, write_json
from pipeline.storage.paths import path_of
from pipeline.tracking import lineage, plots
from pipeline.tracking.amounts import count
from pipeline.tracking.history import WALL_CLOCK
from pipeline.tracking.metric_names import readable
from pipeline.tracking.tables import markdown_table
from pipeline.tracking.words_seen import FOLDER, saved_in
from pipeline.training import advice
from pipeline.training.configuration import Configuration, Record, group_of
from pipeline.training.corpus_data import OF_TASK, CorpusData
from pipeline.training.corpus_report import corpus_facts, corpus_report
from pipeline.training.pretraining import Pretraining
from pipeline.training.progress import formatted, validated
from pipeline.training.requests import PretrainRequest
from pipeline.training.run import Run
from pipeline.training.run_folder import check_run_folder, run_folder
from pipeline.training.saved_encoders import SavedEncoders
from pipeline.training.throughput import Profile, Speed
from pipeline.training.trainer import enough_memory, is_alone, shards_weights
from tasks.dataset import listed

CURVES = "curves.png"
UNITS = {"hidden_loss": "1 - cosine"}  # of losses that are no nats


def pretrain(request: PretrainRequest, configuration: Configuration) -> None:
    """Trains, and writes encoder, plots, samples and metrics.

    Raises:
        UserError: a setting, the corpus or the folder does not allow it.
    """
    run, speed = start(request, configuration, stage="pretrain"), Speed()
    data, module = configuration.data, configuration.module
    counted = module.is_counting
    once = 1 if counted else None  # validated once
    card = partial(encoder_card, main=data.objective.main)
    points = configuration.settings.save_at_words
    watching = [] if counted else [speed, *([SavedEncoders(run, points, card)] if points else [])]
    if not run.fit(watching=watching, max_steps=once, validate_every=once) or not is_main():
        return
    if not counted:
        inform(str(speed))
    encoder = module.trained_encoder()
    if encoder.untrained:
        idle = listed(sorted(encoder.untrained), most=4)
        inform(f"Note: {type(data.objective).__name__} does not train {idle}, which the folder lacks.")
    metrics = final_metrics(run, module, data)
    pictures = [] if counted else [draw_curves(run, request, metrics, module)]
    own = partial(card, encoder, saved=saved_in(run.out / FOLDER))
    about = {"words": metrics["words"], "step": metrics["steps"]}
    saved = run.keep("encoder", encoder.save, own, metrics, pictures=pictures, about=about)
    if counted and module.arpa:
        try:
            arpa.write(encoder, run.out / "model.arpa.gz")
        except UserError as error:  # a smoothing that the format does not have
            inform(f"Note: there is no model.arpa.gz. {error}")
    columns, rows = data.objective.samples(encoder, data.valid)
    if columns:
        write_atomically(run.out / "examples.md", markdown_table(columns, rows))
    run.finish(metrics, artifact=("encoder", saved), tables={"examples": (columns, rows)} if columns else {})
    say_end(run, request, metrics, configuration, saved)


def final_metrics(run: Run, module: Pretraining, data: CorpusData) -> dict[str, Any]:
    """The content of metrics.json."""
    reached = {name: run.history.series(name)[1][-1] for name in run.history.names() if name in WALL_CLOCK}
    return {
        **reached,
        **run.metrics(),
        **module.baselines,
        "documents": data.train.meta["documents"],
        "words": round(module.words_seen),
        "val/unknown": data.objective.unknown(data.valid, data.tokenizer),
    }


def draw_curves(run: Run, request: PretrainRequest, metrics: dict[str, Any], module: Pretraining) -> str:
    """Writes the plot of the history; returns the name of its file."""
    title = f"{request.model} pretrained on {corpus_name(request.corpus)}: {run.steps:,} steps, "
    title += f"{count(metrics['tokens'])} tokens"
    panels = curve_panels(metrics, module.objective.compared_losses(), module.baselines)
    plots.plot_curves(run.history, run.out / CURVES, title=title, panels=panels)
    return CURVES


def say_end(
    run: Run, request: PretrainRequest, metrics: dict[str, Any], configuration: Configuration, saved: Path
) -> None:
    """The last lines of a run: what was reached, warnings, files, what to do next."""
    data, module = configuration.data, configuration.module
    shown = formatted(module, validated(module, metrics)) or "not validated"
    print(f"After {metrics['seconds']:.0f} s: {shown}")
    if warning := module.not_below_baseline(metrics):
        print(warning)
    print(advice.saved(run.out, saved))
    inform(
        advice.after_pretraining(
            request.model,
            saved,
            synthetic=data.synthetic,
            counted=module.is_counting,
            parallel=data.objective.parallel,
            task=request.corpus.removeprefix(OF_TASK) if request.corpus.startswith(OF_TASK) else "",
            data=request.data,
        )
    )


def curve_panels(metrics: Iterable[str], compared: Sequence[str], baselines: dict[str, float]) -> list[plots.Panel]:
    """A panel for the losses that the baselines are for, one for each other loss, and one for accuracies.

    Args:
        metrics: the names that were logged.
        compared: losses of the language model, without `_loss`.
    """
    losses = [name[4:] for name in metrics if re.fullmatch(r"val/.+_loss", name)]
    main = [name for name in losses if name.removesuffix("_loss") in compared]
    label = f"{readable(main[0])} (nats)" if len(main) == 1 else "loss (nats)"
    panels = [plots.Panel(label, main, baselines, height=4.0)]
    for name in losses:
        if name not in main:
            unit = UNITS.get(name, "nats")
            panels.append(plots.Panel(f"{readable(name)} ({unit})", [name], height=1.8))
    accuracies = [name[4:] for name in metrics if re.fullmatch(r"val/.+_accuracy", name)]
    return [*panels, plots.Panel("accuracy", accuracies, height=1.8)]


def short(request: PretrainRequest) -> PretrainRequest:
    """The same run with a few steps, which cost what others do; it replaces another profile."""
    steps = Profile.SKIPPED + Profile.STEPS
    settings: dict[str, Any] = {"trainer.max_steps": steps, "validate_every": steps, "data.validation_rows": 64}
    settings |= {"model.embeddings": "random", "model.optimization.warmup_steps": 0}
    out = run_folder(request.out, "profile", request.model)
    again = request.overwrite or (out / "profile.txt").exists()
    return replace(request.override(settings), out=out, overwrite=again)


def profile(request: PretrainRequest, configuration: Configuration) -> None:
    """Times the steps of a `short` run, which leaves no encoder."""
    run = start(request, configuration, stage="profile")
    watching = Profile(run.out)
    if run.fit(watching=[watching]) and is_main():
        print(watching.table)
        print(f"The table is in {run.out / 'profile.txt'}, each step in {run.out / 'trace.json'} (chrome://tracing).")


def start(request: PretrainRequest, configuration: Configuration, *, stage: str) -> Run:
    """Corpus, network and run folder: all that comes before the first step.

    Raises:
        UserError: a setting, the corpus or the folder does not allow it.
    """
    data, module, trainer = configuration.data, configuration.module, configuration.settings.trainer
    check_processes(configuration)
    out = claim_folder(request, configuration, stage=stage)
    with enough_memory(f"this {request.model}"):
        data.prepare(module.make_network)
        report = corpus_report(data)
        inform(report)
        module.build(data)
    uniform, unigram = module.baselines["baseline/uniform"], module.baselines["baseline/unigram"]
    size = f"{module.parameter_count:,} parameters" if module.parameter_count else "no parameters, it counts"
    inform(f"{request.model}: {size}; baselines: uniform {uniform:.2f}, unigram {unigram:.2f} nats")
    if not module.is_counting and (
        note := advice.many_passes(trainer.max_steps, rows=data.batch_size, there=module.rows_there)
    ):
        inform(note)
    corpus, origin = corpus_name(request.corpus), None if module.start is None else Path(module.start)
    before = [] if origin is None else lineage.read(origin)
    load_report = "" if origin is None else format_continued(origin, module.loaded, before)
    if load_report:
        inform(load_report)
    teacher = None if module.teacher is None else module.teacher.folder
    if teacher is not None:
        inform(f"teacher     {module.teacher}", *(["student     begins with fresh weights"] if origin is None else []))
    taught = [] if teacher is None else [lineage.teacher(teacher)]
    record = Record(
        job_type=stage,
        group=group_of(request.model, data.tokenizer),
        tags=[request.model, corpus],
        seed=configuration.resolved["model"]["seed"],  # that of a file too
        stages=[*before, *taught, *data.stages(corpus)],
        uses=[folder for folder in dict.fromkeys((origin, teacher)) if folder is not None],
        command=request.command(stage),
    )
    run = Run(configuration, out, record, resume=request.resume)
    run.begin()
    if is_main():
        write_atomically(out / "data.txt", report + "\n")
        if load_report:
            write_atomically(out / "load_report.txt", load_report + "\n")
        write_json(out / "corpus.json", corpus_facts(data, corpus), indent=1)
    # Rank 0 initializes and DDP broadcasts; with sharded weights every rank initializes its own shard.
    if run.resume_from is None and (is_main() or shards_weights(trainer.strategy)):
        module.begin(data)
    return run


def claim_folder(request: PretrainRequest, configuration: Configuration, *, stage: str) -> Path:
    """The folder of a run, which may be written to.

    Raises:
        UserError: it holds something else, or what the run reads.
    """
    data, module = configuration.data, configuration.module
    added = "" if module.start is None else "-" + corpus_name(request.corpus).removeprefix(OF_TASK).partition(".")[0]
    added = added if module.distillation is None else "-student"
    out = run_folder(request.out, stage, request.model + added)
    uses = [
        *configuration.given,
        *(path_of(file) for file in (data.files, data.options.file) if file is not None),
        *([] if module.distillation is None else [path_of(module.distillation.teacher)]),
    ]
    overwrite, resume = request.overwrite, request.resume
    check_run_folder(out, overwrite=overwrite, resume=resume, stage=stage, uses=uses, texts=data.files)
    return out


def corpus_name(corpus: str) -> str:
    """CORPUS= without the folders of a path: `wikitext2`, `texts.txt`, `task:sick`."""
    task = corpus.removeprefix(OF_TASK)
    return Path(corpus).name if task == corpus else OF_TASK + Path(task).stem


def format_continued(folder: Path, report: LoadReport, before: Sequence[lineage.Stage]) -> str:
    """Which tensors a run that goes on from an encoder has taken over, and what that was trained on before."""
    named = [str(stage.get("name", "text")) for stage in before if stage["stage"] in ("corpus", "task")]
    lines = [f"encoder     {folder}: {report}" + (f"; trained before on {', '.join(named)}" if named else "")]
    return "\n".join([*lines, *lines_of_tensors({"new in": report.new, "unused in": report.unused})])


def check_processes(configuration: Configuration) -> None:
    """Raises: UserError, these batches, this optimizer or this objective cannot be split as the settings ask."""
    data, module, trainer = configuration.data, configuration.module, configuration.settings.trainer
    alone = is_alone(trainer)
    if module.is_counting:
        if not alone:
            raise UserError("Counting takes one process: leave trainer.devices and trainer.num_nodes at 1.")
        return
    if data.objective.consecutive and (trainer.accumulate_grad_batches > 1 or not alone):
        raise UserError(
            "Rows that continue those of the step before need one process without accumulation: set "
            "model.objective.init_args.stateful to false, or change trainer.devices and accumulate_grad_batches."
        )
    if module.optimization.optimizer == "muon" and shards_weights(trainer.strategy):
        raise UserError("Muon needs whole matrices, and these are sharded: set model.optimization.optimizer to adamw.")
    encoder = configuration.encoder_class
    if not encoder.shardable and shards_weights(trainer.strategy):
        raise UserError(f"{encoder.__name__} needs its weights whole: set trainer.strategy to ddp.")
    if configuration.settings.save_at_words and shards_weights(trainer.strategy):
        raise UserError("save_at_words needs whole weights, and these are sharded: set trainer.strategy to ddp.")
    if getattr(trainer.strategy, "_state_dict_type", "full") != "full":
        raise UserError("An encoder is saved from a whole checkpoint: set state_dict_type of the strategy to full.")
