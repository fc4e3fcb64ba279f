"""What people, disks and other programs do to a pipeline, by kind: tables of cases.

Each ends in one plain sentence and exit status 2, with nothing lost, or works rightly. No case sets more of the
environment than a user would. Here: command line, make and configuration; test_hostile_*.py have the
rest.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import yaml
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from pipeline import __main__
from pipeline.cli.arguments import split_arguments
from pipeline.cli.config import finetuning, pretraining
from pipeline.errors import UserError
from pipeline.presets.files import REPOSITORY
from pipeline.presets.tasks import task_file, task_hash, task_of
from pipeline.storage.validation import read_yaml
from pipeline.training import hardware as machine
from pipeline.training import nodes, run_folder
from pipeline.training.requests import CorpusRequest, FineTuneRequest, PretrainRequest
from tests.conftest import SMALL, run


def make(*args: str, cwd: Path = REPOSITORY, **environment: str) -> subprocess.CompletedProcess[str]:
    """`make ...` as where everything is installed."""
    installed = [f"-o.venv/bin/.installed-{extra}" for extra in ("core", "dev")]
    command = ["make", "-f", str(REPOSITORY / "Makefile"), *installed, *args]
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**outside, **environment})


def stand_in(folder: Path) -> None:
    """A Python in `folder` that says its arguments, one a line, in place of the pipeline."""
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nfor word; do printf '%s\\n' \"$word\"; done\n")
    python.chmod(0o755)


@pytest.mark.parametrize(
    "value",
    [
        "`touch it`",
        "$(touch it)",
        "$$(touch it)",
        "$(shell touch it)",
        '"; touch it; "',
        "'; touch it; '",
        "a\ntouch it",
    ],
)
def test_no_shell_reads_what_make_is_given(tmp_path: Path, value: str) -> None:
    stand_in(tmp_path)
    done = make("pretrain", f"OUT={value}", f"CORPUS={value}", f"ARGS={value}", cwd=tmp_path)
    assert not (tmp_path / "it").exists()
    assert done.returncode == 0
    assert f"--out={value}\n" in done.stdout
    shown = make("-n", "pretrain", f"OUT={value}", cwd=tmp_path)
    assert not (tmp_path / "it").exists()
    assert shown.returncode == 0


def test_flags_in_args_are_split_as_by_a_shell_but_nothing_is_expanded() -> None:
    text = """--data.files "a b" --x='c d' $HOME * `touch it`"""
    split = ["pretrain", "--data.files", "a b", "--x=c d", "$HOME", "*", "`touch", "it`"]
    assert split_arguments(["pretrain", f"--args={text}"]) == split
    with pytest.raises(UserError, match="ARGS cannot be split into flags: no closing quotation"):
        split_arguments(["pretrain", '--args=--data.files "a'])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("CORPSU=x", "make does not know CORPSU=; did you mean CORPUS="),
        ("SED=1", "did you mean SEED="),
        ("MAX_STEPS=9", "make does not know MAX_STEPS=; it knows MODEL CORPUS"),
        ("OVERWRITE=maybe", "OVERWRITE=maybe is neither on (1 true yes on) nor off (0 false no off)"),
        ("RESUME=0 1", "RESUME=0 1 is neither on"),
    ],
)
def test_make_refuses(given: str, message: str) -> None:
    done = make("-n", "pretrain", given)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(("value", "on"), [("1", True), ("yes", True), ("0", False), ("no", False), ("", False)])
def test_switches_of_make_are_on_or_off(value: str, on: bool) -> None:
    shown = make("-n", "pretrain", f"OVERWRITE={value}", f"RESUME={value}").stdout
    assert ("--overwrite" in shown) is ("--resume" in shown) is on


def test_only_the_command_line_sets_variables_of_make() -> None:
    names = ("MODEL", "CORPUS", "DATA", "OUT", "SEED", "OVERWRITE", "ARGS", "NAME")
    shown = make("-n", "pretrain", "WANDB_MODE=disabled", **dict.fromkeys(names, "1"))
    assert shown.returncode == 0
    assert shown.stdout.split("\n")[0].strip().endswith("-m pipeline pretrain")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["pretrain", "--seed", "-1"], "--seed is -1; it must be a whole number from 0 to 4,294,967,295"),
        (["pretrain", "--seed=many"], "--seed is many; it must be a whole number"),
        (["finetune", "--seeds", "-3"], "--seeds is -3; it must be a whole number"),
        (["worth", "--seeds", "0"], "--seeds is 0; it must be a whole number from 1"),
        (["try", "--temperature", "hot"], "--temperature is hot; it must be a number"),
        (["finetune", "--arm", "half"], "--arm is half; it must be one of full, scratch, frozen, random"),
        (["dance"], "There is no command dance; there are audit, compare"),
        (["new-task"], "The following arguments are required: --name"),
        (["pretrain", "--out", ""], "--out is empty"),
        (["pretrain", "--out", " "], "--out is empty"),
        (["pretrain", "--data="], "--data is empty"),
        (["finetune", "--from", ""], "--from is empty"),
        (["predict", "--from", ""], "--from is empty"),
        (["predict", "--from", "nowhere"], r"^There is no folder nowhere of an encoder or model\.$"),
        (["pretrain", "--out", "w/\udcff"], r"The argument 'w/\\udcff' is not valid UTF-8"),
        (["try", "--prompt", "\ud800"], "is not valid UTF-8"),
        (["pretrain", "--over"], "no setting or flag --over"),
        (["pretrain", "--prec=32-true"], "no setting or flag --prec. Did you mean --precision"),
        (["pretrain", "--data.batch=3"], "no setting or flag --data.batch. Did you mean --data.batch_size"),
        (["pretrain", "--corpus", "a.txt", "--data", "b.txt"], "--corpus a.txt and --data b.txt both say"),
        (["pretrain", "--config", "nothing.yaml"], "no configuration file at nothing.yaml"),
        (["pretrain", "--data.seed=-1"], "data.seed is -1; it must be at least 0"),
        (["pretrain", "--data.seed=null"], "data.seed is None; it must be a whole number"),
        (["pretrain", "--model.seed=99999999999999999999"], "model.seed is 99,999,.*it must be at most 4,294,967,295"),
        (["pretrain", "--data.tokenizer.vocab_size=99999999999"], "99,999,999,999; it must be at most 10,000,000"),
        (["pretrain", "--data.tokenizer.train_megabytes=inf"], "train_megabytes is inf; it must be a finite number"),
        (["pretrain", "--model.encoder.init_args.layers=99999"], "layers is 99,999; it must be at most 1,000"),
        (["pretrain", "--data.workers=100000"], "data.workers is 100,000; it must be at most 256"),
        (["pretrain", "--trainer.devices=9999"], "trainer.devices is 9,999; it must be at most"),
        (["pretrain", "--data.sample_documents=99999999999"], "sample_documents is 99,999,.*at most 10,000,000"),
        (["new-task", "--name", "x" * 300], "The name has 300 characters; it may have 100"),
    ],
)
def test_the_command_line_refuses(tmp_path: Path, args: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        run(*args)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trainer: {max_steps: 3, max_steps: 4}", "file.yaml, line 1.*'max_steps' is a duplicate key"),
        ("trainer: {max_steps: 010}", "file.yaml, line 1.*010 is a number of another base"),
        ("trainer: {max_steps: 1:30}", "file.yaml, line 1.*1:30 is a number of another base"),
        ("trainer: {a: &a [*a]}", "file.yaml"),
        ("trainer: &a\n  x: *a", "file.yaml.*contains itself"),
        ("a: " + "[" * 1500, "file.yaml is nested too deeply"),
        ("trainer: null", "file.yaml is not valid: trainer is null; it must be a mapping of settings"),
        ("model: [1]", r"file.yaml is not valid: model is \[1\]"),
        ("data: {tokenizer: null}", "file.yaml.*data.tokenizer is null"),
        ("model: {encoder: null}", "file.yaml.*model.encoder is null"),
        ("model: {encoder: {init_args: null}}", "file.yaml.*model.encoder.init_args is null"),
        ("", "file.yaml.*it must have settings"),
        ("- 3", "file.yaml.*it must have settings"),
        ("3: 4", "file.yaml.*it must have settings"),
        ("trainer: {max_stepz: 3}", "file.yaml is not valid:.*max_stepz"),
        ("trainer: {max_steps: many}", "file.yaml is not valid:.*trainer.max_steps.*many"),
        ("model: {encoder: {init_args: {size: x}}}", "file.yaml is not valid:.*size is x; it must be a whole number.$"),
        ("trainer: !!python/object/apply:os.system [ls]", "file.yaml, line 1, is not valid YAML"),
        ("trainer: {max_steps: null}", "trainer.max_steps is null"),
        ("a: \x01", "file.yaml is not valid YAML"),
    ],
)
def test_configuration_files_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(UserError, match=f"(?s){message}") as caught:
        run("pretrain", "--config", "file.yaml")
    assert "\n" not in str(caught.value)


def test_a_file_does_not_give_a_run_another_name(tmp_path: Path) -> None:
    """What is typed is stronger than a file, wherever it stands; what is not typed may not be another's."""
    (tmp_path / "mine.txt").write_text("a text\n")
    other = {"data": {"files": "other.txt", "sample_documents": None, "length": 32}, "model": {"seed": 3}}
    Path("file.yaml").write_text(yaml.safe_dump(other))
    words = ("--data.length=48", "--config", "file.yaml")
    made = pretraining(PretrainRequest(model="bert", corpus=str(tmp_path / "mine.txt"), overrides=words)).resolved
    assert (made["data"]["files"], made["data"]["length"]) == (str(tmp_path / "mine.txt"), 48)
    assert made["model"]["seed"] == 3
    with pytest.raises(UserError, match=r"sets data\.files otherwise than --model bert and --corpus sample"):
        pretraining(PretrainRequest(model="bert", overrides=words))
    encoder = {"model": {"encoder": {"class_path": "pipeline.models.gpt.Gpt"}}}
    Path("file.yaml").write_text(yaml.safe_dump(encoder))
    with pytest.raises(UserError, match=r"model\.encoder\.class_path|objective|Gpt"):
        pretraining(PretrainRequest(model="bert", overrides=words[1:]))
    task = {"data": {"task": {"class_path": "tasks.sentiment.Sentiment", "init_args": {"sample": "sentiment"}}}}
    Path("file.yaml").write_text(yaml.safe_dump(task))
    asked = FineTuneRequest(model="bert", task="entailment", encoder=tmp_path, overrides=words[1:])
    with pytest.raises(UserError, match=r"sets data\.task\.class_path otherwise than --task entailment"):
        finetuning(asked)


TASK = "data:\n  task:\n    class_path: {}\n    init_args: {{sample: sentiment, columns: {{text: text}}}}\n"
KIND = "from dataclasses import dataclass\nfrom tasks.sentiment import Sentiment\n\n"
KIND += "@dataclass\nclass Mine(Sentiment):\n    pass\n"


def test_a_kind_of_task_is_loaded_without_what_stands_beside_it(tmp_path: Path, cache: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "hostile_kind.py").write_text(f"{KIND}    folder = '{folder}'\n")
        (tmp_path / folder / "beside.py").write_text("raise SystemExit('imported')\n")
        (tmp_path / folder / "task.yaml").write_text(TASK.format("hostile_kind.Mine"))
    before, hashes = list(sys.path), set()
    for folder in ("one", "two", "one"):
        file = task_file(str(tmp_path / folder / "task.yaml"))
        assert task_of(file).folder == folder  # type: ignore[attr-defined]
        hashes.add(task_hash(file))
    assert sys.path == before
    assert len(hashes) == 2
    with pytest.raises(ModuleNotFoundError):
        __import__("beside")


@pytest.mark.parametrize(
    ("module", "content", "message"),
    [
        ("json", KIND, "json.py has the name of another module; rename it"),
        ("hostile_empty", "", "hostile_empty.py has no Mine"),
        ("hostile_broken", "import there_is_none", "hostile_broken.py cannot be imported: No module named"),
        ("hostile_older", f"{KIND}    def example(self, row, known): ...\n", "Mine.example must take the row alone"),
        ("hostile_missing", None, "task.yaml is not valid:.*No module named"),
    ],
)
def test_kinds_of_task_are_refused(tmp_path: Path, module: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / f"{module}.py").write_text(content)
    (tmp_path / "task.yaml").write_text(TASK.format(f"{module}.Mine"))
    with pytest.raises(UserError, match=message):
        task_of(task_file("task.yaml"))
    assert "Mine" not in vars(sys.modules["json"])


def test_weights_are_counted_before_they_are_made(pretrained: Path, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    assert machine.bytes_of_weights(lambda: nn.LSTM(8, 4)) == sum(p.numel() * 4 for p in nn.LSTM(8, 4).parameters())
    torch.set_rng_state(state)
    assert machine.bytes_of_weights(lambda: nn.Linear(10**8, 10**8).weight.tolist()) == 4 * (10**16 + 10**8)
    assert machine.bytes_of_weights(lambda: nn.Linear(10**12, 10**12)) == float("inf")
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(UserError, match=r"weights alone would need about 52 TB; this machine has [\d,]+ [MGT]B"):
        run("pretrain", *SMALL, "--model.encoder.init_args.inner_size=50000000000", "--out", "out")
    with pytest.raises(UserError, match=r"would need about 32 TB.*Lower the sizes in model.recipe"):
        run("finetune", "--from", str(pretrained / "encoder"), "--model.recipe.lstm=1000000", "--out", "out")


def test_nodes_that_cannot_meet_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [*SMALL, "--trainer.num_nodes=2", "--trainer.accelerator=cpu", "--out", "out"]
    with pytest.raises(UserError, match="no other node could find this one: set MASTER_ADDR and MASTER_PORT"):
        run("pretrain", *nodes)
    monkeypatch.setenv("PIPELINE_NODE_TIMEOUT", "soon")
    with pytest.raises(UserError, match="PIPELINE_NODE_TIMEOUT is soon; it must be a number of minutes"):
        run("pretrain", *nodes)


@pytest.mark.parametrize(("minutes", "said"), [(None, 30), ("2", 2)])
def test_nodes_wait_as_long_as_lightning_unless_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], minutes: str | None, said: int
) -> None:
    there = SimpleNamespace(creates_processes_externally=True, main_address="here", main_port=1)
    strategy = DDPStrategy(cluster_environment=cast(Any, there))
    trainer = SimpleNamespace(num_nodes=2, strategy=strategy, is_global_zero=True)
    if minutes is not None:
        monkeypatch.setenv("PIPELINE_NODE_TIMEOUT", minutes)
    nodes.prepare_nodes(trainer)
    nodes.announce_nodes(trainer)
    assert f"for at most {said} minutes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("told", "nodes", "main"),
    [
        ({"NODE_RANK": "1"}, 2, False),
        ({"GROUP_RANK": "1"}, 2, False),
        ({"NODE_RANK": "0"}, 2, True),
        ({"NODE_RANK": "1", "RANK": "0"}, 2, True),
        ({"NODE_RANK": "1"}, 1, True),  # as a cluster may set it for every job
    ],
)
def test_another_node_leaves_the_run_folder_to_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: dict[str, str], nodes: int, main: bool
) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 0)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "run"
    (out / ".before").mkdir(parents=True)  # the first node is about to take the place of a run
    (out / ".before/lineage.json").write_text('[{"stage": "pretrain"}]')
    flags = [*SMALL, f"--trainer.num_nodes={nodes}", "--trainer.accelerator=cpu"]
    pretraining(CorpusRequest(seed=1, overrides=tuple(flags)))
    run_folder.check_run_folder(out, overwrite=True, stage="pretrain")
    assert (out in run_folder.LOCKS) == (not (out / ".before").exists()) == main
    run_folder.release()
    assert (out / ".before").exists() != main


class PanicException(BaseException):
    """As pyo3's, of tokenizers."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "Memory ran out"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), "Memory ran out"),
        (OSError(12, "Cannot allocate memory"), "Memory ran out"),
        (RuntimeError("can't start new thread"), "No further thread"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "No further thread"),
        (PanicException("ThreadPoolBuildError { kind: IOError }"), "No further thread"),
        (RuntimeError("Timed out after 7 seconds waiting for clients. 1/2 clients joined."), "Not all nodes"),
        (
            OSError(36, "File name too long", "x" * 300),
            r"x\.\.\. \(300 characters\) could not be .*too long",
        ),
        (FileNotFoundError(2, "No such file or directory", "/proc/x"), "/proc/x could not be read or written: No such"),
        (FileNotFoundError(2, "No such file or directory", "of ours"), None),
        (RuntimeError("of ours"), None),
        (KeyError("of ours"), None),
    ],
)
def test_what_the_system_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, said: str | None
) -> None:
    def fails(args: list[str]) -> None:
        raise error

    monkeypatch.setattr("pipeline.cli.parser.main", fails)
    monkeypatch.setattr("sys.argv", ["pipeline", "predict", "--out", "/proc/x/p.jsonl"])
    if said is None:  # a bug keeps its traceback
        with pytest.raises(type(error)):
            __main__.main()
        return
    assert __main__.main() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(f"^Error: .*{said}", line)


def test_a_reader_that_leaves_ends_no_run(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pipeline.__main__ import outlasting\n"
        "sys.stdout, sys.stderr = outlasting(sys.stdout), outlasting(sys.stderr)\n"
        "for line in range(100_000): print(line); print(line, file=sys.stderr)\n"
        "Path('done').write_text('')\n"
    )
    command = f"{sys.executable} -c {shlex.quote(code)} 2>&1 | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.stdout.splitlines() == ["0", "0"]  # the first line, and the status
    assert not done.stderr
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize(
    ("given", "set_to"),
    [
        ({}, {"GOMP_SPINCOUNT": __main__.SPINS}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_waiting_threads_give_way_unless_the_user_says_otherwise(given: dict[str, str], set_to: dict[str, str]) -> None:
    __main__.let_threads_give_way(given)
    assert given == set_to


def test_that_is_said_before_torch_is_imported() -> None:
    code = "import sys; from pipeline import __main__ as m\n"
    code += "def main(args): sys.exit('torch' in sys.modules or os.environ['GOMP_SPINCOUNT'] != m.SPINS)\n"
    code += "import os; m.cli.main = main; sys.argv = ['pipeline', 'data']; m.main()"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


def test_merge_keys_are_no_keys_given_twice(tmp_path: Path) -> None:
    text = "base: &base {lr: 1}\ndeep: {one: &one {<<: *base, lr: 2}}\ntwo: {<<: *one}\n"
    (tmp_path / "mine.yaml").write_text(text)
    assert read_yaml(tmp_path / "mine.yaml")["two"] == {"lr": 2}
    (tmp_path / "mine.yaml").write_text("tasks: {2020-01-01: x}\n")
    with pytest.raises(UserError, match=r"mine\.yaml, line 1, .*the key '2020-01-01' is a date"):
        read_yaml(tmp_path / "mine.yaml")
    for text in ("train: !!bool x\n", "train: !!timestamp x\n", "train: !!int ''\n", "!!binary eA==: x\n"):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(UserError, match=r"mine\.yaml.* is not valid YAML"):
            read_yaml(tmp_path / "mine.yaml")
