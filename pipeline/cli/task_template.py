"""`make new-task`: the YAML file of a new data set, with comments, and a test of it."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.storage.atomic import write_atomically
from tasks.base import Task, kinds

LONGEST = 100  # characters of a name, which is that of files too
KINDS = kinds()
YAML = Template("""\
# $name: what it is, and who made it.
# `make finetune TASK=$name DATA=folder` reads it from a folder of files whose names begin as `splits` says:
# $formats.
data:
  task:
    class_path: $class_path
    init_args:
      columns: {$columns} # what the task reads: the column of your files
$own      # hub: {path: owner/name} # where to read it from without DATA
      splits: {train: train, test: test} # add valid: dev where there is such a part
      valid_rows: 100 # without one, so many rows of the training part choose the checkpoint
  epochs: 5
""")
TEST = Template('''\
"""The task $name reads its columns, keeps its labels, is scored, and trains."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import check_task


def test_$function(pretrained: Path, tmp_path: Path) -> None:
    check_task("$name", encoder=pretrained / "encoder", folder=tmp_path)
''')


def new_task(name: str, kind: str, folder: Path, *, packaged: Path) -> list[Path]:
    """Writes `configs/tasks/NAME.yaml`, and `tests/test_task_NAME.py` where the project's tests are.

    Args:
        folder: where to, most often the current one.
        packaged: the folder of the tasks that are there for everyone, whose names are taken.

    Raises:
        UserError: the name is no name, or taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise UserError(
            f"{typed.flag('name', name)} must be small letters, digits and hyphens, beginning with a letter."
        )
    if len(name) > LONGEST:
        raise UserError(f"The name has {len(name)} characters; it may have {LONGEST}.")
    function = name.replace("-", "_")
    yaml, test = folder / "configs/tasks" / f"{name}.yaml", folder / "tests" / f"test_task_{function}.py"
    for file in (yaml, packaged / yaml.name, test):
        if file.exists():
            raise UserError(f"{file} is there already; choose another name.")
    write_atomically(yaml, yaml_of(name, KINDS[kind]))
    conftest = test.with_name("conftest.py")
    if not conftest.is_file() or "def check_task(" not in conftest.read_text(encoding="utf-8", errors="replace"):
        return [yaml]  # installed from a package: the user's tests are another's
    write_atomically(test, TEST.substitute(name=name, function=function))
    return [yaml, test]


def yaml_of(name: str, kind: type[Task]) -> str:
    """The YAML file of a new data set of a kind."""
    columns = ", ".join(f"{role}: {column}" for role, column in kind.default_columns().items())
    return YAML.substitute(
        name=name,
        formats=kind.formats,
        class_path=f"{kind.__module__}.{kind.__name__}",
        columns=columns,
        own="".join(f"      {line}\n" for line in kind.template.splitlines()),
    )
