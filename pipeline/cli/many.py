"""Verbs that run many fine-tunes: several seeds, grids, and what a prompt is worth."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pipeline.cli.config import encoder_folder
from pipeline.cli.verbs import finetune, pretrain, zeroshot
from pipeline.errors import UserError
from pipeline.experiments import comparison as gains
from pipeline.experiments import data_efficiency as valuing
from pipeline.experiments import grid as comparing
from pipeline.experiments import resume_test as verifying
from pipeline.presets import known, named_config, task_file, task_of
from pipeline.training.task_data import rows_aside, rows_of

# Flags of both stages: what a run computes on, and with.
OF_BOTH = ("--precision", "--trainer.accelerator", "--trainer.accumulate_grad_batches")


def several_seeds(options: argparse.Namespace, flags: list[str]) -> None:
    """SEEDS=: one arm and scratch, with as many seeds, and what the one gained."""
    arms = {arm: comparing.Arm(options.seeds) for arm in dict.fromkeys((options.arm, "scratch"))}
    grid = comparing.Grid(
        [options.model], {options.task: options.data}, arms, str(encoder_folder(options)), flags=flags
    )
    arm = "" if options.arm == "full" else f"-{options.arm}"
    out = options.out or Path("runs/finetune") / f"{options.model}-{task_file(options.task).stem}{arm}-seeds"
    if (out / "config.yaml").exists():
        raise UserError(f"{out} holds a single run; choose another OUT= for several.")
    check_seeds(options)
    comparing.check_flags(grid)
    show(grid, out, anew=options.overwrite)


def check_seeds(options: argparse.Namespace) -> None:
    """Raises: UserError, a single seed is asked for."""
    if options.seed:
        raise UserError(
            f"SEEDS={options.seeds} runs the seeds 0 to {options.seeds - 1}: leave SEED={options.seed} out."
        )


def show(grid: comparing.Grid, out: Path, **more: Any) -> None:
    comparing.compare(grid, out, one_run, **more)
    print((out / "compare.md").read_text())
    print(f"Saved {', '.join(path.name for path in sorted(out.glob('compare.*')))} in {out}")


def compare(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `compare`."""
    file = named_config("compare", options.name) or Path(options.name)
    if not file.is_file():
        raise UserError(f"There is no grid '{options.name}': neither a preset ({known('compare')}) nor a YAML file.")
    changes: dict[str, Any] = {
        name: value.split() for name in ("models", "tasks", "arms") if (value := getattr(options, name))
    }
    changes |= {name: value for name in ("data", "encoders", "seeds") if (value := getattr(options, name))}
    grid = comparing.load(file, **changes)
    if options.data and (elsewhere := [task for task, place in grid.tasks.items() if place is None]):
        raise UserError(
            f"{file.name} has no folder for '{elsewhere[0]}', so DATA= would be passed over. Name it in a grid of your "
            f"own ({{tasks: {{{elsewhere[0]}: FOLDER}}}}), or use make finetune."
        )
    whole = comparing.load(file, **{name: changes[name] for name in ("data", "encoders") if name in changes})
    grid.flags = whole.flags = [*grid.flags, *flags]
    comparing.check_flags(grid)  # before minutes of pretraining
    if file == named_config("compare", "sample") and not options.encoders:
        pretrain_missing(grid)
    show(grid, options.out or Path("results") / file.stem, anew=options.overwrite, whole=whole)


def pretrain_missing(grid: comparing.Grid) -> None:
    """The sample's encoders that are not there yet."""
    for model in grid.models:
        if not (grid.encoder(model) / "model.safetensors").is_file():
            settings = {"corpus": "sample", "data": None, "seed": 0, "resume": True, "overwrite": False}
            out = grid.encoder(model).parent
            pretrain(argparse.Namespace(model=model, out=out, **settings), [])


def verify_resume(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `verify-resume`: exit status 1 when a killed run ends otherwise than the uninterrupted one.

    On a processor unless ARGS say otherwise: some of CUDA's kernels add up in another order each time.
    """
    out = options.out or Path("runs/verify-resume") / options.model
    shared = ["--model", options.model, "--seed", str(options.seed)]
    data = [] if options.data is None else ["--data", options.data]
    place = "--trainer.accelerator=cpu"
    short = [place, "--trainer.max_steps=40", "--validate_every=6", "--trainer.log_every_n_steps=2"]
    found = {}
    pretraining = [*shared, "--corpus", options.corpus, *data, *short, *flags]
    pairs = " ".join(flags).replace(" --", "\n--").split("\n")  # as `--precision 32-true`, which is two words
    of_both = [word for pair in pairs if pair.startswith(OF_BOTH) for word in pair.split(" ")]
    found["pretrain"] = verifying.verify("pretrain", pretraining, out, seed=options.seed)
    encoder = out / "pretrain-straight/encoder"
    tuning = ["--task", options.task, "--from", str(encoder), "--data.epochs=3", "--model.craft.unfreeze_share=0.5"]
    found["finetune"] = verifying.verify("finetune", [*shared, *tuning, place, *of_both], out, seed=options.seed)
    print(verifying.certificate(out, found, model=options.model, corpus=Path(options.corpus).name, task=options.task))
    if not all(result["passed"] for result in found.values()):
        raise SystemExit(1)


def worth(options: argparse.Namespace, further: list[str]) -> None:
    """The verb `worth`."""
    file, folder = task_file(options.task), encoder_folder(options)
    task = task_of(file)
    if task.metric != "accuracy" or not task.prompts:
        raise UserError(f"{file.stem} has no prompts, or is not scored by accuracy: there is nothing to compare.")
    out = options.out or Path("runs/worth") / f"{options.model}-{file.stem}"
    check_seeds(options)
    if any(flag.startswith("--data.train_rows") for flag in further):
        raise UserError("data.train_rows is another for each point of the line: leave it out.")
    shared = {"task": options.task, "data": options.data, "encoder": folder}

    def tune(*, flags: list[str], **run: Any) -> None:
        one_run(flags=[*flags, *further], model=options.model, arm="full", **run, **shared)

    def ask(**run: Any) -> None:
        settings = {"seed": 0, "shots": "0", "limit": 0, "unigram": None, "log_text": False}
        zeroshot(argparse.Namespace(model=options.model, overwrite=True, **settings, **shared, **run), [])

    rows = sum(not task.is_ignored(row) for row in rows_of(task, options.data, "train") or [])
    if rows_of(task, options.data, "valid") is None:
        rows -= rows_aside(task, rows)
    cell = comparing.cell_of(**shared, arm="full", flags=further)
    settings = {"rows": rows, "seeds": options.seeds, "anew": options.overwrite}
    figures = valuing.worth(tune, ask, out, cell=cell, prompts=repr(task.prompts), **settings)
    for number, scores in figures["finetuned"].items():
        print(f"{number:>6} rows  {gains.described(scores)}")
    print(f"{valuing.verdict(figures)}\nSaved worth.json and worth.png in {out}")


def one_run(*, flags: list[str], **run: Any) -> None:
    """A fine-tune of a grid."""
    if any(flag.startswith(("--trainer.devices", "--trainer.num_nodes", "--config")) for flag in flags):
        raise UserError("Each of many fine-tunes runs in one process: devices, nodes and --config are for single ones.")
    if any(flag.startswith(("--model.seed", "--data.seed", "--model.arm")) for flag in flags):
        raise UserError(
            "Each of many fine-tunes has a seed and an arm of its own: leave model.seed, data.seed and model.arm out."
        )
    finetune(argparse.Namespace(seeds=0, overwrite=not run["resume"], **run), flags)
