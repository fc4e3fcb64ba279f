"""`make bench-lm-eval`: our scores compared with lm-evaluation-harness's, on the same GPT folder and the same items.

lm-eval runs its `hf` model on local files with the prompts of its tasks; we score the same texts. Compared are the
log-likelihood of each text, the accuracies, and on BLiMP the speed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from pipeline import encoders
from pipeline.cli.arguments import Parser, place, positive, split_arguments
from pipeline.data.tables import read_rows
from pipeline.errors import UserError
from pipeline.models.gpt import Gpt
from pipeline.prompting import log_likelihoods
from pipeline.storage.json_lines import json_line

CHOICES = {"output_type": "multiple_choice", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}
CONNECTORS = {"cause": "because", "effect": "therefore"}


def small(text: str) -> str:
    return text[0].lower() + text[1:]


TASKS: dict[str, dict[str, Any]] = {
    "blimp": {
        "files": "zeroshot/blimp/*.jsonl.gz",
        "doc_to_text": "",
        "doc_to_target": 0,
        "doc_to_choice": "{{[sentence_good, sentence_bad]}}",
    },
    "copa": {
        "files": "zeroshot/copa/val.jsonl",
        "doc_to_text": lambda doc: f"{doc['premise'].strip()[:-1]} {CONNECTORS[doc['question']]}",
        "doc_to_target": "label",
        "doc_to_choice": lambda doc: [" " + small(doc["choice1"]), " " + small(doc["choice2"])],
    },
    "piqa": {
        "files": "zeroshot/piqa/valid.jsonl",
        "doc_to_text": "Question: {{goal}}\nAnswer:",
        "doc_to_target": "label",
        "doc_to_choice": "{{[sol1, sol2]}}",
    },
    "sst2": {
        "files": "sentiment/sst2/dev.tsv",
        "doc_to_text": "{{sentence}}\nQuestion: Is this sentence positive or negative?\nAnswer:",
        "doc_to_target": "label",
        "doc_to_choice": ["negative", "positive"],
    },
}


def theirs(model: Any, name: str, files: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """lm-eval's accuracies, and its requests with their results."""
    from lm_eval import simple_evaluate
    from lm_eval.api.task import ConfigurableTask

    options = {key: value for key, value in TASKS[name].items() if key != "files"}
    table = files[0].endswith(".tsv")
    source: dict[str, Any] = {"data_files": {"validation": files}}
    source |= {"delimiter": "\t", "quoting": 3} if table else {}
    config = {"task": name, "dataset_path": "csv" if table else "json", "dataset_kwargs": source}
    task = ConfigurableTask(config={**config, "validation_split": "validation", "num_fewshot": 0, **CHOICES, **options})
    found = simple_evaluate(model=model, tasks=[task], log_samples=True, bootstrap_iters=0, verbosity="ERROR")
    return found["results"][name], found["samples"][name]


def prepared(gpt: Gpt, name: str, files: list[str], folder: Path) -> list[str]:
    """Rewrites files so that lm-eval can read and score them.

    BLiMP's paradigms have different columns, and a candidate must fit into the positions of the encoder.
    """
    if name not in ("blimp", "piqa"):
        return files
    sides = ("sentence_good", "sentence_bad") if name == "blimp" else ("sol1", "sol2")
    rows = [row for file in files for _, row in read_rows(Path(file))]
    kept = [row for row in rows if all(fits(gpt, f" {row[side]}") for side in sides)]
    if len(kept) < len(rows):
        print(
            f"(left out: {len(rows) - len(kept)} rows of {name} with a candidate of more than {gpt.max_length} tokens)"
        )
    columns = (*sides, "goal", "label")
    lines = [json_line({key: row[key] for key in columns if key in row}) for row in kept]
    (folder / f"{name}.jsonl").write_text("".join(lines))
    return [str(folder / f"{name}.jsonl")]


def fits(gpt: Gpt, text: str) -> bool:
    return len(gpt.tokenize([text])[0]) < gpt.max_length


def main() -> int:
    parser = Parser(prog="python -m pipeline.bench.lm_eval", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(*("--from", "--encoder"), dest="encoder", type=place, required=True, help="GPT encoder folder")
    parser.add_argument("--data", type=place, required=True, help="folder with zeroshot/ and sentiment/")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--rounds", type=positive, default=3, help="of the timing on BLiMP")
    try:
        measure(parser.parse_args(split_arguments(sys.argv[1:])))
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


def measure(options: argparse.Namespace) -> None:
    from lm_eval.models.huggingface import HFLM

    gpt = encoders.load(options.encoder)
    if not isinstance(gpt, Gpt):
        raise UserError(f"{options.encoder} is no GPT, whose scores are compared here; set FROM=.")
    given = {name: [str(path) for path in sorted(options.data.glob(TASKS[name]["files"]))] for name in options.tasks}
    if missing := [name for name, files in given.items() if not files]:
        raise UserError(f"{options.data} has no {TASKS[missing[0]]['files']}; set DATA= to the folder that has.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = HFLM(pretrained=str(options.encoder), device=device, dtype="float32", batch_size="auto")
    gpt.to(device)
    print("| task | texts | largest difference, nats | acc ours, lm-eval | acc_norm ours, lm-eval |")
    print("| --- | --- | --- | --- | --- |")
    for name, files in given.items():
        with tempfile.TemporaryDirectory() as folder:
            results, samples = theirs(model, name, prepared(gpt, name, files, Path(folder)))
        pairs = [tuple(arguments) for sample in samples for arguments in sample["arguments"]]
        nats = [
            answer[0][0] if isinstance(answer[0], (list, tuple)) else answer[0]
            for s in samples
            for answer in s["resps"]
        ]
        ours = log_likelihoods(gpt, pairs)
        worst = max(abs(a - float(b)) for a, b in zip(ours, nats, strict=True))
        acc, norm = accuracies(samples, ours)
        their_acc, their_norm = results["acc,none"], results["acc_norm,none"]
        if name == "blimp":
            asked = pairs
        print(f"| {name} | {len(pairs):,} | {worst:.1e} | {acc:.4f}, {their_acc:.4f} | {norm:.4f}, {their_norm:.4f} |")
    if "blimp" in options.tasks:
        speed(gpt, model, asked, options.rounds)


def accuracies(samples: list[dict[str, Any]], ours: list[float]) -> tuple[float, float]:
    """By the sum of log-likelihoods, and by the sum divided by the candidate's characters."""
    num_correct, num_correct_norm, at = 0, 0, 0
    for sample in samples:
        texts = [continuation.removeprefix(" ") for _, continuation in sample["arguments"]]
        scores = ours[at : at + len(texts)]
        at += len(texts)
        gold = int(sample["target"])
        num_correct += scores.index(max(scores)) == gold
        per = [score / max(1, len(text)) for score, text in zip(scores, texts, strict=True)]
        num_correct_norm += per.index(max(per)) == gold
    return num_correct / len(samples), num_correct_norm / len(samples)


def speed(gpt: Gpt, model: Any, pairs: list[Any], rounds: int) -> None:
    """Times the scoring of the same texts, ours and theirs interleaved."""
    from lm_eval.api.instance import Instance

    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    seconds: dict[str, list[float]] = {"ours": [], "lm-eval": []}
    for _ in range(rounds):
        for name, step in (
            ("ours", lambda: log_likelihoods(gpt, pairs)),
            ("lm-eval", lambda: model.loglikelihood(requests)),
        ):
            begin = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - begin)
    ours, others = (statistics.median(values) for values in seconds.values())
    print(
        f"BLiMP, {len(pairs):,} texts: ours {ours:.1f} s, lm-eval hf {others:.1f} s: {others / ours:.2f} times as fast"
    )


if __name__ == "__main__":
    sys.exit(main())
