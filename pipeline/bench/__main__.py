"""`make bench`: our speed compared with other implementations, one row for each kind of work.

The measure is a ratio of medians of interleaved runs, since absolute times depend on the machine and its load. All
candidates have the same model, data and loss; each runs in its own process.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from pipeline.bench import commands, decoding, output, steps
from pipeline.bench.steps import Sizes
from pipeline.bench.timing import Candidate, Row, compared, interleave, run_in_subprocess
from pipeline.cli.arguments import Parser, place, positive, split_arguments
from pipeline.errors import UserError
from pipeline.storage.atomic import write_atomically
from pipeline.storage.csv_table import csv_table
from pipeline.storage.paths import cache_folder
from pipeline.tracking.tables import markdown_table
from pipeline.training.hardware import best_precision

SMALL = Sizes(rows=32, length=128, size=256, layers=4, heads=4, vocab=8192)
STEPS: dict[str, tuple[Callable[..., list[Candidate]], Sizes]] = {
    "bert": (steps.bert, SMALL),
    "bert-base": (steps.bert, Sizes(rows=8, length=128, size=768, layers=12, heads=12, vocab=30_522)),
    "gpt": (steps.gpt, SMALL),
    "gpt2-small": (steps.gpt, Sizes(rows=8, length=128, size=768, layers=12, heads=12, vocab=50_257)),
    "transformer": (steps.transformer, SMALL),
    "bart": (steps.bart, SMALL),
    "elmo": (steps.elmo, Sizes(rows=32, length=64, size=128, layers=2, heads=0, vocab=50_000)),
}
TOLERANCE = {"float32": 1e-4, "bf16": 2e-2}  # of the loss before any update, relative
OF_ALL_ROWS = ("work", "device", "against", "ratio", "ours", "theirs", "unit")
COLUMNS = (*OF_ALL_ROWS, "share_of_peak", "memory_ours_mb", "memory_theirs_mb")


def training_step(name: str, options: argparse.Namespace) -> list[Row]:
    """A row for each candidate that our training step is compared with."""
    build, sizes = STEPS[name]
    if name == "elmo" and options.device != "cpu":
        raise UserError("elmo is measured on processors only.")
    if options.device == "cuda" and name.endswith(("base", "small")):
        sizes = replace(sizes, rows=options.batch, length=options.length)
    with tempfile.TemporaryDirectory() as folder:
        candidates = build(sizes, Path(folder), device=options.device, compiled=options.compile)
        results = interleave(candidates, rounds=options.rounds)
    ours, tokens = results["ours"], sizes.rows * sizes.length
    print(f"{name}: {sizes}, dropout {sizes.dropout}; {ours.share_of_peak:.0%} of {ours.peak / 1e9:,.0f} GFLOP/s")
    for label, result in results.items():
        for precision, loss in result.losses.items():
            off = abs(loss - ours.losses[precision]) / abs(loss)
            if not off <= TOLERANCE[precision]:
                raise SystemExit(f"Error: {label} has a loss of {loss} in {precision}, ours {ours.losses[precision]}.")
    return [
        compared(
            name,
            label,
            tokens / ours.median,
            tokens / result.median,
            share_of_peak=ours.share_of_peak,
            memory_ours_mb=ours.memory / 1e6,
            memory_theirs_mb=result.memory / 1e6,
        )
        for label, result in results.items()
        if label != "ours"
    ]


Run = Callable[[], float]


def compare_commands(work: str, unit: str, ours: Run, others: dict[str, Run], *, rounds: int) -> list[Row]:
    """Compares whole commands, interleaved; each returns its speed."""
    speeds: dict[str, list[float]] = {name: [] for name in ("ours", *others)}
    for _ in range(rounds):
        for name, run in {"ours": ours, **others}.items():
            speeds[name].append(run())
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    return [compared(work, name, medians["ours"], medians[name], unit=unit) for name in others]


def pretraining(options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = None if options.corpus == "sample" else options.corpus
        if files is not None and not Path(files).exists():
            raise UserError(f"There is no {files}: others read a file or folder of text, set CORPUS= to one.")
        theirs = [folder, files, options.steps]
        return compare_commands(
            "pretraining",
            "tokens/s",
            lambda: run_in_subprocess(commands.our_pretraining, folder, options.corpus, options.steps),
            {
                "Trainer, float32": lambda: run_in_subprocess(commands.their_pretraining, *theirs, False),
                f"Trainer, {steps.fastest()}, fused AdamW": lambda: run_in_subprocess(
                    commands.their_pretraining, *theirs, True
                ),
            },
            rounds=options.runs,
        )


def fine_tuning(options: argparse.Namespace) -> list[Row]:
    if options.data is None:
        raise UserError(
            "fine-tuning needs DATA=, a folder with SST-2's train.tsv and dev.tsv, and an encoder in FROM=."
        )
    commands.check_fine_tuning(options.encoder, options.data)
    with tempfile.TemporaryDirectory() as name:
        given = [Path(name), options.encoder, options.data, options.steps]
        return compare_commands(
            "fine-tuning",
            "tokens/s",
            lambda: run_in_subprocess(commands.our_fine_tuning, *given),
            {
                "Trainer, float32": lambda: run_in_subprocess(commands.their_fine_tuning, *given, False),
                f"Trainer, {steps.fastest()}, fused AdamW": lambda: run_in_subprocess(
                    commands.their_fine_tuning, *given, True
                ),
            },
            rounds=options.runs,
        )


def token_store(options: argparse.Namespace) -> list[Row]:
    corpus = Path(options.corpus)
    if options.corpus == "sample":
        found = list((cache_folder() / "sample").glob("*/train.txt"))
        if not found:
            raise UserError(
                "token-store needs a corpus: run `make pretrain` first, or set CORPUS= to a folder of text."
            )
        corpus = found[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands.text_for_store(folder, corpus)
        return compare_commands(
            "token-store",
            "MB/s",
            lambda: run_in_subprocess(commands.our_store, folder),
            {
                "tokenizers, encode_batch": lambda: run_in_subprocess(commands.their_store, folder, False),
                "tokenizers, encode_batch_fast": lambda: run_in_subprocess(commands.their_store, folder, True),
            },
            rounds=2 * options.runs + 1,
        )


WHOLE: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "pretraining": pretraining,
    "fine-tuning": fine_tuning,
    "token-store": token_store,
    "output": output.output,
}


def main() -> int:
    parser = Parser(prog="python -m pipeline.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join([*STEPS, *WHOLE])}; none: all of them")
    parser.add_argument("--corpus", default="sample", help="text of pretraining and token-store [sample]")
    parser.add_argument("--data", type=place, default=None, help="folder with SST-2's train.tsv and dev.tsv")
    parser.add_argument(
        *("--from", "--encoder"),
        dest="encoder",
        type=place,
        default=Path("runs/pretrain/bert/encoder"),
        help="for fine-tuning",
    )
    parser.add_argument("--rounds", type=positive, default=15, help="of steps")
    parser.add_argument("--runs", type=positive, default=2, help="of whole commands")
    parser.add_argument("--steps", type=positive, default=60, help="steps of a whole command")
    parser.add_argument("--out", type=place, default=Path("results/bench"), help="folder of bench.csv")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of steps")
    parser.add_argument("--compile", action="store_true", help="ours with torch.compile too")
    parser.add_argument("--batch", type=int, default=64, help="rows of bert-base and gpt2-small on a GPU")
    parser.add_argument("--length", type=int, default=512, help="positions of bert-base and gpt2-small on a GPU")
    try:
        options = parser.parse_args(split_arguments(sys.argv[1:]))
        options.rows = [name for text in options.rows for name in text.split()]  # ROWS= of make is one text
        if unknown := set(options.rows) - {*STEPS, *WHOLE}:
            raise UserError(f"There is no row {', '.join(sorted(unknown))}; there are {', '.join([*STEPS, *WHOLE])}.")
        if options.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: torch finds no GPU here.")
        return measure(options)
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2


def measure(options: argparse.Namespace) -> int:
    threads = f"{torch.get_num_threads()} threads, ours in {best_precision()}"
    print(f"torch {torch.__version__}, {options.device}, {threads}\n")
    measured: list[Row] = []
    for name in options.rows or [*STEPS, *WHOLE]:
        try:
            rows = training_step(name, options) if name in STEPS else WHOLE[name](options)
            if name in decoding.KINDS:
                rows.append(decoding.decoding(name, STEPS[name][1], options))
        except UserError as error:
            if options.rows:
                raise
            print(f"Not measured: {error}")
            continue
        for row in rows:
            found = "cuda" if torch.cuda.is_available() and name != "token-store" else "cpu"  # of whole commands
            row["device"] = options.device if name in STEPS or name == "output" else found
        write(options.out / "bench.csv", rows)
        measured += rows
        for row in rows:
            memory = ""
            if row.get("memory_ours_mb"):
                memory = f"; {row['memory_ours_mb']:,.0f} and {row['memory_theirs_mb']:,.0f} MB"
            print(
                f"  against {row['against']}: {row['ratio']:.2f} times as fast "
                f"({row['ours']:,.1f} and {row['theirs']:,.1f} {row['unit']}{memory})"
            )
    print("\n" + table(measured), end="")
    return 0


def write(file: Path, rows: list[Row]) -> None:
    """Writes rows to a CSV file, in place of those of the same work and device."""
    measured = {(row["work"], row["device"]) for row in rows}
    kept: list[Row] = []
    if file.exists():
        with open(file, newline="") as before:
            kept = [row for row in csv.DictReader(before) if (row["work"], row["device"]) not in measured]
    rounded = [{name: round(v, 4) if isinstance(v, float) else v for name, v in row.items()} for row in rows]
    lines = [[row.get(name, "") for name in COLUMNS] for row in (*kept, *rounded)]
    write_atomically(file, csv_table(COLUMNS, lines))


def table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        peak = f"{row['share_of_peak']:.0%}" if row.get("share_of_peak") else ""
        lines.append([row["work"], row["against"], f"{row['ratio']:.2f}", peak])
    return markdown_table(["work", "against", "ours is faster by", "share of matrix peak"], lines)


if __name__ == "__main__":
    sys.exit(main())
