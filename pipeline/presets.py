"""Named configurations: `configs/KIND/NAME.yaml` by name, tasks by name, and choices that have names."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from pydoc import locate
from typing import Any, Literal, get_args

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace, get_loader, set_loader, set_parsing_settings

from pipeline import former_names
from pipeline.console import typed
from pipeline.console.similar import did_you_mean
from pipeline.errors import UserError
from pipeline.storage.checksums import digest, file_hash
from pipeline.storage.validation import read_yaml
from tasks.base import Task
from tasks.dataset import DataSet
from tasks.loading import load_kind

ArmName = Literal["full", "scratch", "frozen", "random"]  # in the order of tables
ARMS = get_args(ArmName)
FROZEN = ("frozen", "random")  # a head alone is trained
FRESH = ("scratch", "random")  # on fresh weights
DEFAULT_MODEL = "bert"  # of MODEL=
LARGEST_SEED = 2**32 - 1

set_parsing_settings(subclasses_enabled=[DataSet, Task])  # a YAML names the kind of task, a dataclass
_load_yaml = get_loader("yaml")
set_loader("yaml", lambda text: former_names.current(_load_yaml(text)), exceptions=(yaml.YAMLError,))

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGED = Path(__file__).resolve().parent / "configs"  # of an installed wheel
CONFIGS = PACKAGED if PACKAGED.is_dir() else REPOSITORY / "configs"


FORMER_NAMES = {("pretrain", "gpt-small"): "gpt2-small"}  # of configurations


def folders_of(kind: str) -> list[Path]:
    """Where configurations of a kind are; users' own tasks are in `configs/tasks` of the current folder."""
    own = Path("configs") / kind
    return [CONFIGS / kind, *([own] if kind == "tasks" and own.is_dir() and own.resolve() != CONFIGS / kind else [])]


def named_config(kind: str, name: str) -> Path | None:
    """`configs/KIND/NAME.yaml`, if there is one; the pipeline's own comes first."""
    name = FORMER_NAMES.get((kind, name), name)
    return next((file for folder in folders_of(kind) if (file := folder / f"{name}.yaml").is_file()), None)


def known(kind: str) -> str:
    return ", ".join(sorted({path.stem for folder in folders_of(kind) for path in folder.glob("*.yaml")}))


def unknown(what: str, name: str, kind: str) -> str:
    """A message that there is no such configuration, with those that there are."""
    return f"There is no {what} '{name}'; there are {known(kind)}.{did_you_mean(name, known(kind).split(', '))}"


def preset_file(kind: str, name: str, what: str) -> Path:
    """A name in `configs/KIND`, or a path -> the YAML file.

    Args:
        what: what it is called in the message.

    Raises:
        UserError: there is none.
    """
    file = named_config(kind, name) or Path(name)
    if not file.is_file():
        raise UserError(f"{unknown(what, name, kind)} A YAML file would do too.")
    return file


# Sections of a configuration; those in the second line may be the name of a class alone.
SECTIONS = ("trainer", "model", "data", "model.optimization", "model.recipe", "data.tokenizer")
CLASSES = ("model.encoder", "model.objective", "data.task")


def content_of(file: Path) -> dict[str, Any]:
    """What a configuration file sets, by today's names.

    Raises:
        UserError: it is not valid YAML, a section is not a mapping, or a setting has two names.
    """
    content = read_yaml(file)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{file} is not valid: it must have settings, as `trainer:`, `model:` or `data:`.")
    try:
        content = former_names.current(content)
    except UserError as error:
        raise UserError(f"{file} is not valid: {error}") from None
    for section in (*SECTIONS, *(f"{part}{rest}" for part in CLASSES for rest in ("", ".init_args"))):
        *above, name = section.split(".")
        parent: Any = content
        for part in above:
            parent = parent.get(part, {}) if isinstance(parent, dict) else {}
        if isinstance(parent, dict) and name in parent:
            value = parent[name]
            if value is None and section == "data.task":  # in pretraining: the text of no task
                continue
            if not isinstance(value, (dict, str) if section in CLASSES else dict):
                shown = "null" if value is None else repr(value)
                raise UserError(f"{file} is not valid: {section} is {shown}; it must be a mapping of settings.")
    return content


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Nested configuration -> dotted names, where some may be written as sections too."""
    if not isinstance(config, dict) or not config:
        return {prefix[:-1]: config} if prefix else {}
    return {name: value for key, part in config.items() for name, value in flat(part, f"{prefix}{key}.").items()}


NO_TEXT = (  # of a mapping of texts, as the names of labels
    r"Parser key \"(?P<key>[\w.]+)\":\s+Does not validate.*dict\[str, str\].*"
    r"Expected a <class 'str'>\. Got value: (?P<value>[^\n]+)"
)


def first_sentence(message: str) -> str:
    message = message[max(0, message.rfind("Parser key")) :]  # what is before it speaks of types in Python
    if found := re.search(NO_TEXT, message, flags=re.DOTALL):
        return f"{found['key']} has {found['value']} where a text is needed: put it in quotes."
    message = re.sub(r"Expected an instantiatable class, but (\S+) is abstract", _lacking, message)
    message = re.sub(r"\s*Got value: Namespace\(.*", "", message, flags=re.DOTALL)  # the value itself is before it
    lines = [line.strip(" -") for line in message.replace("error: ", "").splitlines() if line.strip()]
    return " ".join(lines)[:400].rstrip(".") + "."


def _lacking(found: re.Match[str]) -> str:
    """The methods that a class needs to be one, and has not."""
    names = sorted(getattr(locate(found[1]), "__abstractmethods__", ()))
    return f"{found[1]} has no {', '.join(names) or 'methods'} yet"


def task_file(task: str, **new: str | None) -> Path:
    """TASK= -> its YAML file; a kind of task that the user has written is loaded.

    Args:
        new: further options of the command that writes one.

    Raises:
        UserError: there is no such file, or it names no task.
    """
    file = named_config("tasks", task) or Path(task)
    if not file.is_file():
        command = typed.command("new-task", name_=task, **new)
        hint = f" (`{command}` writes one)" if task.replace("-", "").isalnum() else ""
        raise UserError(f"{unknown('task', task, 'tasks')} A YAML file would do too{hint}.")
    load_kind(task_in(file), beside=file)
    return file


def task_in(file: Path) -> Any:
    """What a YAML file says of its task: the name of a class, or a mapping with it as `class_path`.

    Raises:
        UserError: nothing, or it is not valid YAML.
    """
    content = content_of(file)
    if content.get("data", {}).get("task") is None:
        raise UserError(f"{file} has no `data.task` section; see configs/tasks/sentiment.yaml.")
    return content["data"]["task"]


FINETUNE = CONFIGS / "finetune.yaml"  # before the task's file
FINETUNE_FROZEN = CONFIGS / "finetune-frozen.yaml"  # and after it, where the encoder is not trained
FINETUNE_COUNTING = CONFIGS / "finetune-counting.yaml"  # instead of both, for models that count


def task_hash(file: Path) -> str:
    """A hash of a task's file without its prompts, of the shared files of fine-tuning, and of the kind of task."""
    content, *shared = (read_yaml(path) for path in (file, FINETUNE, FINETUNE_FROZEN, FINETUNE_COUNTING))
    kind = content["data"]["task"]  # its name alone, where nothing is set
    if isinstance(kind, dict):
        kind.get("init_args", {}).pop("prompts", None)
    kinds = type(task_of(file)).__mro__[:-1]  # of Python files, which may be the user's
    return digest(repr((shared, content)), *(file_hash(Path(inspect.getfile(kind))) for kind in kinds))


def task_of(file: Path, flags: Sequence[str] = ()) -> DataSet:
    """The task of a YAML file, without the rest of the configuration.

    Args:
        flags: settings that replace those of the file, as `--data.task.init_args.spans=false`.

    Raises:
        UserError: the file has no task, or one with a wrong setting.
    """
    task = task_in(file)
    load_kind(task, beside=file)
    reader = ArgumentParser(exit_on_error=False)
    reader.add_argument("--data.task", type=DataSet, required=True)
    try:
        given = _settings_of(task, reader)
        return reader.instantiate(reader.parse_args([*flags], namespace=given) if flags else given).data.task
    except (ArgumentError, TypeError, KeyError, ValueError) as error:
        place = " ".join([str(file), *(["with", *flags] if flags else [])])
        raise UserError(f"{place} is not valid: {first_sentence(str(error))}") from None


_READ: dict[tuple[str, type | None], Namespace] = {}  # a grid asks for a task several times a run


def _settings_of(task: Any, reader: ArgumentParser) -> Namespace:
    """The settings of a task as its class takes them; read once for a class, which a user may change in a notebook."""
    module, _, name = str(task if isinstance(task, str) else task.get("class_path")).rpartition(".")
    key = repr(task), getattr(sys.modules.get(module), name, None)
    if key not in _READ:
        given = reader.parse_object({"data": {"task": task}})
        if key[1] is None:
            return given
        _READ[key] = given
    return copy.deepcopy(_READ[key])


def trained_task(name: str, flags: Sequence[str] = ()) -> Task:
    """TASK= -> a task that there is something to train for.

    Args:
        flags: see `task_of`.

    Raises:
        UserError: there is no such task, or it has prompts only.
    """
    file = task_file(name)
    task = task_of(file, flags)
    if not isinstance(task, Task):
        raise UserError(f"{file.stem} has prompts and nothing to train on; use {typed.command('zeroshot', task=name)}.")
    return task
