"""What others may see of settings: no secrets, and no folders of this machine."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

SECRET = r"(?:token|api_?keys?|key|passw(?:or)?d|secret|authorization)"  # the end of a setting's name
NAME = re.compile(rf"(^|_){SECRET}$", re.IGNORECASE)
FLAG = re.compile(rf"(--(?:[\w.-]*[_.-])?{SECRET}(?:=|\s+))('[^']*'|\S+)", re.IGNORECASE)
ENTRY = re.compile(rf"""(["']?\b(?:\w+_)?{SECRET}["']?\s*:\s*)("[^"]*"|'[^']*'|[^,}}\s]+)""", re.IGNORECASE)
PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")  # of an address: user:password@


def public(value: Any, name: str = "") -> Any:
    """A configuration without secrets and without folders of this machine: of a path only the last part is kept."""
    if isinstance(value, dict):
        return {key: public(part, key) for key, part in value.items() if not NAME.search(str(key))}
    if isinstance(value, list):
        return [public(part, name) for part in value]
    if not isinstance(value, str) or "/" not in value:
        return value
    with contextlib.suppress(OSError):  # a text longer than any path
        if name in ("files", "unigram") or value[0] in "/~." or Path(value).exists():
            return Path(value).name
    return PASSWORD.sub("", value)


def without_secrets(command: str) -> str:
    """A command line with the values of secret settings left out."""
    return PASSWORD.sub("", ENTRY.sub(r"\1...", FLAG.sub(r"\1...", command)))
