"""The generated pages of the reference: made of parsers, configurations and docstrings when the site is built."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import json
import re
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from docstring_parser import parse as parse_docstring

REPOSITORY = Path(__file__).resolve().parent.parent


def cell(value: Any) -> str:
    """A text in a cell of a table."""
    return " ".join(str(value).split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines) + "\n"


def code(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value)
    return f"`{shown}`"


def sentence(text: str) -> str:
    """The first paragraph of a description, with a capital (not code, symbols, mBART) and a full stop."""
    text = " ".join(text.split("\n\n")[0].split())
    if not text or text.endswith("..."):
        return text
    if text.startswith("--"):
        return code(text)
    text = text.rstrip(".")
    return f"{text}." if re.match(r"[b-z]\b|[a-z]+[A-Z]", text) else f"{text[0].upper()}{text[1:]}."


def page(title: str, description: str, *parts: str) -> str:
    return "\n".join([f"---\ndescription: {description}\n---\n", f"# {title}\n", *parts])


# ---------------------------------------------------------------------- pages


def commands() -> str:
    """The flags of every command, from its parser."""
    from pipeline.cli.parser import command_modules, parser

    [choices] = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    targets = make_targets()
    parts = [
        "The same commands are targets of `make` and subcommands of `python -m pipeline` (after `pip install .`: "
        "`pretrain-finetune`). A flag is a variable of `make` in capitals: `--corpus texts` is `CORPUS=texts`. Flags "
        'without a variable go into `ARGS="..."`. Commands that train also take every key of the '
        "[configuration](configuration.md) as a flag.\n"
    ]
    for name in command_modules():
        command = choices.choices[name]
        parts.append(f"## {name}\n\n{sentence(command.description or '')}\n")
        parts.append(f"`make {name}`: {targets[name]}.\n" if name in targets else "")
        rows = [
            (
                ", ".join(map(code, action.option_strings)),
                default(action),
                sentence(IN_BRACKETS.sub("", action.help or "")),
            )
            for action in command._actions
            if action.option_strings and action.dest != "help" and action.help != argparse.SUPPRESS
        ]
        parts.append(table(["flag", "default", "meaning"], rows) if rows else "It takes no flags.\n")
        if command._defaults.get("overrides") is not None:
            parts.append("Further flags set the configuration.\n")
    others = [(code(f"make {name}"), sentence(text)) for name, text in targets.items() if name not in choices.choices]
    parts.append("## Targets of make alone\n\n" + table(["target", "meaning"], others))
    return page("Command line", "Every command and flag.", *parts)


IN_BRACKETS = re.compile(r" \[([^][]*)\]$")  # the default at the end of a help text


def default(action: argparse.Action) -> str:
    if action.required:
        return "required"
    if said := IN_BRACKETS.search(action.help or ""):
        return code(said[1])
    if action.nargs == 0 or action.default in (None, argparse.SUPPRESS):
        return ""
    return code(str(action.default))


def make_targets() -> dict[str, str]:
    """Targets of the Makefile, with what its help says of them."""
    text = (REPOSITORY / "Makefile").read_text()
    return dict(re.findall(r"^([a-z-]+):[^\n]*?## ([^\n]+)$", text, flags=re.M))


def configuration() -> str:
    """Every key of both stages, with its type, its default and its description."""
    from pipeline.cli.config import module_for
    from pipeline.cli.lightning_cli import CLI
    from pipeline.presets.files import CONFIGS
    from pipeline.training.corpus_data import CorpusData
    from pipeline.training.finetuning import FineTuning
    from pipeline.training.task_data import TaskData

    def parsed(module: Any, data: type, *files: str, flags: Sequence[str] = ()) -> Any:
        return CLI(module, data, [*(part for file in files for part in ("--config", str(CONFIGS / file))), *flags])

    names = {"BERT": "bert", "GPT": "gpt", "ELMo": "elmo", "LSTM": "lstm", "feed-forward": "fflm", "n-gram": "ngram"}
    models = {name: f"pretrain/{model}.yaml" for name, model in names.items()}
    stages = {
        name: parsed(module_for([CONFIGS / file], []), CorpusData, "base.yaml", file, flags=["--data.files=FILES"])
        for name, file in models.items()
    }
    tuning = parsed(FineTuning, TaskData, "finetune.yaml", "tasks/sst2.yaml")
    intro = (
        "Any key can be set on the command line, as a flag (`--trainer.max_steps=500`), in `ARGS=` behind `make`, or "
        "in a YAML file named by `--config file.yaml`. Later files and flags override earlier ones. An unknown key, a "
        "wrong type and a value out of range are errors that name the key.\n\n"
        "A run's own `config.yaml` holds every key as it was resolved. Arguments of `lightning.Trainer` that are not "
        "listed here work as well: `--trainer.num_nodes=2`.\n"
    )
    pretraining = [
        "## Pretraining\n",
        "Defaults are those of `configs/base.yaml` and `configs/pretrain/MODEL.yaml`; a "
        "corpus may have its own (`configs/corpora/`).\n",
        *sections(stages),
    ]
    finetuning = [
        "## Fine-tuning\n",
        "Defaults are those of `configs/finetune.yaml`; a task sets `data.task` and "
        "`data.epochs` (`configs/tasks/`).\n",
        *sections({"default": tuning}),
        task_keys(),
    ]
    return page("Configuration", "Every configuration key with its type and default.", intro, *pretraining, *finetuning)


HIDDEN = ("seed_everything", "trainer.precision")
ALWAYS = ("max_steps", "accelerator", "devices")  # of the trainer's keys, also where Lightning has the same default
TASK = "data.task.init_args."
BY_USE = {"data.files": None, "trainer.accelerator": "auto"}  # as a user has them, on any machine


def resolved(cli: Any) -> dict[str, Any]:
    """Every setting of a parsed configuration, as plain values."""
    return yaml.safe_load(cli.parser.dump(cli.config, skip_none=False))


def sections(stages: dict[str, Any]) -> Iterator[str]:
    """A table for each section of the configurations."""
    from pipeline.presets.files import flat

    values = {column: {**flat(resolved(cli)), **BY_USE} for column, cli in stages.items()}
    known_types = {column: typed(cli) for column, cli in stages.items()}
    names = list(dict.fromkeys(name for column in values.values() for name in column))
    names = [name for name in names if not name.startswith(TASK)]  # a table of their own
    rows: dict[str, list[list[str]]] = {}
    for name in names:
        if name.startswith(HIDDEN) or all(is_lightnings(name, column.get(name)) for column in values.values()):
            continue
        kind, about = next((known[name] for known in known_types.values() if name in known), ("", ""))
        section, _, key = name.removesuffix(".class_path").rpartition(".")
        defaults = {stage: code(column[name]) for stage, column in values.items() if name in column}
        about = re.split(r"\.?\s+Default: |\.\s+(?=[A-Z])", about)[0]
        rows.setdefault(section, []).append([code(key), kind, defaults_of(defaults, len(stages)), sentence(about)])
    for section, lines in rows.items():
        title = f"### `{section.removesuffix('.init_args')}`" if section else "### The run"
        flag = f"`--{section}.KEY=VALUE`" if section else "`--KEY=VALUE`"
        yield f"{title}\n\nAs flags: {flag}\n\n" + table(["key", "type", "default", "meaning"], lines)


def defaults_of(values: dict[str, str], stages: int) -> str:
    """Column -> default, as one text: the default alone where most have it, else each with the names of its columns."""
    columns: dict[str, list[str]] = {}
    for column, value in values.items():
        columns.setdefault(value, []).append(column)
    if len(columns) == 1 and 2 * len(values) > stages:
        return next(iter(columns))
    return "; ".join(f"{value} {', '.join(names)}" for value, names in columns.items())


def task_keys() -> str:
    """The arguments of the kinds of task: what a task's YAML file says of its data."""
    from tasks.base import kinds

    found: dict[str, tuple[str, str, list[str]]] = {}
    for kind, cls in kinds().items():
        for name, (type_, about) in arguments_of(f"{cls.__module__}.{cls.__name__}").items():
            found.setdefault(name, (type_, about, []))[2].append(kind)
    rows = [
        [code(name), type_, ", ".join(kinds_of), sentence(about)]
        for name, (type_, about, kinds_of) in found.items()
        if about and type_ != "class" and "ClassVar" not in type_ and name != "label_names"
    ]
    head = "### A task\n\n`data.task` names the kind of task by its class; these are its arguments.\n\nAs flags: "
    head += f"`--{TASK}KEY=VALUE`\n\n"
    return head + table(["key", "type", "kinds", "meaning"], rows)


def is_lightnings(name: str, value: Any) -> bool:
    """Whether a setting of the trainer is as Lightning has it."""
    import lightning

    section, _, key = name.partition(".")
    arguments = inspect.signature(lightning.Trainer.__init__).parameters
    return section == "trainer" and key not in ALWAYS and key in arguments and arguments[key].default == value


def typed(cli: Any) -> dict[str, tuple[str, str]]:
    """Dotted name of a key -> its type and its description, of a class's arguments too."""
    known = {}
    for action in cli.parser._actions:
        text = (action.help or "").split(". Default: ")[0].replace("``", "`")
        known[action.dest] = (shown(getattr(action, "_typehint", None) or action.type), text)
        known[f"{action.dest}.class_path"] = known[action.dest]
    waiting = [("", resolved(cli))]
    while waiting:
        prefix, value = waiting.pop()
        if not isinstance(value, dict):
            continue
        waiting += [(f"{prefix}{key}.", part) for key, part in value.items()]
        if "class_path" in value:
            arguments = {
                f"{prefix}init_args.{name}": found for name, found in arguments_of(value["class_path"]).items()
            }
            known |= arguments
    return known


def arguments_of(path: str) -> dict[str, tuple[str, str]]:
    """Arguments of a class, with types and descriptions; those of its bases where it has none of its own."""
    module, _, name = path.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for text in (vars(base).get("__doc__"), getattr(vars(base).get("__init__"), "__doc__", None)):
            for parameter in parse_docstring(inspect.cleandoc(text or "")).params:
                texts[parameter.arg_name] = parameter.description or ""
    try:
        hints = typing.get_type_hints(cls if dataclasses.is_dataclass(cls) else cls.__init__)
    except NameError:  # a type that is imported for type checkers alone
        hints = {}
    return {argument: (shown(hints.get(argument)), texts.get(argument, "")) for argument in {**hints, **texts}}


def shown(kind: Any) -> str:
    """A type as a reader would write it: whole number, `paper` or `local`, list of int."""
    if kind is None or kind is type(None):
        return "" if kind is None else "null"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return shown(arguments[0])
    if origin is typing.Literal:
        return " or ".join(map(code, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(shown, arguments)))
    if origin in (list, tuple, Sequence) and arguments:
        return re.sub("number$", "numbers", f"list of {shown(arguments[0])}")
    if origin is dict:
        return "mapping"
    if isinstance(kind, type):
        return WORDS.get(kind, kind.__name__)
    return "class" if arguments else re.sub(r"\w+\.", "", str(kind))


WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", dict: "mapping"}


def presets() -> str:
    """The files of configs/, with the first line of each."""
    from pipeline.presets.files import CONFIGS

    titles = {
        "pretrain": ("Models", "`MODEL=NAME`"),
        "corpora": ("Corpora", "`CORPUS=NAME`"),
        "tasks": ("Tasks", "`TASK=NAME`"),
        "compare": ("Grids", "`make compare NAME=NAME`"),
        "ladder": ("Ladders", "`make ladder NAME=NAME`"),
        "recipes": ("Recipes", "`make recipes NAME=NAME`"),
        "machines": ("Machines", '`ARGS="--config configs/machines/NAME"`; a `.sh` is for `sbatch`'),
        "sweeps": ("Sweeps", "`make sweep NAME=NAME`"),
    }
    parts = [
        "A preset is a YAML file in `configs/`, found by its name. Your own tasks are found in `configs/tasks/` of "
        "the current folder as well.\n"
    ]
    for folder, (title, use) in titles.items():
        files = sorted(file for file in (CONFIGS / folder).glob("*.*") if file.suffix in (".yaml", ".sh"))
        rows = [
            (code(file.stem if file.suffix == ".yaml" and folder != "machines" else file.name), comment(file))
            for file in files
        ]
        parts.append(f"## {title}\n\n{use}\n\n" + table(["name", "what it is"], rows))
    return page("Presets", "Models, corpora, tasks, grids, ladders, recipes and machines by name.", *parts)


def comment(file: Path) -> str:
    """The comment at the top of a file, or the hub name of its data."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#!")]
    head = []
    for line in lines:
        if not line.startswith("# "):
            break
        head.append(line[2:])
    if head:
        return sentence(re.split(r"(?<=\.)(?<!et al\.)\s", " ".join(head), maxsplit=1)[0].rstrip(":"))
    content = yaml.safe_load("\n".join(lines)) if file.suffix == ".yaml" else {}
    hub = content.get("data", {}).get("hub") or {}
    return " ".join(str(hub[key]) for key in ("path", "name") if hub.get(key))


def outputs() -> str:
    """The files of a run (a page written by hand), and every key of metrics.json."""
    from pipeline.tracking.metric_names import METRIC_NAMES

    written = (REPOSITORY / "docs/reference/outputs.md").read_text()
    rows = [(code(name), sentence(text)) for name, text in METRIC_NAMES.items()]
    return written + "\n" + table(["key", "meaning"], rows)
