"""What a fine-tune tells and leaves: the receipt, the test of its best checkpoint, predictions, plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipeline.finetuning.metrics import Answers, Scores, baselines, scores
from pipeline.models.base import Receipt
from pipeline.storage.atomic import write_atomically
from pipeline.storage.json_lines import json_line
from pipeline.tracking import plots
from pipeline.tracking.rank import is_main
from pipeline.training import checkpoints
from pipeline.training.finetuning import FineTuning
from pipeline.training.run import Run
from pipeline.training.task_data import LabeledData

WRONG = 100  # wrong answers in the table for Weights & Biases


def hand_off(folder: Path, receipt: Receipt, module: FineTuning) -> str:
    """The receipt: what came from the folder, what is new, what was left; nothing happens in silence."""
    fresh = [f"head.{name}" for name, _ in module.model.head.named_parameters()]
    parts = [*([] if module.frozen else module.model.encoder.layer_groups()), module.model.head.parameters()]
    trained = sum({id(p): p.numel() for part in parts for p in part}.values())  # not the output layer of pretraining
    lines = [
        f"encoder     {folder} ({module.arm}): {receipt}; {trained:,} parameters are trained",
        f"            tokenizer {module.model.encoder.tokenizer.hash[:12]}; new in the head: {', '.join(fresh)}",
    ]
    told = {} if module.arm == "scratch" else {"new in": receipt.new, "unused in": receipt.unused}
    for name, tensors in {**told, "never trained, so not saved with": module.model.unsaved()}.items():
        if tensors:
            shown = ", ".join(tensors[:4]) + (", ..." if len(tensors) > 4 else "")
            lines.append(f"            {name} the encoder: {shown}")
    return "\n".join(lines)


def finish(training: Run, module: FineTuning, data: LabeledData) -> None:
    """Tests the best checkpoint; writes model, predictions, plots and figures."""
    task, best = data.task, training.last.with_name(checkpoints.BEST)
    state = checkpoints.read(best if best.exists() else training.last)
    figures = training.metrics() | training.metrics_of(state)  # val/* are of the checkpoint that is tested
    module.load_state_dict(state["state_dict"])
    training.trainer.test(module, data, verbose=False)

    answers, loss = module.answered("test"), module._figures("val")["val/task_loss"]  # of all processes
    if not is_main():
        return
    found, best_score = scores(answers, task), training.best_score
    simple = baselines(task, data.examples["train"], data.examples["test"])
    figures |= {
        **{f"test/{name}": value for name, value in found.figures.items()},
        "test/loss": loss,
        "test/rows": len(answers.gold),
        "best_step": int(state["global_step"]),
        f"val/best_{task.metric}": figures.get(f"val/{task.metric}", 0.0) if best_score is None else best_score,
        "degenerate": is_degenerate(answers),
        **{f"baseline/{name}": value for name, value in simple.items()},
        **{f"test/{kind}/{name}": value for kind, table in found.by_type.items() for name, value in table.items()},
    }
    rows = predictions(answers, data)
    write_atomically(training.out / "predictions.jsonl", "".join(map(json_line, rows)))
    drawn = plot(training, module, data, found)
    card = f"# {module.arm} fine-tune\n\nLabels: {', '.join(task.label_names)}.\n\n{headline(found, task)}\n"
    saved = training.keep("model", lambda folder: module.model.save(folder, card=card))
    training.finish(figures, artifact=("model", saved), tables={"wrong answers": wrong(rows)})
    print(headline(found, task))
    print("baselines: " + ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in simple.items()))
    if figures["degenerate"]:
        print("Warning: every answer is the same label: this run learned nothing of the task.")
    print(f"Saved {saved}, predictions.jsonl, {' and '.join(drawn)} in {training.out}")


def wrong(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """The surest wrong answers, as columns and rows."""
    if rows and "words" in rows[0]:
        found = [row for row in rows if row["gold"] != row["tags"]]
        cells = [[" ".join(row["words"]), " ".join(row["gold"]), " ".join(row["tags"])] for row in found]
        return ["words", "gold", "tags"], cells[:WRONG]
    found = [row for row in rows if row["gold"] != row["label"]]
    found.sort(key=lambda row: -row["probability"])
    cells = [[str(row["text"]), row["gold"], row["label"], row["probability"]] for row in found]
    return ["text", "gold", "label", "probability"], cells[:WRONG]


def headline(found: Scores, task: Any) -> str:
    """The score of a run in one line; spans are counted as conlleval counts them, tokens apart."""
    figures = found.figures
    if task.metric == "span_f1":
        return (
            f"test span F1 {figures['span_f1']:.4f} (conlleval; precision {figures['span_precision']:.4f}, recall "
            f"{figures['span_recall']:.4f}, {figures['span_support']:,} spans), "
            f"token accuracy {figures['token_accuracy']:.4f}"
        )
    names = [task.metric, *(name for name in figures if name != task.metric and name != "standard_error")]
    shown = {name: f"{name.replace('_', ' ').replace(' f1', ' F1')} {figures[name]:.4f}" for name in names}
    for name in {"accuracy", "token_accuracy"} & set(names):
        shown[name] += f" ± {figures['standard_error']:.4f} (standard error)"
    return "test " + ", ".join(shown.values()).replace("matthews", "Matthews")


def is_degenerate(answers: Answers) -> bool:
    """Whether one label is given always."""
    return len({label for labels in answers.predicted for label in labels}) < 2


def predictions(answers: Answers, data: LabeledData) -> list[dict[str, Any]]:
    names, rows = data.task.label_names, []
    for example, gold, predicted, probabilities in zip(
        data.examples["test"], answers.gold, answers.predicted, answers.probabilities, strict=True
    ):
        if data.by_word:
            tags = {"gold": [names[tag] for tag in gold], "tags": [names[tag] for tag in predicted]}
            chosen = probabilities.gather(-1, torch.tensor(predicted)[:, None])[:, 0].tolist()
            rows.append({"words": example.text, **tags, "probabilities": [round(p, 6) for p in chosen]})
        else:
            shares = dict(zip(names, probabilities.tolist(), strict=True))
            label = names[predicted[0]]
            answer = {"label": label, "probability": shares[label], "probabilities": shares}
            rows.append({"text": example.text, "gold": names[gold[0]], **answer})
    return rows


def plot(training: Run, module: FineTuning, data: LabeledData, found: Scores) -> list[str]:
    """PNGs of a run; returns their names."""
    out = training.out
    plots.plot_curves(training.history, out / "curves.png", baselines={}, losses=["train/task_loss", "val/loss"])
    names = ["curves.png"]
    if found.confusion and len(data.task.label_names) <= 40:
        plots.plot_confusion(found.confusion, data.task.label_names, out / "confusion.png")
        names.append("confusion.png")
    if found.by_type:
        plots.plot_types(found.by_type, out / "types.png")
        names.append("types.png")
    if module.model.head.mix is not None:
        plots.plot_mix(training.history, out / "mix.png")
        names.append("mix.png")
    return names
