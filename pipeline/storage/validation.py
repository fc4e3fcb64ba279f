"""What is read from a file is checked once, where it is opened: JSON, YAML, and their types and ranges.

A schema is a dataclass, a `TypedDict` (of typing_extensions) or an annotated type, checked by pydantic. What does not
fit is refused in one sentence that names the file, the key and the value. Nothing is converted but dates and keys, to
text: 3 may stand for a float, "3" for no number.
"""

from __future__ import annotations

import json
import re
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from pipeline.errors import UserError

MOST_NODES = 100_000  # of a YAML file, with what its aliases repeat


def read_text(file: Path) -> str:
    """A text file in UTF-8.

    Raises:
        UserError: it cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8 text.") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None


def parse_json(text: str, place: Path | str) -> Any:
    """The value of a text in JSON.

    Raises:
        UserError: it is not JSON, is nested too deeply, or has a number of thousands of digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise UserError(f"{place} is nested too deeply.") from None
    except json.JSONDecodeError as error:
        where = f" (line {error.lineno}: {error.msg})" if "\n" in text.strip() else f" ({error.msg})"
        raise UserError(f"{place} is damaged: it is not JSON{where}.") from None
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise UserError(f"{place} has a number of too many digits.") from None


def read_json(file: Path, kind: Any = Any) -> Any:
    """The content of a JSON file, checked against `kind`.

    Raises:
        UserError: it cannot be read, is damaged, or does not fit.
    """
    return checked(kind, parse_json(read_text(file), file), file)


def checked(kind: Any, value: Any, place: Path | str) -> Any:
    """A value that fits a type, as plain data of JSON; a dataclass is made of a mapping, and takes no further keys.

    Args:
        kind: a schema; `Any` lets everything through.
        place: the file that the value is from, for the message.

    Raises:
        UserError: it does not fit; names the place, the first key and its value.
    """
    if kind is Any:
        return value
    extra: Any = "forbid" if is_dataclass(kind) else None
    try:  # as JSON: pydantic's strict mode makes a dataclass of a mapping only there
        return _adapter(kind).validate_json(json.dumps(value, default=str), strict=True, extra=extra)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"] if not _is_internal(part))
        said = first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing":
            raise UserError(f"{place} has no {key}.") from None
        if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            raise UserError(f"{place} has an unknown key: {key}.") from None
        shown = repr(first["input"])
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        said = f"{said[0].lower()}{said[1:]}".rstrip(".")
        raise UserError(f"{place}: {key or 'its content'} is {shown}; {said}.") from None


def _is_internal(part: Any) -> bool:
    """Whether a part of a place is pydantic's name for a branch of a union, as `function-after[...]`."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "bool", "none"))


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


# ---------------------------------------------------------------------- YAML


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML without what is read otherwise than it looks: a key given twice, 010 for 8, 1:30 for 90."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node, seen = super().compose_mapping_node(anchor), set()
        for key, _ in node.value:  # as they stand there: merge keys (<<) have not added theirs yet
            if not isinstance(key, yaml.ScalarNode):
                continue
            what = "is a date; write it in quotes" if key.tag.endswith(":timestamp") else "stands there twice"
            if key.value in seen or "date" in what:
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
    """The content of a YAML file, checked against `kind`.

    Raises:
        UserError: it cannot be read, is not valid YAML, contains itself, or does not fit.
    """
    text = read_text(file)
    try:
        content = yaml.load(text, Loader=_StrictLoader)
        if not _is_finite(content):
            raise UserError(f"{file} is not valid: by its aliases it contains itself, or very many values.")
    except RecursionError:
        raise UserError(f"{file} is nested too deeply.") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1},"
        said = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{file}{line} is not valid YAML: {said}.") from None
    return checked(kind, content, file)


def _is_finite(content: Any) -> bool:
    """Whether a value has an end, and not very many parts."""
    waiting, count = [content], 0
    while waiting and count <= MOST_NODES:
        value, count = waiting.pop(), count + 1
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return count <= MOST_NODES


def whole_characters(text: str) -> str:
    """Joins the halves of characters that JSON wrote apart; a half alone, as web dumps have, becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
