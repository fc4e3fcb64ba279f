"""The encoders that pretraining runs have saved on their way, and what each answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from pipeline import encoders
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.models.folder import read_config
from pipeline.presets.files import named_config
from pipeline.tracking.groups import published
from pipeline.tracking.words_seen import SavedEncoder, is_encoder, made_at, saved_in


@dataclass(frozen=True)
class Curve:
    """A run, its encoders from the fewest words to the most, and what each answered.

    Args:
        name: of the run.
        metrics: of each encoder, as in the metrics.json of its zero-shot run.
    """

    name: str
    saved: Sequence[SavedEncoder]
    metrics: list[dict[str, Any]] = field(default_factory=list)

    def series(self, key: str) -> list[float]:
        """A metric of each encoder."""
        return [one[key] for one in self.metrics]

    def published(self, group: str = "") -> dict[str, float]:
        """Model -> accuracy that was published for the same rows, or those of a group, as /COLUMN/VALUE."""
        return published(self.metrics[0], group)


def runs_at(places: Path | None) -> list[Curve]:
    """FROM= -> the runs whose saved encoders it names; none where it is one encoder, or nothing that was saved so.

    Args:
        places: folders of saved encoders, as runs/pretrain/gpt/encoders; patterns, and several with commas.

    Raises:
        UserError: some of the places have saved encoders, and others none.
    """
    parts = [] if places is None or places.exists() else str(places).split(",")
    found = [Path(path) for part in parts for path in sorted(glob(part.strip())) or [part.strip()]]
    once_each = {path.resolve(): path for path in found}  # two patterns may name the same
    folders = [places] if places is not None and places.exists() else list(once_each.values())
    runs = {folder: saved_in(folder) for folder in folders if not is_encoder(folder)}
    if not any(runs.values()):
        return []
    if empty := [folder for folder in folders if not runs.get(folder)]:
        raise UserError(
            f"{empty[0]} has no encoders that were saved at numbers of words; pretrain with "
            f"{typed.further('--save-at-words', 'babylm')}, or leave it out."
        )
    names = short_names(folders)
    return [Curve(name, with_the_last(folder, runs[folder])) for folder, name in zip(folders, names, strict=True)]


def with_the_last(folder: Path, saved: list[SavedEncoder]) -> list[SavedEncoder]:
    """Saved encoders, and the one at the end of their run, where that has seen more words."""
    last = folder.parent / "encoder"
    made = made_at(last) if is_encoder(last) else {}
    if made.get("words", 0) <= saved[-1].words or made.get("step") == saved[-1].step:
        return saved
    return [*saved, SavedEncoder(last, made["words"], made.get("step"))]


def short_names(folders: Sequence[Path]) -> list[str]:
    """The names of run folders; with their parents where two are called the same."""
    runs = [folder.resolve().parent for folder in folders]
    for depth in range(1, max(len(run.parts) for run in runs) + 1):
        names = ["-".join(run.parts[-depth:]) for run in runs]
        if len(set(names)) == len(names):
            break
    return names


def model_of(folder: Path) -> str:
    """MODEL= of an encoder folder.

    Raises:
        UserError: no configuration has its name.
    """
    variant = encoders.variant(read_config(folder))
    if named_config("pretrain", variant) is None:
        raise UserError(f"The encoder in {folder} is {variant}, of which there is no file in configs/pretrain.")
    return variant
