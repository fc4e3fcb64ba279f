"""A sample of English Wikipedia from the hub, the same for everyone: what the table of real text is pretrained on.

Articles stand in the order of the data set, which is fixed by its date. Those under 200 characters are left out, every
fifth of the others is taken, and every 122nd that is taken is for validation.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline.data.hub import open_hub, patient_rows
from pipeline.storage.folders import write_folder

HUB = {"path": "wikimedia/wikipedia", "name": "20231101.en", "split": "train"}
ARTICLES = 5651  # that are taken; 46 of them for validation
SHORTEST = 200  # characters of an article
EVERY, VALIDATION = 5, 122
FILES = 4  # of the training part


def rows() -> Iterator[dict[str, Any]]:
    """The articles of the hub, as a stream."""
    return patient_rows(lambda: open_hub(**HUB, streaming=True), HUB["path"])


def chosen(articles: Iterable[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """The first `count` articles of the sample; it takes no more of the stream than it needs."""
    taken = seen = 0
    for article in articles:
        text = str(article["text"]).strip()
        if len(text) < SHORTEST:
            continue
        if seen % EVERY == 0:
            yield {"id": article.get("id"), "title": article.get("title"), "text": text}
            taken += 1
            if taken == count:
                return
        seen += 1


def build(out: Path, *, count: int = ARTICLES, progress: Callable[[], Any] = lambda: None) -> dict[str, int]:
    """Writes `train-00.jsonl.xz`, ... and `valid.jsonl.xz` into a folder; returns articles and words of both parts.

    Raises:
        UserError: the hub cannot be reached, or the disk is full; an earlier folder is unchanged.
    """
    parts: dict[str, list[str]] = {"valid": [], **{f"train-{number:02}": [] for number in range(FILES)}}
    words = {"train": 0, "valid": 0}
    for number, article in enumerate(chosen(rows(), count), 1):
        name = "valid" if number % VALIDATION == 0 else f"train-{(number - 1) * FILES // count:02}"
        parts[name].append(json.dumps(article, ensure_ascii=False))
        words[name.partition("-")[0]] += len(article["text"].split())
        progress()

    def write(folder: Path) -> None:
        folder.mkdir()
        for name, lines in parts.items():
            with lzma.open(folder / f"{name}.jsonl.xz", "wt", encoding="utf-8") as stream:
                stream.writelines(f"{line}\n" for line in lines)

    out.parent.mkdir(parents=True, exist_ok=True)
    write_folder(out, write)
    held_out = len(parts["valid"])
    taken = sum(len(lines) for lines in parts.values())
    return {
        "training articles": taken - held_out,
        "training words": words["train"],
        "validation articles": held_out,
        "validation words": words["valid"],
    }
