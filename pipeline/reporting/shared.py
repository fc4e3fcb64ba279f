"""Sections that pages of several kinds have: curves, lineage, cost, settings, commands."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.console import typed
from pipeline.presets.files import flat
from pipeline.reporting import charts
from pipeline.reporting.page import Block, Chart, Code, Node, Section, Table, Text, Tree
from pipeline.reporting.run_record import RunRecord
from pipeline.tracking import lineage
from pipeline.tracking.amounts import duration
from pipeline.tracking.metric_names import readable
from pipeline.tracking.public import public, without_secrets

Z = 1.96  # of a 95 % interval of a normal distribution
TITLES = {
    "corpus": "Corpus",
    "tokenizer": "Tokenizer",
    "teacher": "Teacher",
    "pretrain": "Pretraining",
    "encoder": "Encoder",
    "task": "Task",
    "finetune": "Fine-tuning",
    "zeroshot": "Zero-shot",
    "model": "Fine-tuned model",
}
SETTINGS = (  # that a reader asks for first
    *("trainer.max_steps", "data.epochs", "data.batch_size", "data.length", "data.max_length", "precision"),
    *("model.optimization.optimizer", "model.optimization.learning_rate", "model.optimization.schedule"),
    *("model.optimization.warmup_steps", "model.warmup_share", "model.optimization.weight_decay"),
    *("trainer.gradient_clip_val", "model.recipe.dropout", "model.arm"),
)
UNLIMITED = -1  # as Lightning has it, of max_steps


# ---------------------------------------------------------------------- curves


def curves(
    run: RunRecord,
    metric: str,
    *,
    caption: str,
    y_label: str,
    baselines: Mapping[str, float] | None = None,
    training: str | None = None,
    marked: float | None = None,
) -> Chart | None:
    """Training and validation of one metric; None where neither was logged.

    Args:
        training: its name in training, where that is another.
        marked: the step whose checkpoint is tested.
    """
    drawn = []
    for label, name in (("training", f"train/{training or metric}"), ("validation", f"val/{metric}")):
        steps, values = run.history.series(name)
        points = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
        if points:
            drawn.append(charts.Series(label, points, faint=label == "training"))
    if not drawn:
        return None
    svg = charts.line_chart(drawn, y_label=y_label, baselines=baselines, marked=marked)
    legend = [("key faint s0" if line.faint else "key s0", line.label) for line in drawn]
    legend += [("key baseline", "baseline")] if baselines else []
    legend += [("key tested", f"tested checkpoint (step {marked:,.0f})")] if marked is not None else []
    return Chart(svg, caption, legend)


def rate_chart(run: RunRecord) -> Chart | None:
    """The schedule of the learning rate."""
    points = list(zip(*run.history.series("train/learning_rate"), strict=True))
    if len(points) < 2:
        return None
    series = [charts.Series("learning rate", points, faint=True)]
    svg = charts.line_chart(series, y_label="learning rate", from_zero=True)
    return Chart(svg, "The schedule of the learning rate.")


# ---------------------------------------------------------------------- lineage


def lineage_section(stages: Sequence[lineage.Stage], *, grown: Sequence[Node] = ()) -> Section:
    """The stages from the corpus on, each below the one that it grew from."""
    nodes = nodes_of(stages)
    if not nodes:
        return Section("Lineage", [])
    nodes[-1].here = True
    nodes[-1].children += grown
    text = "Each box is named by the hash of its content, so that this score can be traced to its text."
    return Section("Lineage", [Tree(nodes[0], text)])


def nodes_of(stages: Sequence[lineage.Stage]) -> list[Node]:
    """A node for each stage, a child of the one before; a task is named in the run that used it."""
    nodes: list[Node] = []
    task: lineage.Stage | None = None
    for stage in stages:
        if stage["stage"] == "task":
            task = stage
        elif stage["stage"] in TITLES:
            facts = facts_of(stage)
            if task is not None and stage["stage"] in ("finetune", "zeroshot"):
                facts = [f"task {task['name']} ({shown_rows(task)}; content {task['sha256'][:12]})", *facts]
            nodes.append(Node(TITLES[stage["stage"]], facts))
    for above, below in itertools.pairwise(nodes):
        above.children.append(below)
    return nodes


def shots_of(run: RunRecord) -> list[int]:
    """The numbers of solved examples in front of the prompts of a run."""
    return [int(count) for count in run.config.get("shots") or [0]]


def named_shots(run: RunRecord) -> str:
    """As `zero-shot`, `4-shot`, `with 1 and 4 examples`."""
    shots = shots_of(run)
    if len(shots) == 1:
        return f"{shots[0]}-shot" if shots[0] else "zero-shot"
    return f"with {', '.join(map(str, shots[:-1]))} and {shots[-1]} examples"


def grown_nodes(grown: Sequence[RunRecord]) -> list[Node]:
    """A node for each task, one below it for each arm, and for each run of prompts: these differ in their settings."""
    nodes = []
    for task in dict.fromkeys(run.task for run in grown):
        mine = [run for run in grown if run.task == task]
        arms = []
        prompted = [run for run in mine if run.kind == "zeroshot"]
        for run in prompted:
            accuracy, rows = run.metrics.get("zeroshot/accuracy"), run.metrics.get("zeroshot/rows", 0)
            shown = "no score" if accuracy is None else f"{accuracy:.3f} accuracy"
            arms.append(Node(named_shots(run), [shown, f"{rows:,} rows"]))
        for arm in dict.fromkeys(run.arm for run in mine if run not in prompted):
            runs = [run for run in mine if run.arm == arm and run not in prompted]
            name = f"test/{runs[0].metric}"
            scores = [float(run.metrics[name]) for run in runs if name in run.metrics]
            shown = f"{sum(scores) / len(scores):.3f} {readable(name)}" if scores else "no score"
            arms.append(Node(arm, [shown, f"{len(runs)} run{'s' if len(runs) > 1 else ''}"]))
        nodes.append(Node(f"Task {task}", [], arms))
    return nodes


def facts_of(stage: lineage.Stage) -> list[str]:
    named = {
        "documents": f"{stage.get('documents', 0):,} documents",
        "tokens": f"{stage.get('tokens', 0):,} tokens or bytes of words",
        "scheme": f"{stage.get('scheme')}",
        "seed": f"seed {stage.get('seed')}",
        "version": f"version {stage.get('version')}",
        "sha256": f"content {str(stage.get('sha256'))[:12]}",
    }
    first = [str(stage["name"])] if "name" in stage else []
    return [*first, *(text for name, text in named.items() if name in stage)]


def shown_rows(task: lineage.Stage) -> str:
    rows = task.get("rows")
    if isinstance(rows, dict):
        return ", ".join(f"{count:,} {split}" for split, count in rows.items())
    return f"{rows:,} rows" if isinstance(rows, int) else "rows unknown"


# ---------------------------------------------------------------------- cost


def cost_section(run: RunRecord) -> Section:
    """Time, speed and energy."""
    m = run.metrics
    rows = [["Training time", duration(m["seconds"])]] if "seconds" in m else []
    if "tokens" in m:
        rows.append(["Tokens seen", f"{m['tokens']:,.0f} ({m.get('tokens_per_second', 0):,.0f} a second)"])
    if "parameters" in m:
        rows.append(["Parameters", f"{m['parameters']:,}"])
    if "flops_per_second" in m:
        rows.append(["Arithmetic", f"{m['flops_per_second'] / 1e9:,.0f} GFLOP/s"])
    if "share_of_peak" in m:
        rows.append(["Share of matrix-product peak", f"{m['share_of_peak']:.0%}"])
    if "data_share" in m:
        rows.append(["Time waiting for batches", f"{m['data_share']:.1%}"])
    rows += [[name, str(m[key])] for name, key in (("Device", "device"), ("Precision", "precision")) if m.get(key)]
    rows.append(["Energy", shown_energy(m).removeprefix("energy ")])
    if m.get("date"):
        rows.append(["Finished", str(m["date"])])
    rows.append(["Version", run.version])
    table = Table(["", "value"], rows, "What the run cost.", numbers=())
    return Section("Time and energy", [table, *[Text(text) for text in [energy_note([m])] if text]])


SOURCES = {"rapl": "RAPL counters of the processor", "nvml": "NVML counter of the GPU", "estimate": "estimate"}


def shown_energy(metrics: Mapping[str, Any]) -> str:
    if "energy_wh" not in metrics:
        return "energy not recorded"
    watt_hours = metrics["energy_wh"]
    amount = f"{watt_hours / 1000:.2f} kWh" if watt_hours >= 1000 else f"{watt_hours:.2f} Wh"
    return f"{amount} ({SOURCES.get(str(metrics.get('energy_source')), 'unknown source')})"


def energy_note(runs: Sequence[Mapping[str, Any]]) -> str:
    """How to read the energy: only counters are measurements."""
    sources = {str(metrics["energy_source"]) for metrics in runs if "energy_source" in metrics}
    if "estimate" in sources:
        return (
            "The energy is an estimate, not a measurement: the processor time of training at 10 watts for a busy core, "
            "because no counter of this machine could be read."
        )
    if sources:
        return "Counters are of the whole processor or GPU, so they include what other programs used meanwhile."
    return ""


# ---------------------------------------------------------------------- settings and commands


def settings_section(run: RunRecord) -> Section:
    """The settings that matter most as a table, all of them folded away."""
    settings = flat(public(run.config))  # a page is made to be passed on
    known = [name for name in SETTINGS if settings.get(name, UNLIMITED) not in (None, UNLIMITED)]
    rows = [[name, _shown(settings[name])] for name in known]
    text = "\n".join(f"{name}: {_shown(value)}" for name, value in settings.items() if value is not None)
    blocks: list[Block] = []
    if rows:
        blocks.append(Table(["setting", "value"], rows, "The main settings.", numbers=()))
    if text:
        blocks.append(Code(text, folded=f"All settings ({text.count(chr(10)) + 1})"))
    return Section("Settings", blocks)


def _shown(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 160 else f"{text[:150]}..."


def commands_section(*commands: str) -> Section:
    lines = [line for line in commands if line]
    if not lines:
        return Section("Repeat it", [])
    text = "The same version, data and settings give the same weights on processors."
    return Section("Repeat it", [Text(text), Code(without_secrets("\n".join(lines)))])


def command_of(run: RunRecord) -> str:
    """The command of a run as it was recorded; of an older run, the one that trains from its configuration."""
    if recorded := run.text("command.txt"):
        return recorded
    if run.kind == "zeroshot":
        names = {"task": "task", "encoder": "from", "seed": "seed", "limit": "limit", "files": "data"}
        given = {flag: run.config.get(name) for name, flag in names.items()}
        shots = ",".join(map(str, shots_of(run)))
        return typed.line("zeroshot", **given, shots=shots)
    given = {"seed": str(run.seed), **({"task": run.task} if run.task else {"corpus": run.corpus})}
    given |= {"arm": run.arm, "from": "ENCODER"} if run.kind == "finetune" else {}
    return typed.line(run.kind, **given) + f"  # and the settings of {run.folder.name}/config.yaml"


# ---------------------------------------------------------------------- intervals


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` rows (Wilson 1927)."""
    if not count:
        return 0.0, 1.0
    middle = (share + Z * Z / (2 * count)) / (1 + Z * Z / count)
    half = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count)) / (1 + Z * Z / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def name_of(metric: str) -> str:
    """A metric in words that begin a label."""
    words = readable(metric)
    return words[:1].upper() + words[1:]
