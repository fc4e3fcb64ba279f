"""A folder as it is published: its files, with a card that knows its name on the hub."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from pipeline import metrics
from pipeline.cards import sections
from pipeline.cards.finetuned import scores
from pipeline.cards.loading import loading
from pipeline.errors import UserError
from pipeline.presets.arms import FRESH
from pipeline.storage.atomic import first_line
from pipeline.storage.checksums import SUMS
from pipeline.storage.validation import read_json, read_text, read_yaml
from pipeline.tracking import lineage
from pipeline.tracking.history import read_metrics

CARD = "README.md"


def files_of(
    folder: Path, repo: str, about: Mapping[str, str | None], branch: str | None = None
) -> dict[str, Path | bytes]:
    """Name on the hub -> the file, or the content of one that is another there: the card, and the checksums for it.

    Args:
        repo: the name on the hub, USER/NAME.
        about: keys of the front matter that the user gives, as license.
        branch: that it goes to; None: the main one.

    Raises:
        UserError: a file of the folder is damaged, or a link to one that lies elsewhere.
    """
    found = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    here = folder.resolve()
    for path in found:
        if path.resolve().parent not in (here, here.parent.parent / "blobs"):  # these: of the hub's cache
            raise UserError(f"{path} is a link to {path.resolve()}: put the file itself there before it is uploaded.")
    files: dict[str, Path | bytes] = {path.name: path for path in found}
    if CARD not in files:
        return files
    card = published_card(folder, repo, about, branch).encode()
    files[CARD] = card
    if SUMS in files:
        lines = read_text(folder / SUMS).splitlines()
        own = f"{hashlib.sha256(card).hexdigest()}  {CARD}"
        files[SUMS] = "".join(f"{own if line.endswith(f'  {CARD}') else line}\n" for line in lines).encode()
    return files


def published_card(folder: Path, repo: str, about: Mapping[str, str | None], branch: str | None = None) -> str:
    """The card of a folder with its name on the hub, what the user knows, and runs from scratch that are beside it.

    Raises:
        UserError: the card has a front matter that cannot be read.
    """
    config = read_json(folder / "config.json", dict[str, Any])
    try:
        card = ModelCard(read_text(folder / CARD), ignore_metadata_errors=False)
    except ValueError as error:
        raise UserError(f"{folder / CARD} has a front matter that cannot be read ({first_line(error)}).") from None
    data: Any = card.data  # whatever keys it has
    for name, value in about.items():
        if value is not None:
            setattr(data, name, value)
    content = str(card)
    library, tag = data.library_name or sections.LIBRARY, data.pipeline_tag or ""
    lines = loading(config, repo, library=library, tag=tag, on_hub=True, branch=branch)
    content = sections.replaced(content, "loading", lines)
    if data.license:
        content = content.replace(sections.LICENSE, f"{data.license}.")
    if data.language:
        content = content.replace(f"- {sections.NO_LANGUAGE}\n", "")
    return with_scratch(content, folder)


def with_scratch(content: str, folder: Path) -> str:
    """A card of a fine-tuned model with the scores of its network from fresh weights, where such runs are beside it."""
    run = folder.absolute().parent
    if not (run / "metrics.json").is_file() or not (run / "model").is_dir():
        return content
    metrics, found = read_metrics(run), scratch_runs(run)
    if not found:
        return content
    metric = next((name.removeprefix("val/best_") for name in metrics if name.startswith("val/best_")), None)
    values = [other[f"test/{metric}"] for other in found if f"test/{metric}" in other]
    return sections.replaced(content, "scores", scores(metrics, metric, values)) if metric and values else content


def scratch_runs(run: Path) -> list[dict[str, Any]]:
    """The metrics of the runs beside a fine-tune that trained the same network on the same rows from fresh weights.

    Of several settings, as rates that a comparison tried, those of the one with the most seeds: it was chosen. Of as
    many, those of the best validation.
    """
    mine, found = facts(run), dict[str, list[dict[str, Any]]]()
    for other in sorted(path for path in run.parent.iterdir() if (path / "metrics.json").is_file() and path != run):
        try:
            if mine[:2] == facts(other)[:2] and facts(other)[2] == "scratch":
                setting = lineage.setting_of(read_yaml(other / "config.yaml", dict[str, Any]))
                found.setdefault(setting, []).append(read_metrics(other))
        except (UserError, LookupError):  # damaged, or of another kind
            continue
    return [] if mine[2] in FRESH else max(found.values(), key=_seeds_and_validation, default=[])


def _seeds_and_validation(runs: list[dict[str, Any]]) -> tuple[int, float]:
    """How many runs there are, and their best validation, more of which is better."""
    sign = metrics.sign(runs[0].get("mode"))
    best = [sign * value for run in runs for name, value in run.items() if name.startswith("val/best_")]
    return len(runs), max(best, default=0.0)


def facts(run: Path) -> tuple[Any, Any, Any]:
    """Of a fine-tune: the hashes of task and tokenizer, the number of parameters, and the arm."""
    stages = lineage.read(run)
    hashes = [stage.get("sha256") for stage in stages if stage["stage"] in ("task", "tokenizer")]
    config = read_yaml(run / "config.yaml", dict[str, Any])
    return hashes, read_metrics(run)["parameters"], config["model"]["arm"]
