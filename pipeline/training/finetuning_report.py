"""Report of a fine-tuning run: load report, test of the best checkpoint, predictions, plots."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pipeline.cards.finetuned import TaskFacts, model_card
from pipeline.console import typed
from pipeline.console.rank import is_main
from pipeline.errors import UserError
from pipeline.models.outputs import LoadReport, lines_of_tensors
from pipeline.presets.arms import FRESH
from pipeline.storage.atomic import write_atomically
from pipeline.storage.json_lines import json_line
from pipeline.tracking import lineage, plots
from pipeline.tracking.metric_names import readable
from pipeline.tracking.wandb_charts import charts_of
from pipeline.training import advice, checkpoints
from pipeline.training.finetuning import FineTuning
from pipeline.training.run import Run
from pipeline.training.task_data import TaskData
from pipeline.training.weight_mean import final_weights
from tasks.base import Task
from tasks.dataset import listed

WRONG = 100  # rows of the table of the worst answers
PAIRS = {
    "joined": "the encoder reads both texts as one sequence",
    "compared": "the encoder reads each text alone; transformers has no such head",
    "attended": "the encoder reads each text alone, its tokens are aligned; transformers has no such head",
}


def format_load_report(folder: Path | None, report: LoadReport, module: FineTuning) -> str:
    """Which tensors the folder gave to the model, which are new, and which of the folder are unused."""
    if module.is_counting:
        return format_counting(folder, module)
    fresh = listed([f"head.{name}" for name, _ in module.model.head.named_parameters()], most=6)
    parts = [*module.layers(), module.above()]
    trained = sum({id(p): p.numel() for part in parts for p in part if p.requires_grad}.values())
    tokenizer = module.model.encoder.tokenizer
    lines = [
        f"encoder     {folder} ({module.arm}): {report}; {trained:,} parameters are trained",
        f"            tokenizer {tokenizer.hash[:12]}; new in the head: {fresh or 'nothing'}",
    ]
    if folder is None:
        lines = [
            f"encoder     fresh weights ({module.arm}), {trained:,} parameters are trained",
            f"            tokenizer {tokenizer.hash[:12]}: {len(tokenizer):,} pieces, made of the training texts",
        ]
    if module.refreshed:
        count = module.recipe.reinit_layers
        lines.append(f"            fresh weights in the top {count:,} of its layers: {', '.join(module.refreshed)}")
    if (pair := module.model.options.pair) is not None:
        lines.append(f"            pairs are {pair}: {PAIRS[pair]}")
    if module.model.head.mix is not None:
        lines.append("            the head sees a learned mix of all layers")
    if folder is not None and (before := lineage.tasks_of(lineage.read(folder))):
        what = "its head is not taken" if module.arm not in FRESH else "neither its weights nor its head are taken"
        lines.append(f"            it was fine-tuned on {', then '.join(before)}: {what}")
    if module.language_note is not None:
        lines.append(f"            {module.language_note}")
    if module.teacher is not None:
        lines.append(f"            teacher {module.teacher}")
    notes = {} if module.arm == "scratch" else {"new in": report.new, "unused in": report.unused}
    notes["never trained, so not saved with"] = module.model.unsaved()
    return "\n".join([*lines, *lines_of_tensors(notes)])


def format_counting(folder: Path | None, module: FineTuning) -> str:
    """What the models of the labels count, and what of a folder they take."""
    encoder = module.model.encoder
    settings = ", ".join(f"{name} {value}" for name, value in encoder.config.items() if isinstance(value, str | int))
    tokens = "bytes" if folder is None else f"those of {folder}, of which nothing else is used but the settings above"
    return "\n".join(
        [
            f"models      one for each of {len(module.model.labels)} labels: {settings}",
            f"            tokens: {tokens} (tokenizer {encoder.tokenizer.hash[:12]})",
        ]
    )


def finish(run: Run, module: FineTuning, data: TaskData) -> None:
    """Tests the best checkpoint; writes model, predictions, plots and metrics."""
    metrics = run.metrics() | test(run, module, data)
    predictions = module.gathered("test")  # all processes take part
    if not is_main():
        return
    task, examples = data.task, data.examples["test"]
    gold, predicted = [example.label for example in examples], [prediction.label for prediction in predictions]
    scores = task.scores(gold, predicted)
    baselines = task.baselines(data.examples["train"], examples)
    metrics |= {
        **{f"test/{name}": value for name, value in scores.figures.items()},
        "test/loss": module.test_loss,
        **({"encoder": lineage.weights_of(run.record.stages)[:12]} if not module.is_counting else {}),
        "test/rows": len(examples),
        "mode": task.mode,
        "degenerate": task.has_one_answer(gold, predicted),
        **{f"baseline/{name}": value for name, value in baselines.items()},
        **{f"test/{name}": value for name, value in scores.details.items()},
    }
    rows = [task.row(example, prediction) for example, prediction in zip(examples, predictions, strict=True)]
    write_atomically(run.out / "predictions.jsonl", "".join(map(json_line, rows)))
    chosen = metrics["best_step"]
    drawn = plot_training(run, module, data, baselines, chosen=chosen) if not module.is_counting else []
    tested, shown = plot_test(run, module, data, predicted)
    beginnings = test_beginnings(run, module, data, scores.figures[task.metric])
    metrics |= {f"test/characters_{number}/{task.metric}": score for number, score in beginnings.items()}
    headline, labels = task.headline(scores.figures), task.describe_labels(data.examples["train"])
    facts = TaskFacts(metric=task.metric, headline=headline, labels=labels)
    card = partial(model_card, module.model, task=facts, arm=module.arm)
    saved = run.keep("model", module.model.save, card, metrics, pictures=[*drawn, *tested])
    charts = {} if run.wandb is None else charts_of(rows)
    columns, wrong = task.worst(rows)
    tables = {"wrong_answers": (columns, wrong[:WRONG])}
    run.finish(metrics, artifact=("model", saved), tables=tables, charts=charts, texts=shown)
    if not module.is_counting:
        best_of = f"{readable(task.metric)} {metrics[f'val/best_{task.metric}']:.4f}"
        print(f"checkpoint: step {chosen:,} of {run.steps:,}, the best on the validation part ({best_of})")
    print("\n".join([headline, *result_lines(task, scores.figures, baselines, beginnings, metrics["degenerate"])]))
    print(advice.saved(run.out, saved))


def test(run: Run, module: FineTuning, data: TaskData) -> dict[str, Any]:
    """Predicts the test part from the best checkpoint; returns which that is, and the metrics of its validation."""
    name, best_name = f"val/{data.task.metric}", f"val/best_{data.task.metric}"
    if module.is_counting:
        found = {"best_step": run.steps, best_name: run.metrics().get(name, 0.0)}
        run.trainer.test(module, data, verbose=False)
        return found
    best, score = run.last.with_name(checkpoints.BEST), run.best_score
    if score is not None and not best.exists():
        raise UserError(f"{best} is missing, the checkpoint to test; set {typed.flag('overwrite')} to start over.")
    state = checkpoints.read(run.last if score is None else best)
    metrics = run.metrics_of(state)  # val/* are of the checkpoint that is tested
    module.load_state_dict(final_weights(state))
    run.trainer.test(module, data, verbose=False)
    return {
        **metrics,
        "best_step": int(state["global_step"]),
        best_name: metrics.get(name, 0.0) if score is None else score,
    }


def result_lines(
    task: Task, scores: dict[str, float], baselines: dict[str, float], beginnings: dict[int, float], degenerate: bool
) -> list[str]:
    """What is printed below the headline: further scores, baselines, and a warning where nothing was learned."""
    lines = []
    if beginnings:
        shown = ", ".join(f"{number:,} {score:.4f}" for number, score in beginnings.items())
        lines.append(f"by characters shown: {shown}")
    known = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in baselines.items())
    lines.append(f"baselines: {known}")
    warning = advice.not_better(scores[task.metric], same_metric(baselines), mode=task.mode)
    if degenerate:
        warning = "Warning: every answer is the same: this run learned nothing of the task."
    return [*lines, *([warning] if warning else [])]


def same_metric(baselines: dict[str, float]) -> dict[str, float]:
    """Baselines in the task's own metric; those in another one have a slash in their names."""
    return {name: value for name, value in baselines.items() if "/" not in name}


def plot_training(
    run: Run, module: FineTuning, data: TaskData, baselines: dict[str, float], *, chosen: int
) -> list[str]:
    """Plots of the training; returns the names of their files.

    Args:
        baselines: test scores of simple models; those in another metric than the task's have a second slash.
        chosen: the step whose checkpoint is tested.
    """
    metric, title = data.task.metric, title_of(run)
    same = {f"{name}, test": value for name, value in same_metric(baselines).items()}
    better = {"max": "", "min": ", lower is better"}[data.task.mode]
    panels = [
        plots.Panel(f"{readable(metric)} (validation{better})", [metric], same),
        plots.Panel("loss", ["loss"], training={"loss": "task_loss"}),
    ]
    plots.plot_curves(run.history, run.out / "curves.png", title=title, panels=panels, chosen=chosen)
    if module.model.head.mix is None:
        return ["curves.png"]
    plots.plot_mix(run.history, run.out / "mix.png", title=title)
    return ["curves.png", "mix.png"]


def plot_test(run: Run, module: FineTuning, data: TaskData, predicted: list[Any]) -> tuple[list[str], list[str]]:
    """Plots of the test, as the kind of task draws them of all texts, and as its head does and shows some of them.

    Returns:
        The names of the files of both.
    """
    examples = data.examples["test"]
    tested, shown = data.task.plots(examples, predicted), module.model.plots([example.text for example in examples])
    for figures, rows in ((tested, f"{len(examples):,} rows"), (shown, "some rows")):
        for name, figure in figures.items():
            figure.suptitle(f"{title_of(run)}\n{rows} of the test part", parse_math=False)
            plots.save_figure(figure, run.out / f"{name}.png")
    return [f"{name}.png" for name in tested], [f"{name}.png" for name in shown]


def test_beginnings(run: Run, module: FineTuning, data: TaskData, whole: float) -> dict[int, float]:
    """The test with the first characters of each text alone, where `data.characters` asks for it; plots it.

    Args:
        whole: the metric with whole texts.
    """
    if not data.characters:
        return {}
    module.to(run.trainer.strategy.root_device)  # Lightning moves it back when a test has ended
    examples, scores = data.examples["test"], {}
    for number in data.characters:
        predictions = module.model.predictions([beginning(example.text, number) for example in examples])
        labels = [example.label for example in examples], [prediction.label for prediction in predictions]
        scores[number] = data.task.scores(*labels).figures[data.task.metric]
    label, title = f"{readable(data.task.metric)} on the test part", title_of(run)
    plots.plot_characters(scores, whole, run.out / "characters.png", label=label, title=title)
    return scores


def beginning(text: Any, characters: int) -> Any:
    """The first characters of a text, or of both texts of a pair; a shorter text is whole."""
    return text[:characters] if isinstance(text, str) else tuple(part[:characters] for part in text)


def title_of(run: Run) -> str:
    """Model, task and arm, as in the tags of the run, with its seed and steps."""
    model, task, arm = run.record.tags[:3]
    if not run.steps:
        return f"{model} on {task}, counted"
    return f"{model} on {task}, arm {arm}, seed {run.record.seed}: {run.steps:,} steps"
