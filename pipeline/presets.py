"""Named configurations: `configs/KIND/NAME.yaml` by name, tasks by name, and what may be chosen by name."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from jsonargparse import ArgumentError, ArgumentParser, get_loader, set_loader, set_parsing_settings

from pipeline import former_names
from pipeline.errors import UserError
from pipeline.storage.checksums import digest, file_hash
from pipeline.storage.validation import read_yaml
from tasks.base import Task
from tasks.dataset import DataSet

ArmName = Literal["full", "scratch", "frozen", "random"]  # in the order of tables
ARMS = get_args(ArmName)
FROZEN = ("frozen", "random")  # a head alone is trained
FRESH = ("scratch", "random")  # on fresh weights
INPUTS = ("lines", "tsv", "csv", "jsonl")  # what predict reads

set_parsing_settings(subclasses_enabled=[DataSet, Task])  # a YAML names the kind of task: a dataclass of its own
_load_yaml = get_loader("yaml")
set_loader("yaml", lambda text: former_names.current(_load_yaml(text)), exceptions=(yaml.YAMLError,))

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGED = Path(__file__).resolve().parent / "configs"  # of an installed wheel
CONFIGS = PACKAGED if PACKAGED.is_dir() else REPOSITORY / "configs"


def folders_of(kind: str) -> list[Path]:
    """Where configurations of a kind are; tasks may also be of the user's own, in the current folder."""
    own = Path("configs") / kind
    return [CONFIGS / kind, *([own] if kind == "tasks" and own.is_dir() and own.resolve() != CONFIGS / kind else [])]


def named_config(kind: str, name: str) -> Path | None:
    """`configs/KIND/NAME.yaml`, if there is one; of two the pipeline's."""
    return next((file for folder in folders_of(kind) if (file := folder / f"{name}.yaml").is_file()), None)


def known(kind: str) -> str:
    return ", ".join(sorted({path.stem for folder in folders_of(kind) for path in folder.glob("*.yaml")}))


# Parts of a configuration that have settings of their own; those in the second line may be the name of a class alone.
SECTIONS = ("trainer", "model", "data", "model.optimization", "model.recipe", "data.tokenizer")
CLASSES = ("model.encoder", "model.objective", "data.batches", "data.task")


def content_of(file: Path) -> dict[str, Any]:
    """What a configuration file sets.

    Raises:
        UserError: it is not valid YAML, or a section of it is none.
    """
    content = read_yaml(file)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{file} is not valid: it must have settings, as `trainer:`, `model:` or `data:`.")
    for section in (*SECTIONS, *(f"{part}{rest}" for part in CLASSES for rest in ("", ".init_args"))):
        *above, name = section.split(".")
        parent: Any = content
        for part in above:
            parent = parent.get(part, {}) if isinstance(parent, dict) else {}
        if isinstance(parent, dict) and name in parent:
            value = parent[name]
            if not isinstance(value, (dict, str) if section in CLASSES else dict):
                shown = "null" if value is None else repr(value)
                raise UserError(f"{file} is not valid: {section} is {shown}; it must be a mapping of settings.")
    return content


def first_sentence(message: str) -> str:
    message = message[max(0, message.rfind("Parser key")) :]  # what is before it speaks of types in Python
    message = re.sub(r"\s*Got value: Namespace\(.*", "", message, flags=re.DOTALL)  # the value itself is before it
    lines = [line.strip(" -") for line in message.replace("error: ", "").splitlines() if line.strip()]
    return " ".join(lines)[:400].rstrip(".") + "."


def task_file(task: str) -> Path:
    """TASK= -> its YAML file; the kind of task that it names is loaded, where it is one of the user's own.

    Raises:
        UserError: there is no such file, or it names no task.
    """
    file = named_config("tasks", task) or Path(task)
    if not file.is_file():
        raise UserError(f"There is no task '{task}': neither a preset ({known('tasks')}) nor a YAML file.")
    load_kind(file, task_in(file))
    return file


def task_in(file: Path) -> Any:
    """What a YAML file says of its task: the name of a class, or a mapping with it as `class_path`.

    Raises:
        UserError: nothing, or it is not valid YAML.
    """
    content = content_of(file)
    if "task" not in content.get("data", {}):
        raise UserError(f"{file} names no data: task:, as configs/tasks/sentiment.yaml does.")
    return content["data"]["task"]


KINDS: dict[str, Path] = {}  # modules of the user's own -> their files


def load_kind(file: Path, task: Any) -> None:
    """Loads a kind of task whose Python file stands beside the YAML file: `class_path: MODULE.Class` is MODULE.py.

    That file alone, by its path: with its folder on the import path, any other file there could take the place of a
    module that a library imports late.

    Raises:
        UserError: the file is called as another module is, cannot be imported, or has no such class.
    """
    module, _, kind = str(task if isinstance(task, str) else task.get("class_path")).rpartition(".")
    source = (file.parent / f"{module}.py").resolve()
    if not module.isidentifier() or not source.is_file() or KINDS.get(module) == source:
        return
    if module not in KINDS:
        there = sys.modules.get(module) or importlib.util.find_spec(module)
        origin = getattr(there, "__file__", None) or getattr(there, "origin", None)
        if there is not None and (origin is None or Path(origin).resolve() != source):
            raise UserError(f"{source} is called as another module is; rename it, and its class_path in {file}.")
    spec = importlib.util.spec_from_file_location(module, source)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[module])
    except BaseException as error:
        del sys.modules[module]
        if isinstance(error, (ImportError, SyntaxError)):
            raise UserError(f"{source} cannot be imported: {error}.") from None
        raise
    if not hasattr(sys.modules[module], kind):
        del sys.modules[module]
        raise UserError(f"{source} has no {kind}, which {file} names as its kind of task.")
    KINDS[module] = source


SHARED = (CONFIGS / "finetune.yaml", CONFIGS / "finetune-frozen.yaml")  # before the task's file, and after it


def recipe(file: Path) -> str:
    """A hash of what a task's file and the shared ones say of a fine-tune, and of its kind; prompts do not matter."""
    content, *shared = (read_yaml(path) for path in (file, *SHARED))
    kind = content["data"]["task"]  # its name alone, where nothing is set
    if isinstance(kind, dict):
        kind.get("init_args", {}).pop("prompts", None)
    kinds = type(task_of(file)).__mro__[:-1]  # of Python files, which may be the user's
    return digest(repr((shared, content)), *(file_hash(Path(inspect.getfile(kind))) for kind in kinds))


def task_of(file: Path) -> DataSet:
    """The task alone of its YAML file.

    Raises:
        UserError: the file names no task, or a broken one.
    """
    task = task_in(file)
    load_kind(file, task)
    reader = ArgumentParser(exit_on_error=False)
    reader.add_argument("--task", type=DataSet, required=True)
    try:
        return reader.instantiate(reader.parse_object({"task": task})).task
    except (ArgumentError, TypeError, KeyError, ValueError) as error:
        raise UserError(f"{file} is not valid: {first_sentence(str(error))}") from None


def trained_task(name: str) -> Task:
    """TASK= -> a task that there is something to train for.

    Raises:
        UserError: there is no such task, or it has prompts only.
    """
    file = task_file(name)
    task = task_of(file)
    if not isinstance(task, Task):
        raise UserError(f"{file.stem} has prompts and nothing to train on; use make zeroshot TASK={name}.")
    return task
