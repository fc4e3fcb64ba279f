"""TASK= -> a task: its YAML file, what it is called in the file, the task itself, and a hash of all that it says."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.presets.files import CONFIGS, content_of, named_config, unknown
from pipeline.presets.parsing import first_sentence
from pipeline.storage.checksums import digest, file_hash
from pipeline.storage.validation import read_yaml
from tasks.base import Task
from tasks.dataset import DataSet
from tasks.loading import load_kind

FINETUNE = CONFIGS / "finetune.yaml"  # before the task's file
FINETUNE_FROZEN = CONFIGS / "finetune-frozen.yaml"  # and after it, where the encoder is not trained
FINETUNE_COUNTING = CONFIGS / "finetune-counting.yaml"  # instead of both, for models that count


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
