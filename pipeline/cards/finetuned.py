"""The card of the folder of a fine-tuned model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.cards import sections
from pipeline.cards.encoder import library_of
from pipeline.cards.loading import loading
from pipeline.cards.sections import LIBRARY, TrainingRecord
from pipeline.finetuning.model import FineTunedModel
from pipeline.finetuning.options import PLAIN
from pipeline.metrics import WITH_ERROR, mean_and_deviation
from pipeline.presets.arms import FRESH
from pipeline.tracking.lineage import tasks_of
from pipeline.tracking.metric_names import baselines_of, readable
from pipeline.tracking.tables import escaped, markdown_table
from tasks.metrics import shown

ARMS = {
    "full": "all weights are trained, from the pretrained ones",
    "frozen": "the head alone is trained, on the frozen pretrained encoder",
    "scratch": "all weights are trained, from random ones: the arm that shows what pretraining is worth",
    "random": "the head alone is trained, on an encoder of random weights",
}


SEED = "The scores are of one seed; other seeds give others."
SURE = "Its probabilities are near 0 or 1 also where it errs: trust the label more than the number."


@dataclass
class TaskFacts:
    """What a card says of a task.

    Args:
        metric: the one that chooses the checkpoint.
        headline: the scores of the test in one line.
        labels: in a few words, as `labels negative, positive`.
    """

    metric: str
    headline: str
    labels: str


def model_card(model: FineTunedModel, record: TrainingRecord, task: TaskFacts, *, arm: str) -> str:
    """The README.md of a fine-tuned model."""
    opens = model.layout is not None or not model.head.export_state()  # a head without weights changes no layout
    library, tag = library_of(model.encoder) if opens else LIBRARY, model.head.tag
    value = record.metrics.get(f"test/{task.metric}")
    results = (
        []
        if value is None
        else [sections.result(record, "task", split="test", metric=task.metric, value=value, tag=tag)]
    )
    name, variant = record.stage("task").get("name", "a task"), model.encoder.variant(model.encoder.config)
    data = sections.front_matter(
        record,
        library=library,
        pipeline_tag=tag,
        tags=[variant, LIBRARY, arm],
        results=results,
        pretrained=arm not in FRESH,
    )
    counted = model.encoder.learning == "counting"
    most = f"{model.options.max_length:,} tokens"
    in_windows = None if model.head.windows is None else f"{model.head.windows} of more than {most} is read in windows."
    own = [in_windows or f"Of a longer text than {most} it reads a part.", SURE if counted else SEED]
    parts = {
        "": about(model, record, name, arm),
        "Load": sections.marked("loading", loading(model.saved_config(), "model", library=library, tag=tag)),
        "Data": data_section(model, record, task, arm),
        "Training": training(model, record, arm),
        "Scores": sections.marked("scores", scores(record.metrics, task.metric, fresh=arm in FRESH))
        + f"\n\nAll scores: {task.headline}.\n",
        "Limits": sections.limits(record, own, pretrained=arm not in FRESH),
        "License": sections.LICENSE,
        "Lineage": sections.lineage_table(record),
    }
    return sections.card(data, record.name, parts)


def about(model: FineTunedModel, record: TrainingRecord, name: str, arm: str) -> str:
    """What it is, in a sentence or two.

    Args:
        name: of the task.
    """
    kind, number = model.encoder.variant(model.encoder.config), f"{record.metrics['parameters']:,}"
    if model.encoder.learning == "counting":
        return (
            f"{number} n-grams of the training texts of `{name}`, counted label by label. By Bayes' rule a text has "
            f"the label whose model (`{kind}`) finds it likeliest, times the label's share of the training texts."
        )
    before = [] if arm in FRESH else tasks_of(record.stages)[:-1]
    chain = f" Its encoder was fine-tuned on `{'`, then on `'.join(before)}` before." if before else ""
    return (
        f"A model of type `{kind}` with {number} parameters, fine-tuned on `{name}`. The arm is `{arm}`: {ARMS[arm]}."
        f"{chain}"
    )


def training(model: FineTunedModel, record: TrainingRecord, arm: str) -> str:
    """The settings of fine-tuning, and the curves where there are any."""
    if model.encoder.learning == "counting":
        settings = {name: model.encoder.config.get(name) for name in (record.setting("model.encoder.init_args") or {})}
        return sections.settings_table({**settings, **sections.run_rows(record)})
    return sections.settings_table(recipe(record, arm)) + "\n" + sections.curve(record, "training curves")


def data_section(model: FineTunedModel, record: TrainingRecord, task: TaskFacts, arm: str) -> str:
    stage = record.stage("task")
    rows = ", ".join(f"{count:,} {split}" for split, count in stage.get("rows", {}).items())
    origin = f" (`{stage['hub']}`)" if "hub" in stage else ""
    corpus = sections.corpus_text(record, spells=model.encoder.tokenizer.spells)
    if model.encoder.learning == "counting":
        tokens = "those of the tokenizer in the lineage" if record.stage("tokenizer") else "bytes"
        corpus = f"Nothing else was counted. Tokens are {tokens}."
    elif arm in FRESH and not record.stage("encoder"):
        corpus = "Nothing was pretrained; the tokenizer is made of the training texts of the task."
    elif arm in FRESH:
        corpus = "Its encoder was not pretrained: of the lineage's encoder it has sizes and tokenizer alone."
    return f"Task: `{stage.get('name', 'unnamed')}`{origin}, rows: {rows}; {escaped(task.labels)}. {corpus}"


def recipe(record: TrainingRecord, arm: str) -> dict[str, Any]:
    """The settings of fine-tuning."""
    options = record.setting("model.recipe") or {}
    particular = {name: value for name, value in options.items() if value and PLAIN.get(name) != value}
    return {
        "arm": arm,
        "steps": record.metrics.get("steps"),
        "step of the tested checkpoint": record.metrics.get("best_step"),
        "epochs": record.setting("data.epochs"),
        "rows of a batch": record.setting("data.batch_size"),
        "head": particular or None,
        "distillation": sections.distillation(record),
        "warm-up share": record.setting("model.warmup_share"),
        **{name: value for name, value in sections.optimization(record).items() if name != "warm-up steps"},
        **sections.run_rows(record),
    }


def scores(metrics: Any, metric: str, scratch: Sequence[float] = (), *, fresh: bool = False) -> str:
    """The test beside the same network without pretraining, where such runs are known, and beside simple baselines.

    Args:
        scratch: the metric of runs of the arm `scratch` on the same rows.
        fresh: whether this model has begun with fresh weights itself.
    """
    title = readable(metric)
    value, error = metrics.get(f"test/{metric}"), metrics.get("test/standard_error")
    own = shown(value, 4) + (f" ± {error:.4f} (standard error)" if error and metric in WITH_ERROR else "")
    rows = [["this model", own]]
    if scratch:
        mean, deviation = mean_and_deviation(scratch)
        spread = (
            f" ± {shown(deviation, 4)} (standard deviation of {len(scratch)} runs)"
            if len(scratch) > 1
            else " (one run)"
        )
        rows.append(["the same network without pretraining", f"{shown(mean, 4)}{spread}"])
    for name, number in baselines_of(metrics).items():
        rows.append([name.replace("/", ": ").replace("_", " "), shown(number, 4)])
    note = (
        ""
        if scratch or fresh or metrics.get("steps") == 0
        else "\nNo run of the same network without pretraining (arm `scratch`) was known here.\n"
    )
    count = f" ({metrics['test/rows']:,} rows)" if "test/rows" in metrics else ""
    return f"On the test part{count}:\n\n{markdown_table(['', title], rows)}{note}"
