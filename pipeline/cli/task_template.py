"""`make new-task`: the YAML file of a new data set, with comments, and a test of it."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.errors import UserError
from pipeline.storage.atomic import write_atomically

LONGEST = 100  # characters of a name, which is that of files too
KINDS = {
    "sentence": ("tasks.sentiment.Sentiment", "columns: {text: text, label: label}"),
    "pair": (
        "tasks.entailment.Entailment",
        "columns: {premise: premise, hypothesis: hypothesis, label: label}",
    ),
    "tagging": ("tasks.tagging.Tagging", "columns: {words: words, tags: tags}"),
}
YAML = """\
# NAME: what it is, and who made it.
# `make finetune TASK=NAME DATA=folder` reads it from a folder of files whose names begin as `splits` says:
# .tsv or .csv with a header, .jsonl, .parquetCONLL.
data:
  task:
    class_path: CLASS
    init_args:
      COLUMNS # what the task reads: the column of your files
EXTRA      # labels: LABELS # value in the files: name of the label; else whatever the training part has
      # hub: {path: owner/name} # where to read it from without DATA
      splits: {train: train, test: test} # add valid: dev where there is such a part
      valid_rows: 100 # without one, so many rows of the training part choose the checkpoint
  epochs: 5
"""
TAGGING = """\
      conll: {words: 0, tags: 1} # in files of CoNLL columns: their numbers, from 0
      spans: true # tags of spans (B-, I-, O), scored by F1 of spans; false: plain tags, scored by accuracy
"""
TEST = '''\
"""The task NAME reads its columns, keeps its labels, is scored, and trains."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import check_task


def test_NAME(pretrained: Path, tmp_path: Path) -> None:
    check_task("NAME", encoder=pretrained / "encoder", folder=tmp_path)
'''


def new_task(name: str, kind: str, folder: Path, *, packaged: Path) -> list[Path]:
    """Writes `configs/tasks/NAME.yaml`, and `tests/test_task_NAME.py` where the project's tests are.

    Args:
        folder: where to, most often the current one.
        packaged: the folder of the tasks that are there for everyone, whose names are taken.

    Raises:
        UserError: the name is no name, or taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise UserError(f"NAME={name} must be small letters, digits and hyphens, beginning with a letter.")
    if len(name) > LONGEST:
        raise UserError(f"NAME has {len(name)} characters; it may have {LONGEST}.")
    snake = name.replace("-", "_")
    yaml, test = folder / "configs/tasks" / f"{name}.yaml", folder / "tests" / f"test_task_{snake}.py"
    for file in (yaml, packaged / yaml.name, test):
        if file.exists():
            raise UserError(f"{file} is there already; choose another NAME.")
    class_path, columns = KINDS[kind]
    tagging = kind == "tagging"
    text = YAML.replace("EXTRA", TAGGING if tagging else "").replace("CONLL", ", CoNLL columns" if tagging else "")
    text = text.replace("LABELS", '{"0": O, "1": B-x, "2": I-x}' if tagging else '{"0": negative, "1": positive}')
    text = text.replace("CLASS", class_path).replace("COLUMNS", columns).replace("NAME", name)
    write_atomically(yaml, text)
    conftest = test.with_name("conftest.py")
    if not conftest.is_file() or "def check_task(" not in conftest.read_text(encoding="utf-8", errors="replace"):
        return [yaml]  # installed from a package: the user's tests are another's
    write_atomically(test, TEST.replace("test_NAME", f"test_{snake}").replace("NAME", name))
    return [yaml, test]
