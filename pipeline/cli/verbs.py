"""What each verb does, in order: from parsed options to a finished run folder."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from pathlib import Path
from pydoc import locate
from typing import Any, Literal

import torch

from pipeline import encoders
from pipeline.cli import sweep as sweeping
from pipeline.cli.config import FineTuneCLI, encoder_folder, files_in, parse, pretraining
from pipeline.cli.new_task import new_task
from pipeline.errors import UserError
from pipeline.finetuning import model as tuned
from pipeline.finetuning import predict_files as predicting
from pipeline.inspection import audit as auditing
from pipeline.inspection import evaluate as evaluating
from pipeline.inspection import samples as examples
from pipeline.inspection import trying
from pipeline.interop import elmo_hdf5 as importing
from pipeline.models.base import Encoder
from pipeline.models.elmo import Elmo
from pipeline.presets import CONFIGS, FRESH, FROZEN, SHARED, known, named_config, task_file, task_of
from pipeline.prompting import report as asking
from pipeline.storage.atomic import write_atomically
from pipeline.storage.folders import write_folder
from pipeline.storage.paths import path_of
from pipeline.tokenization.base import Tokenizer
from pipeline.tracking import lineage, plots
from pipeline.tracking.loggers import CLOCKED, is_main
from pipeline.training.corpus_data import CorpusData
from pipeline.training.finetuning import FineTuning
from pipeline.training.finetuning_report import finish, hand_off
from pipeline.training.run import Run, enough_memory
from pipeline.training.run_folder import check_place, check_run_folder
from pipeline.training.task_data import LabeledData
from pipeline.training.throughput import Profile, Speed


def data(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `data`."""
    corpus = pretraining(options, flags).datamodule
    corpus.prepare()
    print(corpus.report())


def pretrain(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `pretrain`."""
    out = run_folder(options, "pretrain", options.model)
    run, speed = begin_pretraining(options, flags, out), Speed()
    if not run.fit(watching=[speed]) or not is_main():
        return
    print(speed)
    data, module = run.cli.datamodule, run.cli.model
    encoder = module.trained_encoder()
    reached = {name: run.history.series(name)[1][-1] for name in run.history.names() if name in CLOCKED}
    figures = {**reached, **run.figures(), **module.floors, "documents": data.train.meta["documents"]}
    figures["val/unknown"] = module.objective.unknown(data.valid, data.tokenizer)
    card = model_card(options, data, figures)
    saved = run.keep("encoder", lambda folder: encoder.save(folder, card=card))
    curve_losses = [
        f"{split}/{name[4:]}" for name in figures if re.fullmatch(r"val/.+_loss", name) for split in ("train", "val")
    ]
    plots.plot_curves(run.history, out / "curves.png", floors=module.floors, losses=curve_losses)
    columns, rows = examples.examples(encoder, data.valid)
    write_atomically(out / "examples.md", examples.table(columns, rows))
    run.finish(figures, artifact=("encoder", saved), tables={"examples": (columns, rows)})
    shown = ", ".join(f"{name[4:]} {value:.4g}" for name, value in figures.items() if name.startswith("val/"))
    print(f"Saved {saved} after {figures['seconds']:.0f} s: {shown}")
    model = "" if options.model == "bert" else f"MODEL={options.model} "
    task = "TASK=sentiment" if data.sample_documents else "TASK=sst2 DATA=folder"  # the sample's tasks are of its world
    print(f"Next: make finetune {model}{task} FROM={saved}")


def profile(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `profile`: some steps of pretraining, which leave no encoder."""
    out = run_folder(options, "profile", options.model)
    options.overwrite, options.resume = options.overwrite or (out / "profile.txt").exists(), False
    steps, looking = Profile.SKIPPED + Profile.STEPS, Profile(out)
    flags = [*flags, f"--trainer.max_steps={steps}", f"--validate_every={steps}", "--data.validation_rows=64"]
    flags += ["--model.embeddings=random", "--model.optimization.warmup_steps=0"]  # a step costs the same
    run = begin_pretraining(options, flags, out, stage="profile")
    if run.fit(watching=[looking]) and is_main():
        print(looking.table)
        print(f"The table is in {out / 'profile.txt'}, each step in {out / 'trace.json'} (chrome://tracing).")


def begin_pretraining(
    options: argparse.Namespace, flags: list[str], out: Path, *, stage: Literal["pretrain", "profile"] = "pretrain"
) -> Run:
    """Configuration, corpus, network and run folder: all that comes before the first step.

    Raises:
        UserError: a setting, the corpus or the folder does not allow it.
    """
    cli = pretraining(options, flags)
    data, module, trainer = cli.datamodule, cli.model, cli.config_init.trainer
    alone = trainer.devices in (1, "1") and trainer.num_nodes == 1
    if module.objective.consecutive and (trainer.accumulate_grad_batches > 1 or not alone):
        raise UserError(
            "With carry each row goes on with the state of the step before: set model.objective.init_args.carry to "
            "false, or train in one process without accumulation."
        )
    if module.optimization.optimizer == "muon" and shards_weights(trainer.strategy):
        raise UserError("Muon needs whole matrices, and these are sharded: set model.optimization.optimizer to adamw.")
    if shards_weights(trainer.strategy) and not locate(cli.config.model.encoder.class_path).shardable:  # type: ignore[union-attr, attr-defined]
        raise UserError("ELMo's softmax needs whole weights in float32: set trainer.strategy to ddp.")
    if getattr(trainer.strategy, "_state_dict_type", "full") != "full":
        raise UserError("An encoder is saved from a whole checkpoint: set state_dict_type of the strategy to full.")
    uses = [*files_in(flags), *(path_of(file) for file in (data.files, data.options.file) if file is not None)]
    check_run_folder(out, options, stage=stage, uses=uses, texts=data.files)
    data.prepare()
    report = data.report()
    print(report)
    with enough_memory(f"this {options.model}"):
        module.build(data)
    print(
        f"{options.model}: {sum(p.numel() for p in module.encoder.parameters()):,} parameters; "
        f"floors: uniform {module.floors['floor/uniform']:.2f}, unigram {module.floors['floor/unigram']:.2f} nats"
    )
    corpus = Path(options.corpus).name
    run = Run(
        cli,
        out,
        options,
        job_type=stage,
        group=group_of(options.model, data.tokenizer),
        tags=[options.model, corpus],
        stages=data.stages(corpus),
    )
    if is_main():
        write_atomically(out / "data.txt", report + "\n")
    # Of several processes one is enough, whose weights the others get, unless each keeps a part of its own.
    if run.resume_from is None and (is_main() or shards_weights(trainer.strategy)):
        module.begin(data)
    return run


def shards_weights(strategy: Any) -> bool:
    """Whether each process will hold a part of the weights only: by name, as on the command line, or as an object."""
    return "fsdp" in (strategy if isinstance(strategy, str) else type(strategy).__name__).lower()


def run_folder(options: argparse.Namespace, stage: str, name: str) -> Path:
    """OUT=, or the run's own folder in a sweep, or the one that goes by its name."""
    if options.out is None and (sweep := os.environ.get("WANDB_SWEEP_ID")):
        return Path("runs/sweeps") / sweep / os.environ.get("WANDB_RUN_ID", name)
    return options.out or Path("runs") / stage / name


def group_of(model: str, tokenizer: Tokenizer) -> str:
    """The group of a run in Weights & Biases: an encoder and what grew from it share the tokenizer."""
    return f"{model}-{tokenizer.hash[:12]}"


def model_card(options: argparse.Namespace, data: CorpusData, figures: dict[str, Any]) -> str:
    rows = "\n".join(f"| {name} | {value:.5g} |" for name, value in figures.items() if isinstance(value, (int, float)))
    synthetic = " The corpus is synthetic." if data.sample_documents else ""
    spells = data.tokenizer.spells  # an ELMo: transformers has no such class, and the store holds bytes
    library, unit, of = ("pipeline", "bytes", "words") if spells else ("transformers", "tokens", "tokens")
    return (
        f"---\nlibrary_name: {library}\ntags: [{options.model}]\n---\n# {options.model} encoder\n\n"
        f"Pretrained on `{Path(options.corpus).name}` ({data.train.meta['tokens']:,} {unit}) for "
        f"{figures['steps']:,} steps of {data.batch_size} rows of at most {data.length} {of}.{synthetic}\n\n"
        f"| figure | value |\n| --- | --- |\n{rows}\n"
    )


def audit(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `audit`: exit status 1 when a check fails."""
    cli = pretraining(options, flags)
    data, module = cli.datamodule, cli.model
    data.prepare()
    module.build(data)
    print(f"audit of {options.model} on {Path(options.corpus).name}")
    failed = 0
    for check in auditing.audit(module.encoder, data, uniform=module.floors["floor/uniform"]):
        print(check, flush=True)
        failed += not check.passed
    print(f"{failed} failed" if failed else "all passed")
    if failed:
        raise SystemExit(1)


def try_out(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `try`."""
    folder = encoder_folder(options)
    encoder = encoders.load_with_heads(folder)
    if options.word is None or options.prompt is not None or not isinstance(encoder, Elmo):
        if flags:
            raise UserError(f"try does not know the flag {flags[0]}; see python -m pipeline try --help.")
        print(trying.show(encoder, options))
        return
    cli = pretraining(options, [*flags, f"--data.tokenizer.file={folder / 'tokenizer.json'}"])
    cli.datamodule.prepare()
    print(trying.neighbours(encoder, options.word, cli.datamodule.valid))


def evaluate(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `evaluate`."""
    for flag in flags:
        if flag.startswith(("--model.encoder", "--trainer.", "--data.validation_rows", "--data.tokenizer")):
            raise UserError(f"evaluate takes an encoder as it was saved, and all rows of a text: leave out {flag}.")
    folder = encoder_folder(options)
    encoder = encoders.load_with_heads(folder)
    trained = evaluating.training_length(encoder, folder)
    cli = pretraining(options, flags if trained is None else [f"--data.length={trained}", *flags])
    if note := evaluating.note_on_length(encoder, cli.datamodule.length, trained):
        print(note)
    figures = evaluating.evaluate(encoder, cli.datamodule)
    for name, value in figures.items():
        print(f"{name:<24} {value:,}" if isinstance(value, int) else f"{name:<24} {value:.4f}")
    if (unknown := figures["unknown"]) > evaluating.FEW_UNKNOWN:
        print(
            f"Warning: {unknown:.1%} of what is predicted is unknown to this encoder, and [UNK] is an easy guess: its "
            "perplexity here compares with none of another text or vocabulary."
        )


def import_elmo(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `import-elmo`."""
    check_place(options.out)
    if options.out.exists():
        raise UserError(f"{options.out} is there already; choose another OUT folder.")
    encoder = importing.import_elmo(options.options, options.weights, state=options.state)
    card = f"# elmo encoder\n\nImported from {options.options.name} and {options.weights.name}; no output layer.\n"
    write_folder(options.out, lambda folder: encoder.save(folder, card=card))
    count = sum(p.numel() for p in encoder.parameters())
    print(f"Saved {options.out}: {count:,} parameters, layers of {encoder.size}, state {options.state}.")


def finetune(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `finetune`."""
    folder, file = encoder_folder(options), task_file(options.task)
    if task_of(file).head == "none":
        raise UserError(f"{file.stem} has prompts and nothing to train on; use make zeroshot TASK={options.task}.")
    name = f"{options.model}-{file.stem}" + ("" if options.arm == "full" else f"-{options.arm}")
    out = run_folder(options, "finetune", name)
    flags = [f"--model.seed={options.seed}", f"--data.seed={options.seed}", f"--model.arm={options.arm}", *flags]
    if options.data is not None:
        flags = ["--data.files", options.data, *flags]
    files = [SHARED[0], file, *SHARED[1:]] if options.arm in FROZEN else [SHARED[0], file]
    cli = parse(FineTuning, LabeledData, files, flags, cli_class=FineTuneCLI)
    if cli.model.arm != options.arm:
        raise UserError(f"Set ARM={cli.model.arm}, not model.arm: it also chooses the weights.")
    if shards_weights(cli.config_init.trainer.strategy):
        raise UserError("Sharded weights are for pretraining; fine-tune with trainer.strategy ddp.")
    rows = cli.datamodule.files
    uses = [folder, file, *files_in(flags), *([path_of(rows)] if rows is not None else [])]
    check_run_folder(out, options, stage="finetune", uses=uses, rows=rows)

    torch.manual_seed(options.seed)
    encoder, receipt = encoders.load_with_receipt(folder, weights=options.arm not in FRESH)
    data, module = cli.datamodule, cli.model
    data.prepare(encoder)
    with enough_memory(f"this {options.model} and its head"):
        module.build(data)
    receipt_text = hand_off(folder, receipt, module)
    print(receipt_text, data.report(), sep="\n")

    tags = [options.model, file.stem, options.arm]
    training = Run(
        cli,
        out,
        options,
        job_type="finetune",
        group=group_of(options.model, encoder.tokenizer),
        tags=tags,
        stages=[*lineage.read(folder), data.stage(file.stem)],
        uses=folder,
    )
    if is_main():
        write_atomically(out / "receipt.txt", receipt_text + "\n")
    steps, most = max(1, round(data.epochs * data.steps_per_epoch)), cli.config_init.trainer.max_steps
    steps = min(steps, most) if most > 0 else steps
    if not training.fit(
        best=(f"val/{data.task.metric}", "max"),
        max_steps=steps,
        validate_every=max(1, steps // cli.config_init.validations),
        patience=cli.config_init.patience or None,
    ):
        return
    finish(training, module, data)


def asked(folder: Path) -> Encoder:
    """An encoder whose answers to one text do not depend on other texts; says if they would otherwise.

    Raises:
        UserError: it gives no probabilities.
    """
    encoder = encoders.load_with_heads(folder)
    if encoder.carries:
        encoder.forget_between_batches()
        print(f"The encoder in {folder} carries its state from batch to batch; here each text begins without one.")
    return encoder


def zeroshot(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `zeroshot`."""
    folder, file = encoder_folder(options), task_file(options.task)
    task, encoder = task_of(file), asked(folder)
    out = run_folder(options, "zeroshot", f"{options.model}-{file.stem}")
    if options.resume:
        raise UserError("A zero-shot run is not resumed: set OVERWRITE=1 to ask again.")
    uses = [folder, file, *(path_of(place) for place in (options.data, options.unigram) if place is not None)]
    check_run_folder(out, options, stage="zeroshot", resumes=False, uses=uses, rows=options.data)
    try:
        shots = [int(part) for part in options.shots.replace(",", " ").split()]
    except ValueError:
        raise UserError(f"SHOTS={options.shots} must be numbers, as 0 or 0,1,4.") from None
    if not shots or min(shots) < 0:
        raise UserError(f"SHOTS={options.shots} must be numbers of at least 0.")
    settings: dict[str, Any] = {"limit": options.limit, "seed": options.seed, "unigram": options.unigram}
    tags = [options.model, file.stem, "zeroshot"]
    settings["log_text"] = options.data is None or options.log_text
    group = group_of(options.model, encoder.tokenizer)
    asking.run(encoder, task, out, files=options.data, shots=shots, folder=folder, tags=tags, group=group, **settings)


def lm_eval(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `lm-eval`."""
    try:
        from pipeline.interop import lm_eval as lm_eval_model
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("lm_eval"):
            raise
        raise UserError("lm-eval is not installed; .venv/bin/pip install -c constraints.txt -e '.[lm-eval]'.") from None
    encoder = asked(options.encoder)
    print(lm_eval_model.run(encoder, options.tasks.split(","), limit=options.limit, include=options.include_path))


def predict(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `predict`."""
    if options.out is not None:
        check_place(options.out)
        if options.out.resolve().parent == options.model.resolve():
            raise UserError(f"{options.out} lies in the folder of the model; choose another --out.")
    form = predicting.form_of(options.input, options.format)
    settings: dict[str, Any] = {"form": form, "batch_size": options.batch_size}
    name = "standard input" if options.input == "-" else options.input
    with contextlib.ExitStack() as files:
        model = tuned.load(options.model)
        source = files.enter_context(predicting.open_source(options.input))
        target = files.enter_context(predicting.open_target(options.out, source)) if options.out else sys.stdout
        try:
            predicting.predict(model, source, name, target=target, **settings)
        except UnicodeDecodeError:
            raise UserError(f"{name} is not UTF-8 text.") from None
        except BrokenPipeError:  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def sweep(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `sweep`: what it does not know goes to each run."""
    file = named_config("sweeps", options.name)
    if file is None or options.name not in ("pretrain", "finetune"):
        raise UserError(f"There is no sweep '{options.name}'; there are {known('sweeps')}.")
    given = {"model": options.model, "corpus": options.corpus, "task": options.task, "from": options.encoder}
    wanted = {"pretrain": ("model", "corpus"), "finetune": ("model", "task", "from")}[options.name]
    values = [part for name in wanted if given[name] for part in (f"--{name}", str(given[name]))]
    data = ["--data", options.data] if options.data else []
    metric = task_of(task_file(options.task)).metric if options.name == "finetune" else ""
    flags = [*values, *data, "--seed", str(options.seed), *flags]
    name = sweeping.sweep(file, flags, count=options.count, metric=metric)
    print(f"More runs of it: .venv/bin/wandb agent {name}")


def sync(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `sync`."""
    folders = [Path("runs"), Path("results")] if options.folder is None else [options.folder]
    print(f"Uploaded {sweeping.sync(folders)} runs.")


def make_task(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `new-task`."""
    for file in new_task(options.name, options.kind, Path(), packaged=CONFIGS / "tasks"):
        print(f"Wrote {file}")
    print(f"Now name your columns there, then: make finetune TASK={options.name} DATA=folder")
