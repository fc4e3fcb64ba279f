"""Reading JSON and YAML files, checked against a schema where they are opened.

A schema is a dataclass, a `TypedDict` (of typing_extensions) or an annotated type, checked by pydantic. An error is one
sentence that names the file, the key and the value. Only dates and keys are converted, to text: the integer 3 is
accepted for a float, the string "3" for no number.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from pipeline.errors import UserError
from pipeline.storage.atomic import first_line
from tasks.dataset import repeated, shortened

Name = Annotated[str, Field(min_length=1)]
MAX_NODES = 100_000  # values of a YAML file, aliases counted each time


def read_text(file: Path) -> str:
    """Reads a text file in UTF-8.

    Raises:
        UserError: the file cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8 text.") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None


class _Doubled(ValueError):
    """A key that an object names twice."""


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Doubled(repeated([name for name, _ in pairs]))
    return found


def parse_json(text: str, place: Path | str) -> Any:
    """Parses a text as JSON.

    Args:
        place: file, or file and line, for messages.

    Raises:
        UserError: the text is not JSON, is nested too deeply, names a key twice, or has a number with thousands of
            digits.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_doubles)
    except RecursionError:
        raise UserError(f"{place} is nested too deeply.") from None
    except _Doubled as error:
        raise UserError(f"{place} has the key '{error}' twice.") from None
    except json.JSONDecodeError as error:
        where = f" (line {error.lineno}: {error.msg})" if "\n" in text.strip() else f" ({error.msg})"
        raise UserError(f"{place} is damaged: it is not JSON{where}.") from None
    except ValueError:  # Python refuses integers of more than 4,300 digits
        raise UserError(f"{place} has a number of too many digits.") from None


def read_json(file: Path, kind: Any = Any) -> Any:
    """Reads a JSON file and checks it against the schema `kind`.

    Raises:
        UserError: the file cannot be read, is damaged, or does not fit the schema.
    """
    return checked(kind, parse_json(read_text(file), file), file)


def checked(kind: Any, value: Any, place: Path | str) -> Any:
    """Checks a value against a schema, and builds a dataclass from a mapping (without unknown keys).

    Args:
        kind: a schema; `Any` accepts everything.
        place: the file that the value is from, for the message.

    Raises:
        UserError: the value does not fit; names the place, the first wrong key and its value.
    """
    if kind is Any:
        return value
    extra: Any = "forbid" if is_dataclass(kind) else None
    try:  # as JSON: only there does pydantic's strict mode build a dataclass from a mapping
        return _adapter(kind).validate_json(json.dumps(value, default=str), strict=True, extra=extra)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"] if not _is_internal(part))
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing":
            raise UserError(f"{place} has no {key}.") from None
        if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            raise UserError(f"{place} has an unknown key: {key}.") from None
        shown = shortened(repr(first["input"]))
        message = f"{message[0].lower()}{message[1:]}".rstrip(".")
        raise UserError(f"{place}: {key or 'its content'} is {shown}; {message}.") from None


def _is_internal(part: Any) -> bool:
    """Whether a part of an error's location is pydantic's name for a branch of a union, as `function-after[...]`."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "bool", "none"))


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


# ---------------------------------------------------------------------- YAML


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses surprises: duplicate keys, octal numbers (010 is 8), sexagesimal ones (1:30 is 90)."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node, seen = super().compose_mapping_node(anchor), set()
        for key, _ in node.value:  # before merge keys (<<) add theirs
            if not isinstance(key, yaml.ScalarNode):
                continue
            kind = {"timestamp": "a date", "binary": "binary"}.get(key.tag.rpartition(":")[2])
            what = "is a duplicate key" if kind is None else f"is {kind}; write it in quotes"
            if key.value in seen or kind is not None:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key.value}' {what}", key.start_mark)
            seen.add(key.value)
        return node

    def construct_number(self, node: yaml.ScalarNode) -> int:
        text = node.value.replace("_", "").lstrip("+-")
        if ":" in text or re.fullmatch(r"0[0-7]+", text):
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value} is a number of another base in YAML; write it in quotes", node.start_mark
            )
        return self.construct_yaml_int(node)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_number)


def read_yaml(file: Path, kind: Any = Any) -> Any:
    """Reads a YAML file and checks it against the schema `kind`.

    Raises:
        UserError: the file cannot be read, is not valid YAML, contains itself, or does not fit the schema.
    """
    text = read_text(file)
    try:
        content = copy.deepcopy(_parsed(text))  # for the caller to change
        if not _is_finite(content):
            raise UserError(f"{file} is not valid: by its aliases it contains itself, or very many values.")
    except RecursionError:
        raise UserError(f"{file} is nested too deeply.") from None
    except (LookupError, AttributeError):
        raise UserError(f"{file} is not valid YAML: a tag (!!) does not fit its value.") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1},"
        message = getattr(error, "problem", None) or first_line(error)
        raise UserError(f"{file}{line} is not valid YAML: {message}.") from None
    return checked(kind, content, file)


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    """The content of a YAML text; a grid reads the same files several times a run."""
    return yaml.load(text, Loader=_StrictLoader)


def _is_finite(content: Any) -> bool:
    """Whether a value is finite (aliases can make it contain itself) and has at most MAX_NODES parts."""
    waiting, count = [content], 0
    while waiting and count <= MAX_NODES:
        value, count = waiting.pop(), count + 1
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return count <= MAX_NODES
