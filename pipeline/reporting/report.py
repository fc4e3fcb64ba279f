"""From a folder to its page: `report.html`, and the tables as `report.md` and `report.tex`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import UserError
from pipeline.reporting import finetuning, grid, pretraining, prompting, render
from pipeline.reporting.page import Page
from pipeline.reporting.run_record import RunRecord, runs_under
from pipeline.storage.atomic import write_atomically
from pipeline.tracking import lineage

FILES = ("report.html", "report.md", "report.tex")


def folder_of(place: Path) -> Path:
    """The run or comparison that a folder is of: that of an encoder or model is in the run that made it.

    Raises:
        UserError: there is nothing to report on.
    """
    for folder in (place, place.absolute().parent) if place.exists() else ():
        finished = (folder / "metrics.json").is_file() and (folder / lineage.FILE).is_file()
        if (folder / "compare.csv").is_file() or finished:
            return folder
    if not place.is_dir():
        raise UserError(f"There is no folder {place}; name a run, a comparison or an encoder of a run.")
    inside = sorted(file.parent for name in ("metrics.json", "compare.csv") for file in place.glob(f"*/{name}"))
    hint = f", for example {inside[0]}" if inside else ""
    raise UserError(
        f"{place} holds neither a finished run (metrics.json) nor a comparison (compare.csv); name one{hint}."
    )


def page_of(folder: Path, search: Sequence[Path]) -> Page:
    """The page of a run or comparison.

    Args:
        search: folders with runs that may have grown from a pretrained encoder.

    Raises:
        UserError: a file is missing or damaged.
    """
    if (folder / "compare.csv").is_file():
        return grid.page(folder)
    run = RunRecord.read(folder)
    if run.kind == "finetune":
        return finetuning.page(run)
    if run.kind == "zeroshot":
        return prompting.page(run)
    places = {place.resolve(): place for place in search if place.is_dir()}
    found = {other.folder.resolve(): other for other in runs_under(places.values()) if other.kind != "pretrain"}
    return pretraining.page(run, [other for other in found.values() if other.encoder == run.encoder])


def write(page: Page, out: Path) -> None:
    """Writes the page as HTML, and its tables as Markdown and LaTeX."""
    out.mkdir(parents=True, exist_ok=True)
    for name, make in zip(FILES, (render.html, render.markdown, render.latex), strict=True):
        write_atomically(out / name, make(page))
