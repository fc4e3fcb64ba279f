"""Small worlds for the tests: everything offline, in a folder of its own."""

from __future__ import annotations

import csv
import functools
import json
import os
import signal
import socket
import string
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from filelock import FileLock
from matplotlib import pyplot
from matplotlib.figure import Figure

from pipeline.data import store_builder
from pipeline.data.documents import Source
from pipeline.data.synthetic import corpus as sample
from pipeline.data.token_store import TokenStore
from pipeline.storage.atomic import open_atomically
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.wordpiece import WordPiece
from pipeline.tracking import plots
from pipeline.tracking.history import current_names
from pipeline.tracking.metric_names import meaning
from tasks import plots as test_plots
from tests import conformance, fork_server
from tests.fork_server import python

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]  # written for users

look_up, draw, draw_curves = socket.getaddrinfo, plots.save_figure, plots.plot_curves
FIGURES = {name: getattr(test_plots, name) for name in ("confusion", "types")}  # of every test
# Files of tests, by the time that they take: workers begin with them.
LONGEST = [
    "test_readme_commands",
    "test_compare",
    "test_conformance_runs",
    "test_tracking",
    "test_faults",
    "test_pretrain",
]
LONGEST += ["test_architecture", "test_finetune", "test_docs", "test_bench", "test_worth", "test_hostile_checkpoints"]
LONGEST += ["test_conformance", "test_distillation", "test_translation", "test_tuned", "test_chains", "test_cards"]
SMALL = [
    "--data.sample_documents=300",
    "--data.tokenizer.vocab_size=500",
    "--data.length=48",
    "--data.batch_size=16",
    "--data.validation_rows=64",
    "--model.encoder.init_args.size=64",
    "--model.encoder.init_args.layers=2",
    "--model.encoder.init_args.heads=2",
    "--model.encoder.init_args.inner_size=128",
    "--model.encoder.init_args.max_length=48",
    "--model.optimization.learning_rate=1e-3",
    "--model.optimization.warmup_steps=2",
    "--trainer.log_every_n_steps=2",
    "--precision=32-true",
]
TWO = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.accelerator=cpu"]  # processes


def pytest_configure(config: pytest.Config) -> None:
    """One fork server for the workers of xdist."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        fork_server.use(config.workerinput["python"])
        return
    place = tempfile.TemporaryDirectory(prefix="fork-server-")  # a short path: that of a socket may have 107 bytes
    server = fork_server.start(Path(place.name))

    def end() -> None:
        if server is not None:
            server.communicate()
        place.cleanup()

    config.add_cleanup(end)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["python"] = python()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for a pretrained toy is slow: `make test-fast` leaves it out. Other tests that train say so."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    for item in items:
        if {"toys", "pretrained"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests, and for what they share."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["PIPELINE_CACHE"] = str(folder)
    return folder


@pytest.fixture(autouse=True)
def _surroundings(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory for each test, and no network."""
    monkeypatch.setenv("PIPELINE_CACHE", str(cache))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "/dev/null")
    monkeypatch.setattr("socket.getaddrinfo", no_network)
    draw_less(monkeypatch)
    monkeypatch.chdir(tmp_path)


def draw_less(patch: pytest.MonkeyPatch) -> None:
    """Plots of every run are drawn by the runs that tests share alone: for each they take a fifth of the time."""
    patch.setattr(plots, "save_figure", save_some_figures)
    for name in FIGURES:
        patch.setattr(test_plots, name, functools.partial(empty_figure, name))
    for name in ("plot_curves", "plot_mix"):
        patch.setattr(plots, name, lambda history, file, **options: save_pixel(file))


def draw_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plots, "save_figure", draw)
    patch.setattr(plots, "plot_curves", draw_curves)
    for name, figure in FIGURES.items():
        patch.setattr(test_plots, name, figure)


def empty_figure(name: str, *shown: Any, **options: Any) -> dict[str, Figure]:
    """In place of a plot; of no spans, and of very many labels, there is none."""
    return {name: Figure()} if shown[-1] and len(shown[-1]) <= test_plots.MOST_LABELS else {}


def save_some_figures(figure: Any, file: Path) -> None:
    """Those of a comparison are drawn the first time that a test writes them."""
    if file.stem not in FIGURES and not file.exists():
        draw(figure, file)
        return
    if not file.exists():
        save_pixel(file)
    pyplot.close(figure)


def save_pixel(file: Path) -> None:
    with open_atomically(file, "wb") as stream:
        matplotlib.image.imsave(stream, np.zeros((1, 1, 3)), format="png")


def no_network(host: Any, *args: Any, **options: Any) -> Any:
    """Names are looked up of this machine only."""
    if host not in (None, "localhost", "127.0.0.1", "::1"):
        raise socket.gaierror(f"no network in tests: {host}")
    return look_up(host, *args, **options)


def run(*args: str) -> None:
    """A command in this process, as `python -m pipeline` would run it."""
    from pipeline.cli import parser as cli

    cli.main(list(args))


def losses(folder: Path) -> list[float]:
    """The training losses in the history of a run."""
    with open(folder / "metrics.csv", newline="") as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]


def command(*args: str, program: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m pipeline ...` in a process of its own: a fork, unless a program is given."""
    return subprocess.run(
        [program or python(), "-m", "pipeline", *args],
        capture_output=True,
        text=True,
        env=surroundings(**environment),
        timeout=300,
    )


def several(*commands: list[str]) -> list[str]:
    """A process of its own for commands, one after the other; it ends with the first that fails."""
    script = "import json, sys; from pipeline.cli import parser; [parser.main(run) for run in json.loads(sys.argv[1])]"
    return [python(), "-c", script, json.dumps(commands)]


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a process of its own: without the service that W&B has begun in this one."""
    return {**{name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}, **more}


def figures(folder: Path) -> dict[str, float]:
    """The metrics of a run; each of them is in the reference."""
    metrics = json.loads((folder / "metrics.json").read_text())
    assert [key for key in current_names(metrics) if meaning(key) is None] == []  # an older folder has former names
    return metrics


def assert_plot(file: Path) -> None:
    """A picture with lines or bars in it, in more than one color."""
    pixels = matplotlib.image.imread(file)[..., :3].reshape(-1, 3)
    assert len({tuple(pixel) for pixel in pixels[:: max(1, len(pixels) // 20_000)].tolist()}) > 3


def wordpiece_world(folder: Path) -> tuple[TokenStore, Tokenizer]:
    """The sample's text, 600 documents; of a vocabulary so small that many words have several pieces."""
    sample.write_corpus(folder, documents_count=600, seed=0)
    file = folder / "train.txt"
    tokenizer = WordPiece.train(file.open(), vocab_size=400, lowercase=True)
    return store_builder.build(Source(files=[file]), tokenizer, folder / "stores"), tokenizer


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Model -> its run folder; pretrained once, by the first test of any worker that asks for it. Never written to."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "toys"
    shared.mkdir(exist_ok=True)

    def toy(model: str) -> Path:
        folder = shared / model
        with FileLock(f"{folder}.lock"):
            if not (folder / "metrics.json").exists():
                with pytest.MonkeyPatch.context() as patch:
                    draw_all(patch)
                    run("pretrain", "--out", str(folder), *conformance.pretraining(model))
        return folder

    return toy


@pytest.fixture(scope="session")
def pretrained(toys: Callable[[str], Path]) -> Path:
    """The run folder of a small BERT, pretrained on the sample for a few steps."""
    return toys("bert")


def check_task(name: str, *, toys: Callable[[str], Path], folder: Path, trains: bool = True) -> None:
    """A task, by its name in configs/tasks or its file, reads its columns, keeps its labels, is scored and trains."""
    from pipeline import encoders
    from pipeline.cli.lightning_cli import parse
    from pipeline.finetuning.heads import head_class
    from pipeline.presets import files as presets
    from pipeline.presets import tasks
    from pipeline.training.finetuning import FineTuning
    from pipeline.training.task_data import TaskData
    from tasks.base import Prediction, Task
    from tasks.dataset import SPLITS

    file = tasks.task_file(name)
    alone = tasks.task_of(file)
    model = "bart" if alone.head is not None and head_class(alone.head).requires == "seq2seq" else "bert"
    encoder = toys(model) / "encoder"
    if not isinstance(alone, Task):
        check_prompts(alone, name, encoder=encoder, folder=folder)
        return
    built = parse(FineTuning, TaskData, [presets.CONFIGS / "finetune.yaml", file], [])
    task, flags = built.data.task, ["--data.train_rows=8"]
    if task.prompts:
        check_prompts(task, name, encoder=encoder, folder=folder)
    if task.sample is None:  # files as the YAML says that they are
        data, rows = folder / "data", [task.made_up(number) for number in range(12)]
        for split, begin in task.splits.items():
            place = data / f"{begin.replace('*', 'x')}.jsonl"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("".join(json.dumps(row) + "\n" for row in rows))
            assert split in SPLITS
        if "valid" not in task.splits:
            flags.append("--data.task.init_args.valid_rows=4")
        flags = [f"--data.files={data}", *flags]
        task.learn_labels([("row", row) for row in rows])
        examples = task.examples([("row", row) for row in rows])
        keys = (presets.REPOSITORY / "docs/reference/outputs.md").read_text()
        for row, example in zip(rows, examples, strict=True):
            line = task.row(example, Prediction(example.label, [1.0] * len(task.outputs)))
            assert f"| {', '.join(f'`{key}`' for key in line)} |" in keys
            assert {"gold", "reference"} & {*line}, "the right answer of a row is its gold or reference"
            shown = line["gold"] if "gold" in line else line["reference"]
            assert np.atleast_1d(shown).tolist() == (task.names(("row", row)) or [example.label])
        gold = [example.label for example in examples]
        assert task.scores(gold, gold).figures[task.metric] == pytest.approx(task.bound if task.mode == "max" else 0)
    out = folder / "run"
    if not trains:
        files = [presets.CONFIGS / "finetune.yaml", file]
        parse(FineTuning, TaskData, files, flags).data.prepare(encoders.load(encoder))
        return
    small = ["--validations=1", "--precision=32-true", "--trainer.max_steps=1", "--data.epochs=1"]
    small += ["--data.max_length=32"]
    run("finetune", "--model", model, "--task", name, "--from", str(encoder), "--out", str(out), *small, *flags)
    assert f"test/{task.metric}" in figures(out)


def check_prompts(task: Any, name: str, *, encoder: Path, folder: Path) -> None:
    """The prompts of a task can be asked."""
    where = ["--from", str(encoder), "--out", str(folder / "zeroshot"), "--limit", "2"]
    if task.sample is None:
        texts = [text for p in task.prompts for text in (p.text, *(p.candidates if p.shape != "last_word" else []))]
        names = {field for text in texts for _, field, *_ in string.Formatter().parse(text) if field}
        row = {name: f"some words of {name}" for name in {*names, *getattr(task, "groups", [])}}
        row |= {task.columns[role]: f"a text {role}" for role in task.roles}
        row |= {column: next(iter(values)) for p in task.prompts for column, values in p.values.items()}
        row |= {p.gold: 1 for p in task.prompts if isinstance(p.gold, str)}
        if task.head is not None:
            row[task.columns["label"]] = next(iter(task.labels or task.prompts[0].candidates))
        begin = task.splits["test"].replace("*", "x") or "x"
        place = folder / "asked" / f"{begin}.jsonl"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(row) + "\n")
        where += ["--data", str(folder / "asked")]
    run("zeroshot", "--task", name, *where)
    assert figures(folder / "zeroshot")["zeroshot/rows"] == (2 if task.sample else 1)
