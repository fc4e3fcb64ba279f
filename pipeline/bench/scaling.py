"""`make scaling`: the cost of a step by sequence length and model size, and of a batch by the size of the corpus.

Writes `scaling.csv` and `scaling.png`. The corpus is a random token store with the shape of real text: only its size
matters for the cost of a batch.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from pipeline import encoders
from pipeline.bench import steps
from pipeline.bench.steps import Sizes
from pipeline.bench.timing import interleave
from pipeline.cli.arguments import Parser, place, positive, split_arguments
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.objectives.base import Objective
from pipeline.objectives.causal_lm import CausalLM
from pipeline.objectives.masked_lm import MaskedLM
from pipeline.objectives.sampling import StepBatches
from pipeline.storage.atomic import write_atomically
from pipeline.storage.csv_table import csv_table
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.tokenization.wordpiece import WordPiece
from pipeline.tracking.plots import save_figure

TOKENS = 4096  # in each step, however long its rows are
LENGTHS = (128, 256, 512, 1024)
# (layers, D) of the rows by length, then of those by size. ELMo's D is its projection; its cells are 8 D wide.
SMALL = (4, 256), ((2, 128), (4, 256), (6, 384), (8, 512), (12, 768))
SMALL_ELMO = (2, 128), ((2, 64), (2, 128), (2, 256), (2, 512))
CORPUS = 1_000_000  # tokens of the smallest one
NAMES = {"bert": "BERT", "gpt": "GPT", "elmo": "ELMo"}


def measure_step(sizes: Sizes, kind: str, rounds: int) -> tuple[int, float]:
    """Parameters of a model, and milliseconds of its step."""
    with tempfile.TemporaryDirectory() as folder:
        ours = getattr(steps, kind)(sizes, Path(folder), device="cpu", compiled=False)[:1]
        parameters = sum(p.numel() for p in encoders.load(Path(folder)).parameters())
        return parameters, 1000 * interleave(ours, rounds=rounds)["ours"].median


def random_store(tokens: int, vocab: int) -> TokenStore:
    """A store with sentences of 8 to 50 tokens and documents of 20 to 200 sentences."""
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.integers(8, 51, size=tokens // 29))
    sentences = np.concatenate([[0], ends])
    documents = np.concatenate([[0], np.cumsum(rng.integers(20, 201, size=len(ends) // 110))])
    documents = np.append(documents[documents < len(ends)], len(ends))
    flat = rng.integers(vocab // 2, vocab, size=int(ends[-1]), dtype=np.uint16)
    meta = {"documents": len(documents) - 1, "sentences": len(ends), "tokens": len(flat), "bytes": 4 * len(flat)}
    return TokenStore(flat, sentences, documents, {**meta, "raw_bytes": meta["bytes"]})


def batch_milliseconds(objective: Objective, store: TokenStore, tokenizer: Tokenizer, count: int) -> float:
    batches = StepBatches(objective, store, tokenizer, length=128, batch_size=32, seed=0)
    seconds = []
    for step in range(count):
        begin = time.perf_counter()
        batches(step)
        seconds.append(time.perf_counter() - begin)
    return 1000 * statistics.median(seconds)


def measure(rounds: int) -> list[dict[str, float | str]]:
    rows: list[dict[str, float | str]] = []

    def note(of: str, model: str, at: float, milliseconds: float) -> None:
        rows.append({"of": of, "model": model, "at": at, "milliseconds": round(milliseconds, 3)})
        print(f"{of} {model} {at:,.0f}: {milliseconds:.2f} ms", flush=True)

    for kind, (layers, size), models in (("bert", *SMALL), ("gpt", *SMALL), ("elmo", *SMALL_ELMO)):
        for length in LENGTHS:
            sizes = Sizes(rows=TOKENS // length, length=length, size=size, layers=layers, heads=4, vocab=8192)
            note("length", kind, length, measure_step(sizes, kind, rounds)[1])
        for depth, width in models:
            sizes = Sizes(rows=8, length=128, size=width, layers=depth, heads=max(1, width // 64), vocab=8192)
            note("parameters", kind, *measure_step(sizes, kind, rounds))
    objectives: list[tuple[str, Objective, Tokenizer]] = [
        ("bert", MaskedLM(0.15, False, "nsp"), WordPiece.train(steps.words(), vocab_size=8192, lowercase=True)),
        ("gpt", CausalLM("concat"), ByteBpe.train(steps.words(), vocab_size=8192)),
    ]
    for times in (1, 10, 100):
        store = random_store(CORPUS * times, 4096)
        for kind, objective, tokenizer in objectives:
            note("corpus", kind, CORPUS * times, batch_milliseconds(objective, store, tokenizer, 20 * rounds))
    return rows


def plot(rows: list[dict[str, float | str]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [
        ("length", "positions of a row", f"ms a step of {TOKENS:,} tokens, 4x256 (ELMo: 2x128)"),
        ("parameters", "parameters", "ms a step of 8 x 128 tokens"),
        ("corpus", "tokens of the corpus", "ms to make a batch of 32 x 128"),
    ]
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, (of, below, beside) in zip(axes, panels, strict=True):
        for model in ("bert", "gpt", "elmo"):
            found = [row for row in rows if (row["of"], row["model"]) == (of, model)]
            if not found:
                continue
            axis.plot([row["at"] for row in found], [row["milliseconds"] for row in found], "o-", label=NAMES[model])
        axis.set(xscale="log", xlabel=below, ylabel=beside, ylim=(0, None))
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    axes[1].autoscale(axis="y")
    axes[1].set_yscale("log")
    axes[0].set_xscale("log", base=2)
    save_figure(figure, file)


def main() -> int:
    parser = Parser(prog="python -m pipeline.bench.scaling", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=positive, default=7, help="steps of which the median is taken")
    parser.add_argument("--out", type=place, default=Path("results/bench"))
    try:
        options = parser.parse_args(split_arguments(sys.argv[1:]))
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    print(f"{torch.get_num_threads()} threads")
    rows = measure(options.rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    names = list(rows[0])
    write_atomically(options.out / "scaling.csv", csv_table(names, [[row[name] for name in names] for row in rows]))
    plot(rows, options.out / "scaling.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
