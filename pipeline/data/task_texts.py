"""The training texts of a labeled task as a corpus: what a model reads there without its labels."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.data import labeled
from pipeline.errors import UserError
from pipeline.storage.atomic import write_atomically
from pipeline.storage.checksums import digest
from pipeline.storage.locks import built_once
from tasks.base import Task, Text


def task_texts(task: Task, files: str | None, cache: Path, *, translations: bool) -> Path:
    """A file in the cache with the texts of the training part, a document each; nothing of the other parts.

    Args:
        files: local folder, file or pattern instead of the task's hub name.
        cache: folder of such files.
        translations: whether a document is a text and its translation, a line each.

    Raises:
        UserError: a part is missing or empty, rows do not fit the task, or there are no translations.
    """
    if translations and not task.parallel:
        raise UserError("The task has no translations: a task of translation is needed here.")
    examples = labeled.read(task, files).parts["train"].examples
    documents = [document((str(e.text), e.label) if translations else e.text) for e in examples]
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
