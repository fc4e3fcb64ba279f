"""The registered models at toy size: a line each in `TOYS`, and `test_conformance*.py` run every claim on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Toy:
    """A model that pretrains in seconds, and learns.

    Attributes:
        sizes: of its architecture: settings of model.encoder.init_args.
        steps, learning_rate: of the pretraining that all tests share.
        variants: settings of the run, with spaces between them, under which it must resume as well as with its own.
        pretrains: whether an objective trains it.
        counts: whether it counts, so that it has neither optimization nor vectors, and no step to resume at.
    """

    sizes: str
    steps: int = 120
    learning_rate: float = 4e-3
    variants: tuple[str, ...] = ()
    preset: str | None = None
    pretrains: bool = True
    counts: bool = False


TRANSFORMER = "size=64 layers=2 heads=2 max_length=48 inner_size="
RECURRENT = "size=64 embedding_size=48 layers=2 max_length=48"
FEED_FORWARD = "order=4 embedding_size=32 hidden_size=64 max_length=48"
SPELLED = "character_size=8 filters=[[1,8],[2,16],[3,24]] projection=24 cell=48 cutoffs=[100,200]"
ADAMW = "model.optimization.optimizer=adamw"
QUICK_THOUGHTS = "pipeline.objectives.quick_thoughts.QuickThoughts"
CAUSAL_ROWS = "pipeline.objectives.causal_rows.MaskedAndCausalLM"
TOYS = {
    "bert": Toy(
        TRANSFORMER + "128",
        300,
        3e-3,
        (f"model.objective={QUICK_THOUGHTS}", f"model.embeddings=random model.objective={CAUSAL_ROWS}"),
    ),
    "gpt": Toy(TRANSFORMER + "256", variants=(f"{ADAMW} model.objective.init_args.packing=document",)),
    "llama": Toy(TRANSFORMER + "176 key_value_heads=1"),
    "recurrent": Toy(
        RECURRENT, learning_rate=1e-2, variants=("model.objective.init_args.stateful=true",), preset="lstm"
    ),
    "fflm": Toy(FEED_FORWARD, learning_rate=1e-2),
    "cbow": Toy("embedding_size=48 window=4 max_length=48", 120, 3e-2, ("model.embeddings=cooccurrence",)),
    "elmo": Toy(SPELLED, variants=(f"{ADAMW} model.objective.init_args.stateful=true",)),
    "bart": Toy(TRANSFORMER + "128", 80, 5e-3),
    "t5": Toy(TRANSFORMER + "128", 80, 5e-3),
    "transformer": Toy(TRANSFORMER + "128", pretrains=False),
    "rnn-seq2seq": Toy("size=64 embedding_size=48 layers=1 max_length=48", pretrains=False),
    "ngram": Toy("order=3 smoothing=modified-kneser-ney max_length=48", counts=True),
}
PRETRAINED = sorted(model for model, toy in TOYS.items() if toy.pretrains)
TRAINED = [model for model in PRETRAINED if not TOYS[model].counts]

RUN = ["data.sample_documents=300", "data.tokenizer.vocab_size=500", "data.length=48", "data.batch_size=16"]
RUN += ["data.validation_rows=64", "trainer.log_every_n_steps=2", "precision=32-true"]
RUN += ["model.optimization.warmup_steps=2"]


def preset(model: str) -> str:
    """MODEL= of a `model_type`."""
    return TOYS[model].preset or model


def flags(model: str, *settings: str) -> list[str]:
    """Flags of a toy run of a model; later settings win."""
    sizes = [f"model.encoder.init_args.{size}" for size in TOYS[model].sizes.split()]
    chosen = [*RUN, *sizes, *settings]
    if TOYS[model].counts:
        chosen = [setting for setting in chosen if not setting.startswith("model.optimization.")]
    return ["--model", preset(model), *(f"--{setting}" for setting in chosen)]


def pretraining(model: str) -> list[str]:
    """Flags of the pretraining that all tests share."""
    toy = TOYS[model]
    if toy.counts:
        return flags(model)
    return flags(
        model,
        f"trainer.max_steps={toy.steps}",
        f"validate_every={toy.steps // 2}",
        f"model.optimization.learning_rate={toy.learning_rate}",
        f"model.optimization.warmup_steps={toy.steps // 6}",
    )
