"""What a task's data hold, before a run: rows and labels of all parts, and what is remarkable about them."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.data.task_files import oddly_named
from pipeline.training.task_data import TaskData
from tasks.dataset import listed

MANY_SHARED = 0.01  # of the texts of a part that is not trained on
MANY_LEFT, MOSTLY = 0.25, 0.75  # of the pairs of such a part; of these


def task_report(data: TaskData) -> str:
    """Rows and labels of all parts, and what is remarkable about them."""
    parts = []
    for split in data.features:
        notes = ", ".join(_notes(data, split))
        parts.append(f"{split} {len(data.examples[split]):,} rows" + (f" ({notes})" if notes else ""))
    shown = f"task        {', '.join(parts)}; {data.task.describe_labels(data.examples.get('train', []))}"
    if (columns := data.found.read_from(data.task)) is not None:
        shown += f"; {columns}"
    where = ["splits.csv says which row is in which part"] if data.found.made else []
    return "\n".join([shown, *(f"            {note}" for note in (*where, *warnings(data)))])


def _notes(data: TaskData, split: str) -> Iterator[str]:
    features = data.features[split]
    if cut := len({feature.text for feature in features if feature.was_cut}):
        yield f"{cut:,} cut to {data.longest} tokens"
    if (note := data.label_notes.get(split)) is not None:
        yield note
    if windows := len(features) - len({feature.text for feature in features}):
        yield f"{windows:,} more windows of {data.longest} tokens"
    if empty := sum(not any(example.text) for example in data.examples[split]):
        yield f"{empty:,} empty"
    if shared := data.trained_on[split]:
        yield f"{shared:,} of the same text as a training row"
    if split in data.found.made:
        yield data.found.made[split]
    if left_out := data.found.left_out.get(split):
        yield f"{left_out:,} left out, {data.task.ignores}"


def warnings(data: TaskData) -> Iterator[str]:
    """Warnings about settings that may not be intended."""
    for split in ("valid", "test"):
        shared, texts = data.trained_on[split], len(data.examples.get(split, []))
        if shared > MANY_SHARED * texts:
            many = f"{shared:,} of {texts:,} {split} texts are training texts too"
            yield f"Warning: {many}: its figures say less of new ones."
        left, right = data.left_over.get(split, (0, 0))
        if left > MANY_LEFT * texts and right > MOSTLY * left:
            yield (
                f"Warning: for {left:,} of {texts:,} {split} pairs the training part has the first text with all "
                f"labels but one, and {right:,} times that one is right: a score says less of the pairs."
            )
    for split, odd in oddly_named(data.task, data.files).items() if data.files is not None else ():
        name = data.task.splits[split]
        yield f"Warning: the {split} part is read from {listed(odd)}, whose name only begins as '{name}'."
