"""The training texts of a labelled task as a corpus: what a model reads there without its labels."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.data import labeled
from pipeline.storage.atomic import write_atomically
from pipeline.storage.checksums import digest
from pipeline.storage.locks import built_once
from tasks.base import Task, Text


def task_texts(task: Task, files: str | None, cache: Path) -> Path:
    """A file in the cache with the texts of the training part, a document each; nothing of the other parts.

    Args:
        files: local folder, file or pattern instead of the task's hub name.
        cache: folder of such files.

    Raises:
        UserError: a part is missing or empty, or rows do not fit the task.
    """
    documents = [document(example.text) for example in labeled.read(task, files).parts["train"].examples]
    file = cache / f"{digest(documents)[:16]}.jsonl"
    with built_once(file, "the texts of the task"):
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, "".join(json.dumps({"text": text}) + "\n" for text in documents if text.strip()))
    return file


def document(text: Text) -> str:
    """A text, the two of a pair a line each, or the words of a list with spaces between them."""
    if isinstance(text, tuple):
        return "\n".join(" ".join(part.split()) for part in text)
    return " ".join(text) if isinstance(text, list) else text
