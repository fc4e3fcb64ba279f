"""What a fine-tune tells and leaves: the receipt, the test of its best checkpoint, baselines, predictions, plots."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torchmetrics.functional.classification import multiclass_confusion_matrix, multiclass_f1_score

from pipeline import metrics, tracking
from pipeline.encoders.base import Receipt
from pipeline.finetune import FineTuning
from pipeline.labeled import LabeledData
from pipeline.runs import Run
from pipeline.text import write_atomically


def hand_off(folder: Path, receipt: Receipt, module: FineTuning) -> str:
    """The receipt: what came from the folder, what is new, what was left; nothing happens in silence."""
    fresh = [f"head.{name}" for name, _ in module.model.head.named_parameters()]
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    lines = [
        f"encoder     {folder} ({module.arm}): {receipt}; {trained:,} parameters are trained",
        f"            tokenizer {module.model.encoder.tokenizer.hash[:12]}; new in the head: {', '.join(fresh)}",
    ]
    for name, tensors in (("new", receipt.new), ("unused", receipt.unused)):
        if tensors and module.arm != "scratch":
            shown = ", ".join(tensors[:4]) + (", ..." if len(tensors) > 4 else "")
            lines.append(f"            {name} in the encoder: {shown}")
    return "\n".join(lines)


def baselines(data: LabeledData) -> dict[str, float]:
    """What models without any pretraining reach: words alone and, for pairs, the second text alone."""
    parts = [data.examples["train"], data.examples["test"]]
    classes = [[example.label for example in part] for part in parts]
    ways = {"bag_of_words": [[_joined(example.text) for example in part] for part in parts]}
    if isinstance(parts[0][0].text, tuple):
        ways["hypothesis_only"] = [[example.text[1] for example in part] for part in parts]
    scores = {
        f"baseline/{name}": metrics.bag_of_words((train, classes[0]), (test, classes[1]))
        for name, (train, test) in ways.items()
    }
    return {name: score for name, score in scores.items() if score is not None}


def _joined(text: str | tuple[str, str]) -> str:
    return text if isinstance(text, str) else " ".join(text)


def finish(training: Run, module: FineTuning, data: LabeledData) -> None:
    """Tests the best checkpoint; writes model, predictions, confusion matrix and figures."""
    figures = training.figures()
    best = training.last.with_name("best.ckpt")
    state = torch.load(best if best.exists() else training.last, weights_only=True, map_location="cpu")
    module.load_state_dict(state["state_dict"])
    module.test_logits.clear()
    training.trainer.test(module, data, verbose=False)

    rows = torch.cat([rows for rows, _ in module.test_logits])
    logits = torch.cat([logits for _, logits in module.test_logits])[rows.argsort()]
    gold = torch.tensor([example.label for example in data.examples["test"]])
    labels = data.task.label_names
    accuracy = float((logits.argmax(-1) == gold).double().mean())
    names = [labels[i] for i in gold]
    simple = baselines(data)
    figures |= {
        "test/accuracy": accuracy,
        "test/standard_error": metrics.standard_error(accuracy, len(gold)),
        "test/macro_f1": float(multiclass_f1_score(logits, gold, len(labels), average="macro")),
        "test/loss": float(F.cross_entropy(logits, gold)),
        "test/rows": len(gold),
        "best_step": int(state["global_step"]),
        "val/best_accuracy": float(training.best.best_model_score or figures.get("val/accuracy", 0.0)),
        "baseline/majority": metrics.majority(names),
        **simple,
    }
    lines = []
    for example, probabilities in zip(data.examples["test"], logits.softmax(-1).tolist(), strict=True):
        row = {"text": example.text, "gold": labels[example.label], **module.model.named(probabilities)}
        lines.append(json.dumps(row, ensure_ascii=False))
    write_atomically(training.out / "predictions.jsonl", "\n".join(lines) + "\n")
    counts = multiclass_confusion_matrix(logits, gold, len(labels)).tolist()
    tracking.plot_confusion(counts, labels, training.out / "confusion.png")
    if (mix := module.model.head.mix) is not None:
        figures |= {f"mix/{name}": value for name, value in mix.shares().items()}
        tracking.plot_mix(module.history, training.out / "mix.png")
    losses = ["train/task_loss", "val/loss"]
    tracking.plot_curves(module.history, training.out / "curves.png", floors={}, losses=losses)
    card = (
        f"# {module.arm} fine-tune\n\nLabels: {', '.join(labels)}. Test accuracy {accuracy:.4f} on {len(gold)} rows.\n"
    )
    tracking.write_folder(training.out / "model", lambda folder: module.model.save(folder, card=card))
    training.finish(figures, artifact=("model", training.out / "model"))
    shown = "".join(f", {name[9:].replace('_', ' ')} {value:.4f}" for name, value in simple.items())
    print(
        f"test accuracy {accuracy:.4f} ± {figures['test/standard_error']:.4f} (standard error, {len(gold):,} rows), "
        f"macro F1 {figures['test/macro_f1']:.4f}\n"
        f"majority {figures['baseline/majority']:.4f}{shown or '; bag of words needs the bench extra'}\n"
        f"Saved {training.out / 'model'}, predictions.jsonl, confusion.png and curves.png in {training.out}"
    )
