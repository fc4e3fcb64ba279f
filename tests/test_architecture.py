"""The house stands as docs/development.md draws it: layers, configurations, commands."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import os
import re
import subprocess
from collections import UserList
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pipeline.cli.commands import sweep
from pipeline.cli.config import module_for, pretraining
from pipeline.cli.lightning_cli import CLI, parse
from pipeline.errors import UserError
from pipeline.experiments.comparison import grid as compare
from pipeline.experiments.ladder import plan as ladder_plan
from pipeline.experiments.ladder import rungs as ladder
from pipeline.experiments.recipes import ingredients as recipes
from pipeline.experiments.recipes import run as recipes_run
from pipeline.models import registry
from pipeline.objectives.base import Objective
from pipeline.objectives.causal_lm import CausalLM
from pipeline.objectives.masked_lm import MaskedLM
from pipeline.presets.files import CONFIGS, REPOSITORY, flat, named_config
from pipeline.tracking.metric_names import meaning
from pipeline.training.corpus_data import CorpusData
from pipeline.training.counting import Counting
from pipeline.training.finetuning import FineTuning
from pipeline.training.optimizers import Optimization
from pipeline.training.pretraining import Pretraining
from pipeline.training.requests import CorpusRequest, PretrainRequest
from pipeline.training.task_data import TaskData
from tasks.sentiment import Sentiment
from tests.conftest import PAGES, check_task, run

LIGHTNING = {"training", "tracking"}  # and what stands above them


def tree() -> list[str]:
    """The paths in the tree of docs/development.md, in its order."""
    [tree] = re.findall(r"```tree\n(.*?)```", (REPOSITORY / "docs/development.md").read_text(), flags=re.S)
    listed: list[str] = []
    folders: list[str] = []
    for line in tree.splitlines():
        indent, name = len(line) - len(line.lstrip()), line.split()[0]
        folders = folders[: indent // 2]
        listed.append("/".join([*folders, name.rstrip("/")]))
        if name.endswith("/"):
            folders.append(name.rstrip("/"))
    return listed


def modules() -> dict[str, Path]:
    paths = [path for part in ("pipeline", "tasks") for path in (REPOSITORY / part).rglob("*.py")]
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return dict(zip(names, paths, strict=True))


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """What a file imports, by the names of modules: in functions and strings too, but not for types alone."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {part if part in known else node.module for part in parts}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and path.stem != "former_names":
            name = node.value
            while "." in name and name not in known:
                name = name.rpartition(".")[0]
            found |= {name} & (known.keys() - {"pipeline", "tasks"})
        waiting += ast.iter_child_nodes(node)
    return found


@functools.cache
def graph() -> dict[str, set[str]]:
    """What each file imports."""
    known = modules()
    return {name: imports(path, known) for name, path in known.items()}


def place(module: str) -> str:
    """Where a module is in the tree: its package, or the file itself."""
    parts = module.split(".")
    if parts[0] == "tasks":
        return "tasks"
    name = parts[1] if len(parts) > 1 else "__init__"
    return f"pipeline/{name}" if (REPOSITORY / "pipeline" / name / "__init__.py").is_file() else f"pipeline/{name}.py"


def test_imports_run_down_the_tree() -> None:
    order = tree()
    for name, imports_of in graph().items():
        for imported in imports_of & graph().keys():
            above, below = place(name), place(imported)
            assert above == below or order.index(above) < order.index(below), f"{name} imports {imported}"


def test_no_two_files_import_each_other() -> None:
    """Within a package either: not by way of other files, nor in functions."""
    left = {name: imports_of & graph().keys() - {name} for name, imports_of in graph().items()}
    while done := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in done:
            del left[name]
    assert not left, f"a circle goes through some of {sorted(left)}"


def test_no_file_names_a_model() -> None:
    """What a model can do is asked, not which it is: the files of models are known to the registry alone."""
    families = {kind.__module__ for kind in registry.known().values()}
    for name, imports_of in graph().items():
        if place(name) not in ("pipeline/models", "pipeline/interop", "pipeline/bench"):
            assert not imports_of & families, f"{name} imports {imports_of & families}"


def test_what_trains_and_what_is_trained_are_apart() -> None:
    """Models, objectives and heads know neither Lightning nor Weights & Biases, not by way of another file either."""
    known, order = graph(), tree()
    lowest = max(order.index(f"pipeline/{package}") for package in LIGHTNING)
    for name in known:
        if order.index(place(name)) <= lowest:
            continue
        reached, waiting = set[str](), [name]
        while waiting:
            for imported in known.get(waiting.pop(), set()) - reached:
                reached.add(imported)
                waiting.append(imported)
        outside = {imported.split(".")[0] for imported in reached - known.keys()}
        assert not outside & {"lightning", "wandb"}, f"{name} reaches {outside & {'lightning', 'wandb'}}"


def test_the_top_of_the_house_is_seen_at_a_glance() -> None:
    assert len(list((REPOSITORY / "pipeline").glob("*.py"))) <= 8
    for folder in {path.parent for path in modules().values()}:
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert text.strip(), folder
        if named := set(re.findall(r"`(\w+\.py)`", text)):  # a list of files has all of them
            assert named == {file.name for file in folder.glob("*.py") if not file.name.startswith("__")}, folder


PRETRAINING = [  # all models on the sample, one on every corpus, and what has a file of its own
    (model, corpus)
    for model in sorted((CONFIGS / "pretrain").glob("*.yaml"))
    for corpus in sorted((CONFIGS / "corpora").glob("*.yaml"))
    if "sample" in corpus.stem or model.stem == "bert" or (CONFIGS / "corpora" / corpus.stem / model.name).exists()
]
TASKS = sorted((CONFIGS / "tasks").glob("*.yaml"))


def test_rows_and_warm_ups_of_every_pair_fit() -> None:
    for model, corpus in itertools.product((CONFIGS / "pretrain").glob("*.yaml"), (CONFIGS / "corpora").glob("*.yaml")):
        own = CONFIGS / "corpora" / corpus.stem / model.name
        values: dict[str, Any] = {}
        for file in (CONFIGS / "base.yaml", model, corpus, *([own] if own.exists() else [])):
            values |= flat(yaml.safe_load(file.read_text()))
        assert values["data.length"] <= values["model.encoder.init_args.max_length"], (model, corpus)
        steps, warm_up = values.get("trainer.max_steps"), values.get("model.optimization.warmup_steps")
        assert steps is None or warm_up is None or steps > warm_up, (model, corpus)


@pytest.mark.parametrize(("model", "corpus"), PRETRAINING, ids=lambda path: path.stem)
def test_every_pretraining_configuration_builds(model: Path, corpus: Path) -> None:
    own = CONFIGS / "corpora" / corpus.stem / model.name
    files = [CONFIGS / "base.yaml", model, corpus, *([own] if own.exists() else [])]
    kind = module_for(files, [])
    cli = CLI(kind, CorpusData, [part for file in files for part in ("--config", str(file))])
    sizes = cli.config.model.encoder.init_args
    assert cli.datamodule.length <= sizes.max_length
    assert kind is Counting or cli.config_init.trainer.max_steps > cli.model.optimization.warmup_steps


class Pieces(UserList):
    """In place of a tokenizer: as many pieces, and all roles are the first one's."""

    def id(self, role: str) -> int:
        return 0


@pytest.mark.parametrize(
    ("model", "millions"),
    [
        ("bert-small", 28.8),
        ("bert-base", 109.5),
        ("gpt2-small", 124.4),
        ("gpt-small", 124.4),
        ("llama-15m", 15.2),
        ("smollm-135m", 134.5),
        ("elmo-paper", 93.6),
    ],
)
def test_presets_have_the_published_sizes(model: str, millions: float) -> None:
    """Parameters without what only pretraining needs: the heads of BERT, the softmax of ELMo; no memory is taken."""
    data = pretraining(CorpusRequest(model=model)).data
    stand_in: Any = Pieces(range(data.options.vocab_size))
    stand_in.scheme, stand_in.generative, stand_in.outputs = data.options.scheme, True, stand_in
    with torch.device("meta"):
        encoder = pretraining(CorpusRequest(model=model)).module.make_encoder(stand_in)
    heads = ("lm_", "next_sentence", "output.")
    counted = sum(p.numel() for name, p in encoder.named_parameters() if not name.startswith(heads))
    assert counted / 1e6 == pytest.approx(millions, abs=0.06)


@pytest.mark.parametrize("task", TASKS, ids=lambda path: path.stem)
def test_every_task_reads_scores_and_trains(task: Path, toys: Callable[[str], Path], tmp_path: Path) -> None:
    kinds = [yaml.safe_load(file.read_text())["data"]["task"]["class_path"] for file in TASKS]
    number = TASKS.index(task)
    check_task(task.stem, toys=toys, folder=tmp_path, trains=kinds[number] not in kinds[:number])  # one of each kind


@pytest.mark.parametrize("grid", sorted((CONFIGS / "compare").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_grid_builds(grid: Path) -> None:
    found = compare.load(grid)
    assert all(named_config("tasks", task) for task in found.tasks)
    assert all(named_config("pretrain", model) for model in found.models)
    assert found.size() >= len(found.models) * len(found.tasks) * sum(arm.seeds for arm in found.arms.values())


@pytest.mark.parametrize("file", sorted((CONFIGS / "ladder").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_ladder_builds(file: Path, tmp_path: Path) -> None:
    found = ladder.load(file, corpus="sample")
    some = replace(found, rungs=found.rungs[:: -(-len(found.rungs) // 5)])  # a product has each choice many times
    plans = ladder_plan.plans(some, tmp_path, pretraining, ())
    assert set(plans) == {rung.name for rung in some.rungs if rung.model is not None}
    assert all(plan.is_counting or plan.steps(found.trial) > 10 for plan in plans.values())


@pytest.mark.parametrize("file", sorted((CONFIGS / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_builds(file: Path, tmp_path: Path) -> None:
    found = recipes.load(file, corpus="sample", seeds=1)
    made = recipes_run.RecipesRun(found, tmp_path, pretraining).runs
    assert [name for name, _ in made] == list(found.all())
    steps = {word for request in made.values() for word in request.overrides if word.startswith("--trainer.max_")}
    assert len(steps) == 1


@pytest.mark.parametrize("machine", sorted((CONFIGS / "machines").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_machine_builds(machine: Path) -> None:
    files = [CONFIGS / "base.yaml", CONFIGS / "pretrain/bert.yaml", CONFIGS / "corpora/sample.yaml", machine]
    cli = CLI(Pretraining, CorpusData, [part for file in files for part in ("--config", str(file))])
    assert cli.config_init.trainer.devices == 8
    assert cli.datamodule.batch_size % 8 == 0


@pytest.mark.parametrize("corpus", ["openwebtext", "tinystories", "wikipedia", "wikitext103"])
@pytest.mark.parametrize("model", ["bert", "bert-base", "gpt2-small", "elmo-paper", "llama-15m", "smollm-135m"])
def test_a_large_corpus_leaves_the_steps_of_a_model_as_they_are(model: str, corpus: str) -> None:
    steps = yaml.safe_load((CONFIGS / f"pretrain/{model}.yaml").read_text())["trainer"]["max_steps"]
    assert pretraining(PretrainRequest(model=model, corpus=corpus)).settings.trainer.max_steps == steps


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (2, False), (130, True)])
def test_a_job_of_slurm_ends_as_its_training(tmp_path: Path, status: int, requeued: bool) -> None:
    for name, code in (
        ("srun", f'echo "$@" > {tmp_path}/run; exit {status}'),
        ("scontrol", f'echo "$@" > {tmp_path}/asked'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "8", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", str(CONFIGS / "machines/slurm.sh")], env=environment)
    assert done.returncode == status
    assert (tmp_path / "run").read_text().startswith("--cpus-per-task=8 ")
    assert (tmp_path / "asked").exists() == requeued
    assert not requeued or (tmp_path / "asked").read_text() == "requeue 7\n"


def test_a_sweep_looks_at_the_metric_that_a_setting_gives_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(sweep, "start", lambda content, count: found.append(content["metric"]))
    run("sweep", "--task", "sts-b", "--data.task.init_args.choose_by=mse")
    assert found == [{"name": "val/best_mse", "goal": "minimize"}]
    monkeypatch.setattr(sweep, "start", lambda content, count: found.append(content["command"]))
    run("sweep", "--name", "pretrain", "--from", "runs/mine/encoder")
    assert found[1][4:-1] == ["--model", "bert", "--from", "runs/mine/encoder", "--seed", "0"]
    for stage, flags in (("pretrain", ["--task", "sst2"]), ("finetune", ["--corpus", "sample"])):
        with pytest.raises(UserError, match=f"A sweep over {stage} takes no {flags[0]}"):
            run("sweep", "--name", stage, *flags)


@pytest.mark.parametrize("file", sorted((CONFIGS / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_sweep_names_what_its_command_knows(file: Path) -> None:
    found = sweep.load(file, ["--model", "bert"], Sentiment())
    assert found["metric"]["name"] in ("val/loss", "val/best_accuracy")
    assert found["method"] in ("grid", "random", "bayes")
    assert found["command"][2:4] == ["pipeline", file.stem]
    flags = []
    for name, choice in found["parameters"].items():
        values = choice.get("values") or [choice.get("value", choice.get("min"))]
        flags.append(f"--{name}={values[0]}")
    if file.stem == "pretrain":
        files = [CONFIGS / name for name in ("base.yaml", "pretrain/bert.yaml", "corpora/sample.yaml")]
        parse(Pretraining, CorpusData, files, flags)
    else:
        files = [CONFIGS / "finetune.yaml", CONFIGS / "tasks/sentiment.yaml"]
        parse(FineTuning, TaskData, files, flags)


def test_choices_are_checked_from_python_too() -> None:
    """The command line checks them by their types, Python does not."""
    plain: dict[str, Any] = {"learning_rate": 1.0, "warmup_steps": 0, "weight_decay": 0.0, "betas": (0.9, 0.9)}
    for make, message in (
        (lambda: Optimization(**plain, eps=1e-8, schedule="inverse-sqrt"), "schedule must be one of .*inverse_sqrt"),  # type: ignore[arg-type]
        (lambda: Optimization(**plain, eps=1e-8, schedule="linear", optimizer="sgd"), "one of adamw, muon, not sgd"),  # type: ignore[arg-type]
        (lambda: CausalLM(packing="documents"), "packing must be one of concat, document"),  # type: ignore[arg-type]
        (lambda: MaskedLM(next_sentence="none"), "next_sentence must be one of nsp, sop, off"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UserError, match=message):
            make()


def test_no_configuration_is_overlooked() -> None:
    """A folder of configurations that no test above reads would be."""
    built = {path for pair in PRETRAINING for path in pair} | set(TASKS)
    folders = {path.parent for path in built} | {
        CONFIGS / name for name in ("compare", "ladder", "machines", "recipes", "sweeps")
    }
    own = {CONFIGS / "corpora" / corpus.stem / model.name for model, corpus in PRETRAINING}
    own |= {CONFIGS / "tasks" / task.stem / model.name for task in TASKS for model, _ in PRETRAINING}
    for path in CONFIGS.rglob("*.yaml"):
        assert path.parent in {CONFIGS, *folders} or path in own, path


def test_the_tree_of_the_docs_is_the_tree_on_disk() -> None:
    listed = set(tree())
    for name in listed:
        assert (REPOSITORY / name).exists(), f"{name} is in docs/development.md, not on disk"
    assert {place(name) for name in modules()} <= listed


def test_the_commands_of_the_pages_exist() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.M))
    variables = {*re.findall(r"\b([A-Z]+)--[a-z]", makefile), "ROWS", "LOCK", "PYTHON"}
    used = re.findall(r"^make ([a-z-]+)([^\n#]*)", text, flags=re.M)
    assert {"pretrain", "finetune", "test"} <= {target for target, _ in used}
    for target, rest in used:
        assert target in targets
        assert set(re.findall(r"\b([A-Z]+)=", rest)) <= variables
    shown = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in sorted((targets - {"pipeline"}) | variables):
        assert re.search(rf"^ +{name}\b", shown, flags=re.M), f"make help does not name {name}"


def test_the_reference_has_the_figures_of_all_objectives() -> None:
    files = (REPOSITORY / "pipeline/objectives").glob("[a-z]*.py")
    classes = {
        kind
        for file in files
        for kind in vars(importlib.import_module(f"pipeline.objectives.{file.stem}")).values()
        if isinstance(kind, type) and issubclass(kind, Objective)
    }
    shown = {f"val/{name}" for kind in classes for name in getattr(kind, "shown", ())}
    assert {"val/mlm_loss", "val/spans_loss", "val/neighbor_accuracy"} <= shown
    assert [name for name in sorted(shown) if (meaning(name) or "of your own").endswith("of your own")] == []
