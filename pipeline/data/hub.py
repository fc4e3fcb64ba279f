"""Data sets of the Hugging Face hub: opened with a quick error when it cannot be reached, streamed with retries."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.storage.atomic import first_line
from tasks.dataset import listed

RETRIES = 5  # in a row, without a row between them
PAUSE = 2.0  # seconds before the first retry, doubled for each further one
NAME = re.compile(r"([\w.-]+/)?[\w.-]+")
NETWORK = ("httpx", "httpx2", "httpcore", "aiohttp", "urllib3", "huggingface_hub")  # not all their errors are OSErrors


def is_of_network(error: BaseException) -> bool:
    """Whether an error is one of the file system, the network or the hub's own library."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in NETWORK


def local_instead() -> str:
    """What to do without the hub."""
    path, folder = typed.flag("corpus", "PATH"), typed.flag("data", "FOLDER")
    sample = f"{typed.flag('corpus', 'sample')} and {typed.flag('task', 'sentiment')}"
    return f"give local files instead ({path} for pretraining, {folder} for a task), or use {sample}."


def open_hub(*, path: str, **arguments: Any) -> Any:
    """`datasets.load_dataset`, with an error within seconds when the hub cannot be reached.

    Raises:
        UserError: the hub cannot be reached, or has no such data set.
    """
    with _reading(path, streaming=bool(arguments.get("streaming"))) as datasets:
        return datasets.load_dataset(path, **arguments)


def configurations(*, path: str, name: str | None = None, **arguments: Any) -> list[dict[str, Any]]:
    """Arguments of `open_hub`, for each configuration of a data set whose name matches a pattern, as `*` for all.

    Raises:
        UserError: the hub cannot be reached, or has no such configuration.
    """
    address = {"path": path, **arguments}
    if name is None or not set(name) & set("*?["):
        return [address if name is None else {**address, "name": name}]
    with _reading(path) as datasets:
        known = datasets.get_dataset_config_names(path, revision=arguments.get("revision"))
    found = sorted(fnmatch.filter(known, name))
    if not found:
        raise UserError(f"'{path}' has no configuration '{name}' on the hub; it has {listed(known)}.")
    return [{**address, "name": one} for one in found]


def public_name(address: Mapping[str, Any]) -> str | None:
    """The name on the hub of a data set that everybody can read; None: of another one, or not known.

    Args:
        address: arguments of `open_hub`. Its `path` can be a folder of this machine too, or a format, as `csv`.
    """
    path = str(address["path"])
    if not NAME.fullmatch(path) or Path(path).exists() or address.get("token"):
        return None
    of_files = "/" not in path and {"data_files", "data_dir"} & address.keys()
    return path if not of_files and _is_open(path) else None


def local_files(address: Mapping[str, Any]) -> list[Path]:
    """The files of this machine that an address names: those of a folder, or the `data_files` of a format, as `csv`."""
    name, root, named = str(address.get("path") or ""), address.get("data_dir"), address.get("data_files")
    if name and Path(name).exists():
        place = Path(name)
        return sorted(file for file in ([place] if place.is_file() else place.rglob("*")) if file.is_file())
    if "/" in name or not (root or named):
        return []  # what it names is in a repository of the hub
    parts = list(named.values()) if isinstance(named, Mapping) else [named or "**"]
    words = [word for part in parts for word in ([part] if isinstance(part, str) else part)]
    found = {Path(root or "", file) for word in words for file in glob.glob(word, root_dir=root, recursive=True)}
    return sorted(file for file in found if file.is_file())


@functools.cache
def _is_open(path: str) -> bool:
    """Whether a data set can be read without a token: so where the user has none, else the hub is asked."""
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        return True
    try:
        return not HfApi(token=False).dataset_info(path, timeout=5).private
    except Exception as error:
        if not is_of_network(error):
            raise
        return False  # the hub does not know it, or cannot be reached


@contextlib.contextmanager
def _reading(path: str, *, streaming: bool = False) -> Iterator[Any]:
    """The module `datasets`, to read a data set of the hub with. Offline it reads its cache, but no stream.

    Raises:
        UserError: the hub cannot be reached, or reading fails.
    """
    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("HF_DATASETS_OFFLINE")
    if streaming or not offline:
        _check_connection(path)
    import datasets  # takes a second

    try:
        yield datasets
    except (OSError, ValueError, ImportError, datasets.exceptions.DatasetNotFoundError) as error:
        # An ImportError: a proxy of SOCKS needs a package.
        reason = first_line(error)
        raise UserError(f"'{path}' cannot be read from the hub ({reason}); {local_instead()}") from None


def _check_connection(path: str) -> None:
    import socket
    from urllib.request import getproxies

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    address = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        # A proxy resolves names itself; without one a failing look-up here returns at once.
        if not {address.scheme or "https", "all"} & getproxies().keys():
            socket.create_connection((address.hostname or "", port), timeout=5).close()
    except (OSError, ValueError):  # nothing listens there, or the port is no number
        host = address.netloc.rpartition("@")[2]
        raise UserError(f"The hub ({host}) cannot be reached, so '{path}' cannot be read; {local_instead()}") from None


def patient_rows(open_stream: Callable[[], Any], name: str) -> Iterator[dict[str, Any]]:
    """The rows of a stream. When its connection breaks, the stream is opened again and resumes at the next row.

    Args:
        open_stream: gives a `datasets.IterableDataset`.
        name: of the data set, for messages.

    Raises:
        UserError: the connection broke RETRIES + 1 times in a row.
    """
    stream, state, done, failures = open_stream(), None, 0, 0
    while True:
        before = done
        try:
            if stream is None:
                stream = open_stream()
                if state is not None:
                    stream.load_state_dict(state)
            for row in stream:
                yield row
                done, failures = done + 1, 0
            return
        except Exception as error:
            still_away = stream is None and isinstance(error, UserError)
            if not still_away and not is_of_network(error):
                raise
            failures += 1
            if failures > RETRIES:
                raise UserError(
                    f"'{name}' broke off after {done:,} rows and {RETRIES} further attempts ({type(error).__name__}: "
                    f"{error}); run again when the hub can be reached. Or {local_instead()}"
                ) from None
            print(f"'{name}' broke off after {done:,} rows ({type(error).__name__}); trying again.", file=sys.stderr)
            if done > before:  # before its first row a stream reports the position 0
                state = stream.state_dict()
            time.sleep(PAUSE * 2 ** (failures - 1))
            stream = None
