"""The card of an encoder folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.cards import sections
from pipeline.cards.loading import loading
from pipeline.cards.sections import LIBRARY, TrainingRecord
from pipeline.models.base import Encoder
from pipeline.tracking.amounts import rounded
from pipeline.tracking.tables import markdown_table
from pipeline.tracking.words_seen import FOLDER, SavedEncoder

TAGS = {
    "masked": "fill-mask",
    "causal": "text-generation",
    "seq2seq": "text2text-generation",
}  # by the scoring of an encoder
SEES = {
    "masked": "It predicts a token from the tokens on both sides. It does not write text from left to right.",
    "causal": "Each position sees the tokens to its left alone.",
    "seq2seq": "Its encoder reads a source from both sides; its decoder writes a target from left to right.",
    "bidirectional": "Its layers are two language models, one for each direction; neither sees the other side.",
}


def library_of(encoder: Encoder) -> str:
    """What opens the folder of an encoder: transformers, where it has the same network."""
    return "transformers" if encoder.in_transformers else LIBRARY


def encoder_card(
    encoder: Encoder,
    record: TrainingRecord,
    *,
    main: str,
    place: str = "encoder",
    saved: Sequence[SavedEncoder] = (),
) -> str:
    """The README.md of an encoder that a run has pretrained.

    Args:
        main: name of the loss that is compared with the baselines.
        place: the name of its folder.
        saved: encoders of the same run that were saved on the way.
    """
    library, metrics = library_of(encoder), record.metrics
    tag = "feature-extraction" if encoder.untrained_lm else TAGS.get(encoder.scoring, "feature-extraction")
    objective = sections.class_name(record.setting("model.objective"))
    results = [
        sections.result(record, "corpus", split="validation", metric=name, value=metrics[f"val/{name}"], tag=tag)
        for name in (f"{main}_loss", "bits_per_byte")
        if f"val/{name}" in metrics
    ]
    variant = encoder.variant(encoder.config)
    data = sections.front_matter(record, library=library, pipeline_tag=tag, tags=[variant, LIBRARY], results=results)
    corpus = record.stage("corpus").get("name", "text")
    if encoder.learning == "counting":
        about = f"A language model of type `{variant}`: {metrics['parameters']:,} counts of `{corpus}`."
    else:
        about = (
            f"A language model of type `{variant}` with {metrics['parameters']:,} parameters, pretrained "
            f"{beginning(record)} on `{corpus}` with the objective {objective}: {metrics['steps']:,} steps of "
            f"{record.setting('data.batch_size')} rows of at most {record.setting('data.length')} "
            f"{'words' if encoder.tokenizer.spells else 'tokens'}."
        )
        if place != "encoder":
            steps = f"{metrics['steps']:,} of {record.setting('trainer.max_steps'):,}"
            about += f" It was saved on the way, at step {steps}: its learning rate had not fallen to its end."
    config = encoder.saved_config()
    parts = {
        "": about,
        "Load": sections.marked("loading", loading(config, place, library=library, tag=tag)),
        "Data": data_section(encoder, record),
        "Training": sections.settings_table(recipe(encoder, record)) + "\n" + sections.curve(record, "loss curves"),
        "Scores": sections.marked("scores", text) if (text := scores(record, main)) else "",
        "Over words seen": saved_table(saved),
        "Limits": sections.limits(
            record, [SEES[encoder.scoring], f"It takes at most {encoder.max_length:,} positions."]
        ),
        "License": sections.LICENSE,
        "Lineage": sections.lineage_table(record),
    }
    return sections.card(data, record.name, parts)


def beginning(record: TrainingRecord) -> str:
    """The weights that a run began with, random ones or those of an encoder, and its teacher; with their texts."""
    start, distillation = record.setting("model.start"), record.setting("model.distillation")
    teacher = record.stage("teacher") if distillation else {}
    named = [stage.get("name") for stage in record.stages if stage["stage"] in ("corpus", "task")][:-1]
    origin = trained_on([str(name) for name in named if name])
    taught = trained_on([str(teacher["name"])] if "name" in teacher else [])
    if start is not None and teacher and start == distillation["teacher"]:
        return f"from some layers of a teacher{taught}"
    begins = f"from the weights of an encoder{origin}"
    if start is None:
        counted = record.setting("model.embeddings") not in (None, "random", "one-vector")
        begins = "from random weights" + " and embeddings that were counted in its text" * counted
    return f"{begins} with a teacher{taught}" if teacher else begins


def trained_on(names: Sequence[str]) -> str:
    return f" that was trained on {', then '.join(f'`{name}`' for name in names)}," if names else ""


def data_section(encoder: Encoder, record: TrainingRecord) -> str:
    tokenizer = encoder.tokenizer
    return (
        f"{sections.corpus_text(record, spells=tokenizer.spells)} The tokenizer ({tokenizer.scheme}, "
        f"{len(tokenizer):,} entries, hash `{tokenizer.hash[:12]}`) is in `tokenizer.json`."
    )


def recipe(encoder: Encoder, record: TrainingRecord) -> dict[str, Any]:
    """The settings of pretraining."""
    if encoder.learning == "counting":
        rows = sections.run_rows(record)
        counted = {name: rows[name] for name in ("device", "minutes", "tokens seen")}
        return {"model": record.setting("model.encoder.init_args"), **counted}
    objective = record.setting("model.objective")
    options = (objective.get("init_args") if isinstance(objective, dict) else None) or {}
    network = record.setting("model.encoder.init_args") or {}
    network = {name: value for name, value in network.items() if name not in options}  # the objective decides there
    return {
        "network": network or None,
        "objective": sections.class_name(objective),
        "options of the objective": options or None,
        "distillation": sections.distillation(record),
        "embeddings at the start": record.setting("model.embeddings"),
        "steps": record.metrics.get("steps"),
        "rows of a batch": record.setting("data.batch_size"),
        "length of a row": record.setting("data.length"),
        **sections.optimization(record),
        **sections.run_rows(record),
    }


def saved_table(saved: Sequence[SavedEncoder]) -> str:
    """Where the encoders that were saved on the way are."""
    if not saved:
        return ""
    rows = [
        [f"{one.words:,}", "" if one.step is None else f"{one.step:,}", f"`{one.folder.name}`", f"`{one.branch}`"]
        for one in saved
    ]
    table = markdown_table(["words seen", "step", f"folder in `{FOLDER}`", "branch on the hub"], rows)
    return f"The same run, saved on its way (a word counts each time that it is read):\n\n{table}"


def scores(record: TrainingRecord, main: str) -> str:
    """The last validation, and the baselines of the main loss; empty of an encoder that was not validated."""
    metrics = record.metrics
    rows = [[name[4:].replace("_", " "), rounded(value)] for name, value in metrics.items() if name.startswith("val/")]
    if not rows:
        return ""
    uniform, unigram = metrics.get("baseline/uniform"), metrics.get("baseline/unigram")
    most = record.setting("data.validation_rows")
    where = "On the validation text" + (f" (at most {most:,} of its rows)" if isinstance(most, int) else "")
    text = f"{where}, losses in nats:\n\n{markdown_table(['metric', 'value'], rows)}"
    if uniform is None or unigram is None:
        return text
    return text + (
        f"\nBaselines of the {main.replace('_', ' ')} loss: {unigram:.4g} for guessing each token by its frequency, "
        f"{uniform:.4g} for guessing evenly. Losses of models with other tokenizers do not compare.\n"
    )


def imported_card(encoder: Encoder, origin: str) -> str:
    """The README.md of an encoder whose weights come from elsewhere.

    Args:
        origin: a sentence about them.
    """
    record, library = TrainingRecord(encoder.model_type, {}, {}, []), library_of(encoder)
    tag = "feature-extraction"
    data = sections.front_matter(
        record, library=library, pipeline_tag=tag, tags=[encoder.variant(encoder.config), LIBRARY], results=[]
    )
    parts = {
        "": origin,
        "Load": sections.marked("loading", loading(encoder.saved_config(), "encoder", library=library, tag=tag)),
        "Limits": sections.limits(record, [SEES[encoder.scoring]]),
        "License": "The license is that of the weights that were imported.",
    }
    return sections.card(data, encoder.model_type, parts)
