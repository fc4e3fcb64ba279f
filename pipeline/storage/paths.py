"""Paths that users give, and the folder of caches."""

from __future__ import annotations

import os
from pathlib import Path


def path_of(text: str) -> Path:
    """A path with `~` expanded as a shell does; `~name` of an unknown user is left as a plain name."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 (pathlib's raises there)


def cache_folder() -> Path:
    """The folder of token stores and tokenizers: $PIPELINE_CACHE if it is set and not empty, else ./.cache."""
    return path_of(os.environ.get("PIPELINE_CACHE") or ".cache")
