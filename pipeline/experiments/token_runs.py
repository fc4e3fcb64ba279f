"""Pretraining runs of an experiment: on so many tokens, and what their metrics depend on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.console import typed
from pipeline.data.store_builder import FORMAT
from pipeline.errors import UserError
from pipeline.experiments.many_runs import check_many_runs
from pipeline.experiments.pretraining_run import pretrain
from pipeline.experiments.run_cache import Fingerprint, with_contents
from pipeline.presets.files import content_of, flat, pretraining_files
from pipeline.storage.atomic import write_json
from pipeline.storage.checksums import digest
from pipeline.storage.validation import read_json
from pipeline.training.configuration import Configuration
from pipeline.training.corpus_data import CorpusData
from pipeline.training.requests import CorpusRequest, PretrainRequest, settings_in
from pipeline.training.run_folder import check_place

Configure = Callable[[CorpusRequest], Configuration]
STEPS, EVERY, WARMUP = "trainer.max_steps", "validate_every", "model.optimization.warmup_steps"


def training_of(configure: Configure) -> Callable[[PretrainRequest], None]:
    """What trains a request with its configuration."""
    return lambda request: pretrain(request, configure(request))


def of_steps(
    request: PretrainRequest,
    configuration: Configuration,
    steps: int,
    *,
    every: int,
    settings: Mapping[str, Any] | None = None,
) -> PretrainRequest:
    """The run with other steps; its warm-up is the same share of them, unless the request sets one.

    Args:
        configuration: of the request.
        every: steps between validations.
        settings: further ones.
    """
    resolved = configuration.resolved
    share = resolved["model"]["optimization"]["warmup_steps"] / resolved["trainer"]["max_steps"]
    warmup = {} if WARMUP in settings_in(request.overrides) else {WARMUP: round(share * steps)}
    return request.override({STEPS: steps, EVERY: every, **(settings or {}), **warmup})


def fingerprint_of_pretraining(request: PretrainRequest, data: CorpusData) -> Fingerprint:
    """What the metrics of a run depend on; its data are prepared."""
    files = pretraining_files(request.model, request.corpus)
    merged = {name: value for file in files for name, value in flat(content_of(file)).items()}  # later ones win
    return {
        "files": digest(merged),
        "corpus": [data.train.meta["corpus"], data.parts_hash, FORMAT],  # another one may have other tokens and bytes
        "tokenizer": data.tokenizer.hash,
        "settings": with_contents(request.overrides),
        "seed": request.seed,
    }


def check_not_derived(names: Iterable[str], own: Collection[str], of: str) -> None:
    """Raises: UserError, a setting is one of a single run, or one of `own`, which follow from `of`."""
    names = list(names)
    check_many_runs(names)
    if taken := [name for name in names if name in own]:
        raise UserError(f"{taken[0]} follows from {of}: change these in its file.")


def check_shared(file: Path, shared: dict[str, Any], what: str, *, overwrite: bool) -> None:
    """Whether the runs of a folder share what its file says; nothing is said yet where there is no file.

    Raises:
        UserError: they share something else, which `overwrite` would replace.
    """
    before = read_json(file, dict[str, Any]) if file.is_file() else shared
    if (other := [name for name in shared if before.get(name) != shared[name]]) and not overwrite:
        raise UserError(
            f"{file.parent} holds {what} of other settings ({', '.join(other)}): choose another {typed.flag('out')}, "
            f"or set {typed.flag('overwrite')} to run all again."
        )


def note_shared(file: Path, shared: dict[str, Any], what: str, *, overwrite: bool) -> None:
    """Notes in a file what the runs of its folder share; see `check_shared`."""
    check_shared(file, shared, what, overwrite=overwrite)
    write_json(file, shared, indent=1)


def check_out(out: Path, marker: str, what: str) -> None:
    """Raises: UserError, the folder holds something else than `what`, which leaves a file called `marker` there."""
    check_place(out)
    if out.is_dir() and any(out.iterdir()) and not (out / marker).is_file():
        raise UserError(f"{out} holds something else than {what}; choose another {typed.flag('out')}.")
