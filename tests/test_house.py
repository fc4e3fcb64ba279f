"""The house stands as the README draws it: layers, configurations, commands."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from pipeline import compare, sweep
from pipeline.configuration import CLI, CONFIGS, REPOSITORY, FineTuneCLI, named_config, parse
from pipeline.corpus import CorpusData
from pipeline.finetune import FineTuning
from pipeline.labeled import LabeledData
from pipeline.pretrain import Pretraining
from tests.conftest import check_task

# From the bottom to the top; a module imports from its own floor or those below.
FLOORS = [
    {"tasks"},
    {"__init__", "choices"},
    {"folders", "validation"},
    {"text", "sample", "sample_tasks", "lineage", "checkpoints", "machine"},
    {"tokenizer", "store"},
    {"windows", "masking"},
    {"encoders"},
    {"batches", "cooccurrence", "objectives", "crf", "metrics", "optim", "readers"},
    {"heads", "inputs", "prompting"},
    {"corpus", "labeled", "tracking", "scores", "tuned", "zeroshot", "examples"},
    {"plots"},
    {
        "pretrain",
        "finetune",
        "gains",
        "runs",
        "run_folder",
        "speed",
        "results",
        "asking",
        "audit",
        "evaluate",
        "import_elmo",
        "lm_eval_model",
        "new_task",
        "predicting",
        "sweep",
        "trying",
        "verify_resume",
    },
    {"configuration"},
    {"verbs", "compare", "worth"},
    {"many"},
    {"cli"},
    {"__main__", "bench"},
]
PLAIN = {
    "encoders",
    "objectives",
    "heads",
    "crf",
    "inputs",
    "readers",
    "masking",
    "batches",
    "windows",
    "store",
    "tokenizer",
    "optim",
    "cooccurrence",
    "tasks",
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "pipeline" else {node.module}
            )
    return found


def modules() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {"tasks": list((REPOSITORY / "tasks").glob("*.py"))}
    for path in (REPOSITORY / "pipeline").rglob("*.py"):
        parts = path.relative_to(REPOSITORY / "pipeline").with_suffix("").parts
        found.setdefault(parts[0], []).append(path)
    return found


def test_imports_run_downward_only() -> None:
    floor = {name: height for height, names in enumerate(FLOORS) for name in names}
    assert set(modules()) == set(floor)
    for name, paths in modules().items():
        for path in paths:
            for imported in imports(path):
                parts = imported.split(".")
                if parts[0] == "tasks":
                    assert name == "tasks" or floor[name] > 0
                elif parts[0] == "pipeline" and len(parts) > 1 and parts[1] in floor:
                    assert name != "tasks", f"{path} imports {imported}"
                    assert floor[parts[1]] <= floor[name], f"{path} imports {imported}"
                elif name in PLAIN:
                    assert parts[0] not in ("lightning", "wandb"), f"{path} imports {imported}"


PRETRAINING = [
    (model, corpus)
    for model in (CONFIGS / "pretrain").glob("*.yaml")
    for corpus in (CONFIGS / "corpora").glob("*.yaml")
]
TASKS = sorted((CONFIGS / "tasks").glob("*.yaml"))


@pytest.mark.parametrize(("model", "corpus"), PRETRAINING, ids=lambda path: path.stem)
def test_every_pretraining_configuration_builds(model: Path, corpus: Path) -> None:
    own = CONFIGS / "corpora" / corpus.stem / model.name
    files = [CONFIGS / "base.yaml", model, corpus, *([own] if own.exists() else [])]
    cli = CLI(Pretraining, CorpusData, [part for file in files for part in ("--config", str(file))])
    sizes = cli.config.model.encoder.init_args
    assert cli.datamodule.length <= sizes.max_length
    assert cli.config_init.trainer.max_steps > cli.model.optimization.warmup_steps


@pytest.mark.parametrize("task", TASKS, ids=lambda path: path.stem)
def test_every_task_reads_scores_and_trains(task: Path, pretrained: Path, tmp_path: Path) -> None:
    check_task(task.stem, encoder=pretrained / "encoder", folder=tmp_path)


@pytest.mark.parametrize("grid", sorted((CONFIGS / "compare").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_grid_builds(grid: Path) -> None:
    found = compare.load(grid)
    assert all(named_config("tasks", task) for task in found.tasks)
    assert all(named_config("pretrain", model) for model in found.models)
    assert found.size() >= len(found.models) * len(found.tasks) * sum(arm.seeds for arm in found.arms.values())


@pytest.mark.parametrize("machine", sorted((CONFIGS / "machines").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_machine_builds(machine: Path) -> None:
    files = [CONFIGS / "base.yaml", CONFIGS / "pretrain/bert.yaml", CONFIGS / "corpora/sample.yaml", machine]
    cli = CLI(Pretraining, CorpusData, [part for file in files for part in ("--config", str(file))])
    assert cli.config_init.trainer.devices == 8
    assert cli.datamodule.batch_size % 8 == 0


@pytest.mark.parametrize("file", sorted((CONFIGS / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_sweep_names_what_its_verb_knows(file: Path) -> None:
    found = sweep.load(file, ["--model", "bert"], "accuracy")
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
        parse(FineTuning, LabeledData, files, flags, cli_class=FineTuneCLI)


def test_no_configuration_is_overlooked() -> None:
    assert len(list(CONFIGS.rglob("*.yaml"))) >= 42  # more, where a user has tasks of their own
    assert len(PRETRAINING) == 36
    assert len(TASKS) >= 21


def test_the_tree_of_the_readme_is_the_tree_on_disk() -> None:
    text = (REPOSITORY / "README.md").read_text()
    [tree] = re.findall(r"```tree\n(.*?)```", text, flags=re.S)
    listed: set[str] = set()
    folders: list[str] = []
    for line in tree.splitlines():
        indent, name = len(line) - len(line.lstrip()), line.split()[0]
        folders = folders[: indent // 2]
        listed.add("/".join([*folders, name.rstrip("/")]))
        if name.endswith("/"):
            folders.append(name.rstrip("/"))
    for name in listed:
        assert (REPOSITORY / name).exists(), f"{name} is in the README, not on disk"
    on_disk = {f"pipeline/{path.name}" for path in (REPOSITORY / "pipeline").glob("*.py") if path.name != "__init__.py"}
    on_disk |= {f"pipeline/encoders/{p.name}" for p in (REPOSITORY / "pipeline/encoders").glob("[a-z]*.py")}
    on_disk |= {f"tasks/{path.name}" for path in (REPOSITORY / "tasks").glob("[a-z]*.py")}
    assert on_disk <= listed, f"not in the README's tree: {sorted(on_disk - listed)}"


def test_the_commands_of_the_readme_exist() -> None:
    text = (REPOSITORY / "README.md").read_text()
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.M))
    variables = {*re.findall(r"\b([A-Z]+)--[a-z]", makefile), "ROWS", "PYTHON"}
    used = re.findall(r"^make ([a-z-]+)([^\n#]*)", text, flags=re.M)
    assert {"pretrain", "finetune", "test"} <= {target for target, _ in used}
    for target, rest in used:
        assert target in targets
        assert set(re.findall(r"\b([A-Z]+)=", rest)) <= variables
    shown = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in sorted((targets - {"pipeline"}) | variables):
        assert re.search(rf"^ +{name}\b", shown, flags=re.M), f"make help does not name {name}"
