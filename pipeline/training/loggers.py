"""Loggers of Lightning that the user names: they log beside the run's own, into the run folder.

Their settings may have `{out}` for the run folder, so a configuration is the same wherever the run is.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch.loggers
from jsonargparse import ArgumentParser
from lightning.pytorch.loggers import Logger

from pipeline.errors import UserError
from pipeline.storage.atomic import first_line

FOLDER = "loggers"  # of a run folder
OUT = "{out}"
HERE = f"{OUT}/{FOLDER}"


def places(name: str) -> dict[str, str]:
    """Where a logger of that class writes, unless the user says it: its settings, for those that write files."""
    known = getattr(lightning.pytorch.loggers, name.rpartition(".")[2], Logger)
    parameters = inspect.signature(known.__init__).parameters
    if "tracking_uri" in parameters:  # MLflow, whose newer versions refuse plain files
        local = {
            "tracking_uri": f"sqlite:///{HERE}/mlflow.db",
            "artifact_location": f"{HERE}/artifacts",
        }
        return {} if os.environ.get("MLFLOW_TRACKING_URI") else local
    return {"save_dir": HERE} if "save_dir" in parameters else {}


def check_loggers(configured: Any) -> None:
    """Makes the loggers once, in a folder that is removed: a missing package is reported before any data are read.

    Raises:
        UserError: a package is not installed, or a setting of theirs is not valid.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        make_loggers(configured, Path(folder))


def make_loggers(configured: Any, out: Path) -> list[Logger]:
    """The loggers of a configuration, for a run in the folder `out`.

    Args:
        configured: class path and arguments of one, or a list of them; where it is a bool or None there are none.

    Raises:
        UserError: one cannot be made.
    """
    if not isinstance(configured, (dict, list)):
        return []
    named = [_for_run(logger, out) for logger in (configured if isinstance(configured, list) else [configured])]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--logger", type=list[Logger])
    (out / FOLDER).mkdir(exist_ok=True)
    try:
        return list(parser.instantiate_classes(parser.parse_object({"logger": named})).logger)
    except Exception as error:  # any that a tracker's own code raises
        cause = error.__cause__ or error.__context__ or error
        names = ", ".join(str(logger["class_path"]) for logger in named)
        if isinstance(cause, ModuleNotFoundError):
            raise UserError(f"{names} needs a package: {first_line(cause)}.") from None
        raise UserError(f"trainer.logger {names} cannot be made: {first_line(cause)}.") from None


def log_configuration(loggers: Iterable[Logger], config: Mapping[str, Any]) -> None:
    """Gives all loggers the settings of the run, by dotted name.

    Raises:
        UserError: one does not take them, as a server that cannot be reached.
    """
    for logger in loggers:
        try:
            logger.log_hyperparams(dict(config))
        except Exception as error:
            raise UserError(f"trainer.logger {type(logger).__name__} cannot log: {first_line(error)}.") from None


def log_final(loggers: Iterable[Logger], metrics: Mapping[str, Any], step: int) -> None:
    """Gives all loggers the numbers of metrics.json, and ends them."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
    finite = {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
    for logger in loggers:
        logger.log_metrics(finite, step=step)
        logger.finalize("success")


def _for_run(value: Any, out: Path) -> Any:
    """Settings with the run folder in the place of `{out}`."""
    if isinstance(value, dict):
        return {key: _for_run(part, out) for key, part in value.items()}
    if isinstance(value, list):
        return [_for_run(part, out) for part in value]
    return value.replace(OUT, str(out)) if isinstance(value, str) else value
