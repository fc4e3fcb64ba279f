"""The verbs: from a command line to a finished run folder.

LightningCLI parses YAML and flags (`run=False`); what is left here is the order of work.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser, set_parsing_settings
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from pipeline import UserError, asking, encoders, predicting, tracking, trying, tuned
from pipeline import audit as auditing
from pipeline import compare as comparing
from pipeline import evaluate as evaluating
from pipeline import import_elmo as importing
from pipeline import worth as valuing
from pipeline.corpus import CorpusData
from pipeline.encoders.base import read_config
from pipeline.encoders.elmo import Elmo
from pipeline.finetune import FineTuning
from pipeline.labeled import LabeledData, rows_of
from pipeline.new_task import KINDS, new_task
from pipeline.pretrain import Pretraining
from pipeline.results import finish, hand_off
from pipeline.runs import Run, check_run_folder
from pipeline.text import write_atomically
from pipeline.tokenizer import Tokenizer
from tasks.base import Task

set_parsing_settings(subclasses_enabled=[Task])  # a YAML names the kind of task: a dataclass of its own

REPOSITORY = Path(__file__).resolve().parent.parent
CONFIGS = REPOSITORY / "configs"
ARMS = ("full", "frozen", "scratch", "random")
PRECISIONS = Literal["auto", "bf16-mixed", "32-true"]  # float16 would need its gradients unscaled before clipping


class CLI(LightningCLI):
    """Parses; the trainer is made later, when the data are known."""

    def __init__(self, model: type, data: type, args: list[str]) -> None:
        super().__init__(
            model,
            data,
            run=False,
            args=args,
            save_config_callback=None,
            seed_everything_default=False,
            auto_configure_optimizers=False,
            parser_kwargs={"exit_on_error": False, "prog": "python -m pipeline", "default_env": False},
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--precision", type=PRECISIONS, required=True)
        parser.add_argument("--validate_every", type=int, required=True, help="optimiser steps between validations")

    def before_instantiate_classes(self) -> None:
        precision = self.config.precision
        self.config.trainer.precision = best_precision() if precision == "auto" else precision

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        return super().instantiate_trainer(**kwargs) if kwargs else None


class FineTuneCLI(CLI):
    def add_arguments_to_parser(self, parser: Any) -> None:
        parser.add_argument("--precision", type=PRECISIONS, required=True)
        parser.add_argument("--validations", type=int, required=True, help="how often the validation part is scored")
        parser.add_argument("--patience", type=int, required=True, help="validations without a better one")


def best_precision() -> str:
    """bf16 where the processor multiplies it natively, else float32."""
    if torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        flags = ""
    return "bf16-mixed" if "avx512_bf16" in flags or "amx_bf16" in flags else "32-true"


def parser() -> argparse.ArgumentParser:
    """The variables of the Makefile as flags; all other flags go to the configuration."""
    top = argparse.ArgumentParser(
        prog="python -m pipeline", allow_abbrev=False, description=(__doc__ or "").split("\n")[0]
    )
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    shared = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    shared.add_argument("--model", default="bert", help="bert, gpt or elmo")
    shared.add_argument("--data", default=None, help="local folder, file or pattern instead of a hub name")
    shared.add_argument("--seed", type=int, default=0)
    shared.add_argument("--out", type=Path, default=None, help="run folder")
    shared.add_argument("--resume", action="store_true", help="go on with the run in the run folder")
    shared.add_argument("--overwrite", action="store_true", help="start anew over a run in the run folder")
    pretraining = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    pretraining.add_argument("--corpus", default="sample", help="a name in configs/corpora or a path")
    rest = "further flags set the configuration: --trainer.max_steps=100, --data.batch_size=16, ..."
    verbs.add_parser("data", parents=[shared, pretraining], help="build the token store and report on it", epilog=rest)
    verbs.add_parser("pretrain", parents=[shared, pretraining], help="pretrain an encoder on raw text", epilog=rest)
    verbs.add_parser(
        "audit", parents=[shared, pretraining], help="check masks, labels and leaks of a model", epilog=rest
    )
    trying = verbs.add_parser("try", parents=[shared, pretraining], help="look at what an encoder knows", epilog=rest)
    trying.add_argument("--from", dest="encoder", type=Path, default=None, help="encoder folder")
    trying.add_argument("--prompt", default=None, help="text to go on with (GPT) or with [MASK] to fill (BERT)")
    trying.add_argument("--word", default=None, help="word whose neighbours are shown (ELMo)")
    trying.add_argument("--tokens", type=int, default=60, help="most new tokens")
    trying.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token each time")
    trying.add_argument("--top-k", type=int, default=0, help="draw from the k likeliest tokens; 0: all")
    trying.add_argument("--top-p", type=float, default=0.95, help="draw from the fewest tokens with this share")
    evaluation = verbs.add_parser(
        "evaluate", parents=[shared, pretraining], help="losses and bits per byte of an encoder on a text", epilog=rest
    )
    evaluation.add_argument("--from", dest="encoder", type=Path, default=None, help="encoder folder")
    importing = verbs.add_parser("import-elmo", help="published ELMo weights -> an encoder folder")
    importing.add_argument("--options", type=Path, required=True, help="options.json")
    importing.add_argument("--weights", type=Path, required=True, help="weights.hdf5")
    importing.add_argument("--out", type=Path, required=True, help="encoder folder to write")
    importing.add_argument("--state", choices=("reset", "carry"), default="reset", help="begin each text from zero?")
    tuning = verbs.add_parser("finetune", parents=[shared], help="fine-tune an encoder on a task", epilog=rest)
    tuning.add_argument("--task", default="sentiment", help="a name in configs/tasks or a path to a YAML file")
    tuning.add_argument("--from", dest="encoder", type=Path, default=None, help="encoder folder")
    tuning.add_argument("--arm", choices=ARMS, default="full")
    tuning.add_argument("--seeds", type=int, default=0, help="run so many seeds, and as many of scratch")
    zero = verbs.add_parser("zeroshot", parents=[shared], help="ask a pretrained encoder by prompts, without training")
    zero.add_argument("--task", default="sentiment", help="a name in configs/tasks or a path to a YAML file")
    zero.add_argument("--from", dest="encoder", type=Path, default=None, help="encoder folder")
    zero.add_argument("--shots", default="0", help="solved examples in front; several numbers give a curve: 0,1,4")
    zero.add_argument("--limit", type=int, default=0, help="ask only so many rows")
    value = verbs.add_parser("worth", parents=[shared], help="zero-shot beside fine-tunes on 10 to 1,000 rows")
    value.add_argument("--task", default="sentiment", help="a name in configs/tasks or a path to a YAML file")
    value.add_argument("--from", dest="encoder", type=Path, default=None, help="encoder folder")
    value.add_argument("--seeds", type=int, default=3, help="fine-tunes for each number of rows")
    harness = verbs.add_parser("lm-eval", help="run lm-evaluation-harness on an encoder (extra lm-eval)")
    harness.add_argument("--tasks", required=True, help="lm-eval's names, with commas between them")
    harness.add_argument("--encoder", type=Path, required=True, help="encoder folder: GPT, BERT or ELMo")
    harness.add_argument("--limit", type=int, default=0, help="ask only so many items of each")
    harness.add_argument("--include-path", type=Path, default=None, help="folder with YAML files of further tasks")
    answers = verbs.add_parser("predict", help="labels or tags of new texts, as JSON lines")
    answers.add_argument("--model", type=Path, required=True, help="model folder of a fine-tune")
    answers.add_argument("--input", default="-", help="file, or - for standard input")
    answers.add_argument("--format", choices=predicting.FORMATS, default=None, help="of the input; by its name")
    answers.add_argument("--out", type=Path, default=None, help="file; standard output otherwise")
    answers.add_argument("--batch-size", type=int, default=64)
    new = verbs.add_parser("new-task", help="the YAML file of a new data set, and a test of it")
    new.add_argument("--name", required=True)
    new.add_argument("--kind", choices=tuple(KINDS), default="sentence")
    grid = verbs.add_parser("compare", help="models x tasks x arms x seeds in one table")
    grid.add_argument("--name", default="sample", help="a name in configs/compare or a path to a YAML file")
    grid.add_argument("--data", default=None, help="folder that holds the data of the tasks")
    grid.add_argument("--from", dest="encoders", default=None, help="encoder folders, with {model} in place of a name")
    grid.add_argument("--out", type=Path, default=None)
    for field in ("models", "tasks", "arms"):
        grid.add_argument(f"--{field}", default=None, help="some of them, separated by spaces")
    grid.add_argument("--seeds", type=int, default=0)
    return top


def main(args: list[str]) -> None:
    """Runs one verb.

    Raises:
        UserError: whatever the user can put right.
    """
    options, flags = parser().parse_known_args(args)
    _quiet()
    verb: Callable[[argparse.Namespace, list[str]], None] = {
        "finetune": finetune,
        "audit": audit,
        "try": try_out,
        "evaluate": evaluate,
        "import-elmo": import_elmo,
        "compare": compare,
        "predict": predict,
        "zeroshot": zeroshot,
        "lm-eval": lm_eval,
        "worth": worth,
        "new-task": make_task,
    }.get(options.verb, pretrain)
    verb(options, flags)


def _quiet() -> None:
    """Only what a user can act on: the tips of libraries drown the figures."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (".*does not have many workers.*", ".*isn't.*leaf.*", ".*litlogger.*", ".*LightningCLI's args.*"):
        warnings.filterwarnings("ignore", message=message)
    warnings.filterwarnings("ignore", message=".*Checkpoint directory.*exists and is not empty.*")
    warnings.filterwarnings("ignore", message=".*val_check_interval.*|.*max_epochs.*|.*sync_dist=True.*")
    warnings.filterwarnings("ignore", category=FutureWarning)


# ---------------------------------------------------------------------- configuration


def named_config(kind: str, name: str) -> Path | None:
    """`configs/KIND/NAME.yaml`, if there is one."""
    file = CONFIGS / kind / f"{name}.yaml"
    return file if file.is_file() else None


def known(kind: str) -> str:
    return ", ".join(sorted(path.stem for path in (CONFIGS / kind).glob("*.yaml")))


def parse(model: type, data: type, files: list[Path], flags: list[str], cli_class: type[CLI] | None = None) -> CLI:
    """Configuration files in order, then flags.

    Raises:
        UserError: an unknown key, a wrong type or a value out of range, named.
    """
    args = [part for file in files for part in ("--config", str(file))] + flags
    try:
        return (cli_class or CLI)(model, data, args)
    except (ArgumentError, TypeError, ValueError, OSError) as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        if not isinstance(error, ArgumentError):
            raise
        raise UserError(f"The configuration is not valid: {_first_sentence(str(error))}") from None


def _first_sentence(message: str) -> str:
    lines = [line.strip(" -") for line in message.replace("error: ", "").splitlines() if line.strip()]
    return " ".join(lines)[:400].rstrip(".") + "."


def corpus_config(corpus: str, data: str | None, model: str) -> tuple[list[Path], list[str]]:
    """CORPUS= and DATA= -> configuration files and flags; `corpora/NAME/MODEL.yaml` is what a model takes for it."""
    preset = named_config("corpora", corpus)
    if preset is None and not _is_path(corpus):
        raise UserError(f"There is no corpus '{corpus}': neither a preset ({known('corpora')}) nor a path.")
    own = named_config(f"corpora/{corpus}", model)
    files = [file for file in (preset, own) if file]
    location = data if data is not None else None if preset else corpus
    if location is None:
        return files, []
    return files, ["--data.files", location, "--data.hub=null", "--data.sample_documents=null"]


def _is_path(corpus: str) -> bool:
    return "/" in corpus or any(mark in corpus for mark in "*?[") or Path(corpus).exists() or bool(Path(corpus).suffix)


# ---------------------------------------------------------------------- pretraining


def pretraining(options: argparse.Namespace, flags: list[str]) -> CLI:
    """MODEL=, CORPUS= and flags -> a LightningModule and its data, not yet built."""
    model_file = named_config("pretrain", options.model)
    if model_file is None:
        raise UserError(f"There is no model '{options.model}'; there are {known('pretrain')}.")
    corpus_files, corpus_flags = corpus_config(options.corpus, options.data, options.model)
    seeds = [f"--model.seed={options.seed}", f"--data.seed={options.seed}"]
    files = [CONFIGS / "base.yaml", model_file, *corpus_files]
    return parse(Pretraining, CorpusData, files, [*corpus_flags, *seeds, *flags])


def audit(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `audit`: exit status 1 when a check fails."""
    cli = pretraining(options, flags)
    data, module = cli.datamodule, cli.model
    data.prepare()
    module.build(data)
    print(f"audit of {options.model} on {Path(options.corpus).name}")
    failed = 0
    for check in auditing.audit(module.encoder, module.objective, data, uniform=module.floors["floor/uniform"]):
        print(check, flush=True)
        failed += not check.passed
    print(f"{failed} failed" if failed else "all passed")
    if failed:
        raise SystemExit(1)


def try_out(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `try`."""
    folder = encoder_folder(options)
    encoder = encoders.load(folder)
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
    encoder = encoders.load(encoder_folder(options))
    cli = pretraining(options, flags)
    figures = evaluating.evaluate(encoder, cli.model.objective, cli.datamodule)
    for name, value in figures.items():
        print(f"{name:<24} {value:,}" if isinstance(value, int) else f"{name:<24} {value:.4f}")


def import_elmo(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `import-elmo`."""
    if flags:
        raise UserError(f"import-elmo does not know the flag {flags[0]}.")
    if options.out.exists():
        raise UserError(f"{options.out} is there already; choose another OUT folder.")
    encoder = importing.import_elmo(options.options, options.weights, state=options.state)
    card = f"# elmo encoder\n\nImported from {options.options.name} and {options.weights.name}; no output layer.\n"
    tracking.write_folder(options.out, lambda folder: encoder.save(folder, card=card))
    count = sum(p.numel() for p in encoder.parameters())
    print(f"Saved {options.out}: {count:,} parameters, layers of {encoder.size}, state {options.state}.")


def pretrain(options: argparse.Namespace, flags: list[str]) -> None:
    cli = pretraining(options, flags)
    data, module = cli.datamodule, cli.model
    if options.verb == "data":
        data.prepare()
        print(data.report())
        return
    out = options.out or Path("runs/pretrain") / options.model
    trainer = cli.config_init.trainer
    if data.maker.consecutive and (trainer.accumulate_grad_batches > 1 or trainer.devices not in (1, "1")):
        raise UserError(
            "With carry each row goes on with the state of the step before: set data.batches.init_args.carry to "
            "false, or train in one process without accumulation."
        )
    check_run_folder(out, options)
    data.prepare()
    print(data.report())
    module.build(data)
    print(
        f"{options.model}: {sum(p.numel() for p in module.encoder.parameters()):,} parameters; "
        f"floors: uniform {module.floors['floor/uniform']:.2f}, unigram {module.floors['floor/unigram']:.2f} nats"
    )
    tags = [options.model, Path(options.corpus).name]
    run = Run(cli, out, options, job_type="pretrain", group=lineage(options.model, data.tokenizer), tags=tags)
    (out / "data.txt").write_text(data.report() + "\n")
    run.fit(monitor="val/loss", mode="min")

    figures = {**run.figures(), **module.floors, "documents": data.train.meta["documents"]}
    card = model_card(options, module, data, figures)
    tracking.write_folder(out / "encoder", lambda folder: module.encoder.save(folder, card=card))
    curve_losses = [
        f"{split}/{name[4:]}" for name in figures if re.fullmatch(r"val/.+_loss", name) for split in ("train", "val")
    ]
    tracking.plot_curves(module.history, out / "curves.png", floors=module.floors, losses=curve_losses)
    run.finish(figures, artifact=("encoder", out / "encoder"))
    shown = ", ".join(f"{name[4:]} {value:.4g}" for name, value in figures.items() if name.startswith("val/"))
    print(f"Saved {out / 'encoder'} after {figures['seconds']:.0f} s: {shown}")
    model = "" if options.model == "bert" else f"MODEL={options.model} "
    print(f"Next: make finetune {model}TASK=sentiment FROM={out / 'encoder'}")


def lineage(model: str, tokenizer: Tokenizer) -> str:
    """The group of a run in Weights & Biases: an encoder and what grew from it share the tokenizer."""
    return f"{model}-{tokenizer.hash[:12]}"


def model_card(options: argparse.Namespace, module: Pretraining, data: CorpusData, figures: dict[str, Any]) -> str:
    rows = "\n".join(f"| {name} | {value:.5g} |" for name, value in figures.items() if isinstance(value, (int, float)))
    synthetic = " The corpus is synthetic." if data.sample_documents else ""
    return (
        f"---\nlibrary_name: transformers\ntags: [{options.model}]\n---\n# {options.model} encoder\n\n"
        f"Pretrained on `{Path(options.corpus).name}` ({data.train.meta['tokens']:,} tokens) for "
        f"{module.global_step:,} steps of {data.batch_size} rows of at most {data.length} tokens.{synthetic}\n\n"
        f"| figure | value |\n| --- | --- |\n{rows}\n"
    )


# ---------------------------------------------------------------------- fine-tuning


def encoder_folder(options: argparse.Namespace) -> Path:
    """FROM=, or where MODEL was pretrained; refuses one that holds another model."""
    folder = options.encoder or Path("runs/pretrain") / options.model / "encoder"
    wanted = options.model.split("-")[0]  # elmo-paper is an elmo
    if (model_type := encoders.family(read_config(folder)["model_type"])) != wanted:
        hint = (
            f"set MODEL={model_type}" if model_type in encoders.names() else f"there are {', '.join(encoders.names())}"
        )
        raise UserError(f"{folder} holds a {model_type} encoder, not {wanted}; {hint}.")
    return folder


def task_file(task: str) -> Path:
    """TASK= -> its YAML file; kinds of task of the user's own may stand beside it."""
    file = named_config("tasks", task) or Path(task)
    if not file.is_file():
        raise UserError(f"There is no task '{task}': neither a preset ({known('tasks')}) nor a YAML file.")
    sys.path.append(str(file.parent.resolve()))
    return file


def finetune(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `finetune`."""
    folder, file = encoder_folder(options), task_file(options.task)
    if task_of(file).head == "none":
        raise UserError(f"{file.stem} has prompts and nothing to train on; use make zeroshot TASK={options.task}.")
    name = f"{options.model}-{file.stem}" + ("" if options.arm == "full" else f"-{options.arm}")
    out = options.out or Path("runs/finetune") / name
    if options.seeds:
        several_seeds(options, flags, out, folder)
        return
    flags = [f"--model.seed={options.seed}", f"--data.seed={options.seed}", f"--model.arm={options.arm}", *flags]
    if options.data is not None:
        flags = ["--data.files", options.data, *flags]
    cli = parse(FineTuning, LabeledData, [CONFIGS / "finetune.yaml", file], flags, cli_class=FineTuneCLI)
    check_run_folder(out, options)

    torch.manual_seed(options.seed)
    encoder, receipt = encoders.load_with_receipt(folder, weights=options.arm not in ("scratch", "random"))
    data, module = cli.datamodule, cli.model
    data.prepare(encoder)
    module.build(data)
    receipt_text = hand_off(folder, receipt, module)
    print(receipt_text, data.report(), sep="\n")

    tags = [options.model, file.stem, options.arm]
    group = lineage(options.model, encoder.tokenizer)
    training = Run(cli, out, options, job_type="finetune", group=group, tags=tags, uses=folder)
    write_atomically(out / "receipt.txt", receipt_text + "\n")
    steps = max(1, round(data.epochs * data.steps_per_epoch))
    training.fit(
        monitor=f"val/{data.task.metric}",
        mode="max",
        max_steps=steps,
        validate_every=max(1, steps // cli.config_init.validations),
        patience=cli.config_init.patience or None,
    )
    finish(training, module, data)


def task_of(file: Path) -> Task:
    """The task alone of its YAML file."""
    reader = ArgumentParser(exit_on_error=False)
    reader.add_argument("--task", type=Task, required=True)
    try:
        content = yaml.safe_load(file.read_text())
        return reader.instantiate(reader.parse_object({"task": content["data"]["task"]})).task
    except (ArgumentError, TypeError, KeyError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{file} is not valid: {_first_sentence(str(error))}") from None


def zeroshot(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `zeroshot`."""
    if flags:
        raise UserError(f"zeroshot does not know the flag {flags[0]}; see python -m pipeline zeroshot --help.")
    folder, file = encoder_folder(options), task_file(options.task)
    task, encoder = task_of(file), encoders.load(folder)
    out = options.out or Path("runs/zeroshot") / f"{options.model}-{file.stem}"
    check_run_folder(out, options)
    try:
        shots = [int(part) for part in options.shots.replace(",", " ").split()]
    except ValueError:
        raise UserError(f"SHOTS={options.shots} must be numbers, as 0 or 0,1,4.") from None
    if not shots or min(shots) < 0:
        raise UserError(f"SHOTS={options.shots} must be numbers of at least 0.")
    settings = {"limit": options.limit, "seed": options.seed}
    tags = [options.model, file.stem, "zeroshot"]
    asking.run(encoder, task, out, files=options.data, shots=shots, folder=folder, tags=tags, **settings)


def lm_eval(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `lm-eval`."""
    if flags:
        raise UserError(f"lm-eval does not know the flag {flags[0]}; see python -m pipeline lm-eval --help.")
    try:
        from pipeline import lm_eval_model
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("lm_eval"):
            raise
        raise UserError("lm-eval is not installed; pip install -c constraints.txt -e '.[lm-eval]'.") from None
    encoder = encoders.load(options.encoder)
    print(lm_eval_model.run(encoder, options.tasks.split(","), limit=options.limit, include=options.include_path))


def predict(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `predict`."""
    if flags:
        raise UserError(f"predict does not know the flag {flags[0]}; see python -m pipeline predict --help.")
    form = predicting.form_of(options.input, options.format)
    settings: dict[str, Any] = {"form": form, "batch_size": options.batch_size}
    with contextlib.ExitStack() as files:
        model = tuned.load(options.model)
        source = files.enter_context(predicting.open_source(options.input))
        target = files.enter_context(open(options.out, "w", encoding="utf-8")) if options.out else sys.stdout
        try:
            predicting.predict(model, source, options.input, target=target, **settings)
        except UnicodeDecodeError:
            raise UserError(f"{options.input} is not UTF-8 text.") from None
        except BrokenPipeError:  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_task(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `new-task`."""
    if flags:
        raise UserError(f"new-task does not know the flag {flags[0]}.")
    for file in new_task(options.name, options.kind, REPOSITORY):
        print(f"Wrote {file.relative_to(REPOSITORY)}")
    print(f"Now name your columns there, then: make finetune TASK={options.name} DATA=folder")


# ---------------------------------------------------------------------- many runs


def several_seeds(options: argparse.Namespace, flags: list[str], out: Path, encoder: Path) -> None:
    """SEEDS=: one arm and scratch, with as many seeds, and what the one gained."""
    arms = {arm: comparing.Arm(options.seeds) for arm in dict.fromkeys((options.arm, "scratch"))}
    grid = comparing.Grid([options.model], {options.task: options.data}, arms, str(encoder))
    out = out.with_name(f"{out.name}-seeds")
    comparing.compare(grid, out, lambda flags_of_run, **run: one_run(flags=[*flags, *flags_of_run], **run))
    print((out / "compare.md").read_text())


def worth(options: argparse.Namespace, flags: list[str]) -> None:
    """The verb `worth`."""
    file, folder = task_file(options.task), encoder_folder(options)
    task = task_of(file)
    if task.metric != "accuracy" or not task.prompts:
        raise UserError(f"{file.stem} has no prompts, or is not scored by accuracy: there is nothing to compare.")
    out = options.out or Path("runs/worth") / f"{options.model}-{file.stem}"
    shared = {"model": options.model, "task": options.task, "data": options.data, "encoder": folder, "resume": False}

    def tune(*, out: Path, seed: int, flags: list[str]) -> None:
        one_run(flags=flags, out=out, seed=seed, arm="full", **shared)

    def ask(*, out: Path) -> None:
        zeroshot(argparse.Namespace(out=out, seed=options.seed, shots="0", limit=0, overwrite=True, **shared), [])

    rows = len(rows_of(task, options.data, "train") or [])
    figures = valuing.worth(
        lambda **run: tune(**{**run, "flags": [*run["flags"], *flags]}), ask, out, rows=rows, seeds=options.seeds
    )
    for number, scores in figures["finetuned"].items():
        print(f"{number:>6} rows  {comparing.described(scores)}")
    print(f"{valuing.verdict(figures)}\nSaved worth.json and worth.png in {out}")


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
    if file == named_config("compare", "sample"):
        pretrain_missing(grid)
    out = options.out or Path("results") / file.stem
    comparing.compare(grid, out, lambda flags_of_run, **run: one_run(flags=[*flags, *flags_of_run], **run))
    print((out / "compare.md").read_text())
    print(f"Saved {out / 'compare.csv'}, compare.md and compare.png in {out}")


def one_run(*, flags: list[str], **run: Any) -> None:
    """A fine-tune of a grid."""
    finetune(argparse.Namespace(seeds=0, overwrite=not run["resume"], **run), flags)


def pretrain_missing(grid: comparing.Grid) -> None:
    """The sample's encoders that are not there yet."""
    for model in grid.models:
        if not (grid.encoder(model) / "model.safetensors").is_file():
            main(["pretrain", "--model", model, "--out", str(grid.encoder(model).parent), "--overwrite"])
