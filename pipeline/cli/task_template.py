"""`make new-task`: the YAML file of a new data set, with comments and what its files show, and a test of it."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from string import Template
from typing import Any

import yaml

from pipeline.console import typed
from pipeline.console.messages import inform
from pipeline.data.columns import check_header, which_columns
from pipeline.data.problems import raise_all
from pipeline.data.row_sources import rows_of
from pipeline.data.task_files import is_one_file
from pipeline.errors import UserError
from pipeline.presets.files import CONFIGS, known
from pipeline.storage.atomic import write_atomically
from tasks.base import Task, kinds
from tasks.dataset import listed
from tasks.guess import Table
from tasks.sentiment import Sentiment

NAME = r"[a-z][a-z0-9-]*"
LONGEST = 100  # characters of a name, which is that of files too
MISSING = ("none", "na", "n/a", "nan", "null")  # labels that may stand for none, in small letters
KINDS = kinds()
LIKELIHOOD = {"questions": 0, "regression": 2}  # answers that are parts of a text are no classes; numbers may be
YAML = Template("""\
# $name: what it is, and who made it.
# `make finetune TASK=$name DATA=$data` reads it from one file, which is split into parts, or from a folder of files
# whose names begin as `splits` says: $formats.
data:
  task:
    class_path: $class_path
    init_args:
$own      # hub: {path: owner/name} # where to read it from without DATA
      splits: {train: train, valid: valid, test: test} # names of files; a part without one is split off training
      test_rows: 0.1 # a share of all rows
      valid_rows: 0.1 # of the training rows
  epochs: 5
""")
TEST = Template('''\
"""The task $name reads its columns, keeps its labels, is scored, and trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import check_task


def test_$function(toys: Callable[[str], Path], tmp_path: Path) -> None:
    check_task("$name", toys=toys, folder=tmp_path)
''')


def new_task(name: str, kind: str | None, folder: Path, *, data: str | None = None, tested: bool = True) -> list[Path]:
    """Writes `configs/tasks/NAME.yaml`, and `tests/test_task_NAME.py` where the project's tests are.

    Args:
        tested: whether a test is written.
        kind: of the task; None: as the data look, or `sentence`.
        folder: where to, most often the current one.
        data: a file or folder of such data: columns and labels are guessed.

    Raises:
        UserError: the name is not valid, or taken; the data cannot be read, or their kind is not clear.
    """
    if not re.fullmatch(NAME, name):
        raise UserError(
            f"{typed.flag('name', name)} must be small letters, digits and hyphens, beginning with a letter."
        )
    if len(name) > LONGEST:
        raise UserError(f"The name has {len(name)} characters; it may have {LONGEST}.")
    function = name.replace("-", "_")
    file, test = folder / "configs/tasks" / f"{name}.yaml", folder / "tests" / f"test_task_{function}.py"
    for path in (file, CONFIGS / "tasks" / file.name, *([test] if tested else [])):
        if path.exists():
            raise UserError(f"{path} is there already; choose another name.")
    chosen, fields = (KINDS[kind or "sentence"], {}) if data is None else guess(name, kind, data)
    write_atomically(file, yaml_of(name, chosen, fields, data or "reviews.csv"))
    conftest = test.with_name("conftest.py")
    ours = conftest.is_file() and "def check_task(" in conftest.read_text(encoding="utf-8", errors="replace")
    if not tested or not ours:  # installed from a package: the user's tests are another's
        return [file]
    write_atomically(test, TEST.substitute(name=name, function=function))
    return [file, test]


def guess(name: str, kind: str | None, data: str) -> tuple[type[Task], dict[str, Any]]:
    """The kind of task that data look like, and what its YAML file says of them.

    Raises:
        UserError: they cannot be read, or it is not clear what they are; lists the columns.
    """
    refused: list[UserError] = []  # of single rows: the others are enough for a guess, and training lists them all
    rows = rows_of(Sentiment(), data, "train", refused.append)
    if not rows:
        raise_all(refused)
        named = "" if is_one_file(data) else "; its training part is named 'train'"
        raise UserError(f"{data} holds no row to guess the columns from{named}.")
    table = Table([row for _, row in rows])
    source = rows[0][0].rpartition(", ")[0]
    if 0 in table.names and len(refused) > sum(len(row[0]) for _, row in rows):
        raise UserError(
            f"{source} is no CoNLL file: most of its lines have other numbers of columns. Texts without labels are a "
            f"corpus: {typed.command('pretrain', corpus=source)}."
        )
    if kind in (None, "tagging"):
        check_table(table, rows[0][0])
    fits = {one: fields for one in KINDS if (fields := KINDS[one].guess_fields(table)) is not None}
    chosen = clearest(fits, table) if kind is None else kind
    if chosen is None or chosen not in fits:
        raise UserError(unclear(table, source, name, kind, data if "regression" in fits else None))
    labels = fits[chosen].get("labels") or {}
    if len(set(labels.values())) == 1:
        raise UserError(f"All rows of {source} have the label {next(iter(labels))}; at least two labels are needed.")
    read = fits[chosen].get("columns", {})
    if "text" in read and (others := [c.name for c in table.columns if c.is_text and c.name not in read.values()]):
        pairs = typed.command("new-task", name_=name, kind="pair")
        inform(f"Of {source}, {listed(others)} is not read; for pairs of texts: `{pairs}`.")
    return KINDS[chosen], fits[chosen]


def clearest(fits: dict[str, dict[str, Any]], table: Table) -> str | None:
    """The kind that reads the most columns, of several the most likely; None: there may be classes in several."""
    if set(fits) == {"regression"} and table.labels(*fits["regression"]["columns"].values()):
        return None
    return min(fits, key=lambda one: (-len(fits[one].get("columns", ())), LIKELIHOOD.get(one, 1), one), default=None)


def unclear(table: Table, source: str, name: str, kind: str | None, numbers: str | None) -> str:
    """Says why a table is not clear, and which command writes a file to correct.

    Args:
        numbers: data that could be those of a regression.
    """
    texts = [column.name for column in table.columns if column.is_text]
    likely = kind or ("pair" if len(texts) == 2 and table.text() is None else "sentence")
    wanted = KINDS[likely].default_columns()
    lists = [column.name for column in table.labels(*texts) if column.is_list] if "label" in wanted else []
    if lists:
        several = typed.command("new-task", name_=name, kind="multilabel", data=None)
        return f"{source} has lists under {lists[0]}: a text of several labels is of another kind (`{several}`)."
    without = typed.command("new-task", name_=name, kind=likely)
    text = f"{which_columns(table, source, wanted)} `{without}` writes that file."
    if kind is None and numbers is not None:
        text += f" To learn the number: `{typed.command('new-task', name_=name, kind='regression', data=numbers)}`."
    return text


def check_table(table: Table, place: str) -> None:
    """Raises: UserError, the table has no header, no columns, or sentences that have been taken apart into words."""
    source = place.rpartition(", ")[0]
    if 0 not in table.names:
        check_header(table, place)
        if (alone := table.word_and_tag()) is not None:
            raise UserError(
                f"{source} has one word in each row, under {alone[0]}, and its tag under {alone[1]}: save it as CoNLL "
                "columns (.conll), a word, a tab and its tag on a line, and an empty line after each sentence."
            )
    elif len(table.names) < 2:
        raise UserError(
            f"{source} has one column: a line of CoNLL columns is a word, a tab or space, and its tag. A table with a "
            "header is a .csv or .tsv file."
        )


def yaml_of(name: str, kind: type[Task], fields: dict[str, Any], data: str) -> str:
    """The YAML file of a new data set of a kind.

    Args:
        fields: arguments of the kind; those of its template without one are as there.
        data: shown in the command that trains on it.
    """
    columns = fields.get("columns", kind.default_columns())
    lines = [f"columns: {flow(columns)} # what the task reads: the column of your files", *kind.template.splitlines()]
    for number, line in enumerate(lines):
        key, _, rest = line.removeprefix("# ").partition(":")
        if key in fields and number:
            lines[number] = f"{key}: {flow(fields[key])} #{rest.rpartition(' #')[2]}"
    return YAML.substitute(
        name=name,
        data=data,
        formats=kind.formats,
        class_path=f"{kind.__module__}.{kind.__name__}",
        own="".join(f"      {line}\n" for line in lines),
    )


def flow(value: Any) -> str:
    """A value on one line of YAML."""
    listed = yaml.safe_dump([value], default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return listed.strip()[1:-1]


def described(file: Path) -> str:
    """What a YAML file that was written says of its data, in a line."""
    task = yaml.safe_load(file.read_text(encoding="utf-8"))["data"]["task"]
    fields = task["init_args"]
    facts = [f"{key} {flow(fields[key])}" for key in ("conll", "columns", "labels") if key in fields]
    text = f"Guessed: {task['class_path']} with {' and '.join(facts)}; correct it there where it is wrong"
    text += ", or delete the file to have it guessed again."
    missing = [str(value) for value in fields.get("labels") or {} if str(value).lower() in MISSING]
    if missing:
        text += f"\nIf the label {missing[0]} means that there is none, take it from `labels` and name it in `ignore`."
    return text


def add_missing(name: str, data: str | None) -> None:
    """Writes the YAML file of a task that there is none of yet, for its data, and says so.

    Nothing is written without data, or for a path.

    Raises:
        UserError: the name is almost that of another task, and may be meant for it; one with more behind it is not.
    """
    there = known("tasks")
    if data is None or name in there or not re.fullmatch(NAME, name) or Path(name).is_file():
        return
    if (close := difflib.get_close_matches(name, there, n=1, cutoff=0.8)) and not name.startswith(close[0]):
        made = typed.command("new-task", name_=name, data=data)
        raise UserError(f"There is no task {name}. Did you mean {close[0]}? Else `{made}` makes a task of these data.")
    file, *_ = new_task(name, None, Path(), data=data, tested=False)
    print(f"Wrote {file}: there was no task {name}.\n{described(file)}")
