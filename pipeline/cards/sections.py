"""Sections that the cards of encoders and of fine-tuned models share, as Markdown; and the front matter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from pipeline.tracking import lineage
from pipeline.tracking.amounts import rounded
from pipeline.tracking.lineage import Stage
from pipeline.tracking.metric_names import readable
from pipeline.tracking.tables import markdown_table
from pipeline.version import __version__

LIBRARY = "pretrain-finetune"  # what opens a folder that transformers does not
CURVES = "curves.png"  # a picture beside the card


@dataclass
class TrainingRecord:
    """What a card says of a run.

    Args:
        name: of the folder, as bert-sample-sentiment.
        metrics: as in metrics.json.
        config: every setting, nested.
        stages: the lineage, up to the run itself.
        pictures: files beside the card, with the curves first.
    """

    name: str
    metrics: Mapping[str, Any]
    config: Mapping[str, Any]
    stages: Sequence[Stage]
    pictures: Sequence[str] = ()

    def stage(self, kind: str) -> Stage:
        """The last stage of a kind; empty if there is none."""
        return lineage.last(self.stages, kind)

    def setting(self, name: str) -> Any:
        """A setting by its dotted name; None where there is none."""
        value: Any = self.config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def front_matter(
    record: TrainingRecord,
    *,
    library: str,
    pipeline_tag: str,
    tags: Sequence[str],
    results: Sequence[EvalResult],
    pretrained: bool = True,
) -> ModelCardData:
    """The front matter: only what is known. A license and the name of the base model are given when it is published."""
    corpus, task = record.stage("corpus") if pretrained else {}, record.stage("task")
    datasets = [stage["hub"] for stage in (corpus, task) if "hub" in stage]
    return ModelCardData(
        language=corpus.get("language"),
        library_name=library,
        pipeline_tag=pipeline_tag,
        tags=[*tags, *(["synthetic-data"] if corpus.get("synthetic") else [])],
        datasets=datasets or None,
        model_name=record.name,
        eval_results=list(results) or None,
    )


def result(record: TrainingRecord, kind: str, *, split: str, metric: str, value: float, tag: str) -> EvalResult:
    """A metric for the model index of the front matter, on the data of the `corpus` or `task`."""
    stage = record.stage(kind)
    name = str(stage.get("name", kind))
    return EvalResult(
        task_type=tag,
        dataset_type=stage.get("hub", name),
        dataset_name=name,
        dataset_split=split,
        metric_type=metric,
        metric_name=readable(metric),
        metric_value=round(value, 6),
    )


def card(data: ModelCardData, title: str, sections: Mapping[str, str]) -> str:
    """The whole README.md; a section without text is left out, one without a name comes first."""
    parts = [f"## {name}\n\n{text.strip()}" if name else text.strip() for name, text in sections.items() if text]
    body = "\n\n".join([f"# {title}", *parts])
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}\n"))


# ---------------------------------------------------------------------- a section that can be written again

MARKS = {name: (f"<!-- {name} -->\n", f"\n<!-- end of {name} -->") for name in ("loading", "scores")}


def marked(name: str, text: str) -> str:
    """A section that `replaced` finds."""
    begin, end = MARKS[name]
    return f"{begin}{text.strip()}{end}"


def replaced(content: str, name: str, text: str) -> str:
    """A card with another text in a marked section; the same card where it has no such section."""
    begin, end = map(re.escape, MARKS[name])
    return re.sub(f"{begin}.*?{end}", lambda _: marked(name, text), content, flags=re.DOTALL)


# ---------------------------------------------------------------------- sections


def corpus_text(record: TrainingRecord, *, spells: bool) -> str:
    """The corpus in numbers; of one on this machine no more than its name.

    Args:
        spells: whether its tokens are the bytes of words.
    """
    stage = record.stage("corpus")
    if not stage:
        return "Nothing is recorded about the text that it was pretrained on."
    unit = "bytes of words" if spells else "tokens"
    counts = [f"{stage[name]:,} {name}" for name in ("documents", "sentences", "words") if name in stage]
    counts += [f"{stage['tokens']:,} {unit}"] if "tokens" in stage else []
    origin = ", a synthetic corpus" if stage.get("synthetic") else f", `{stage['hub']}`" if "hub" in stage else ""
    earlier = [f"`{name}`" for name in lineage.names_of(record.stages, "corpus")[:-1]]
    before = f" Before that: {', '.join(earlier)}." if earlier else ""
    return f"Pretraining text: `{stage.get('name', 'unnamed')}`{origin}: {', '.join(counts)}.{before}"


def distillation(record: TrainingRecord) -> dict[str, Any] | None:
    """How a teacher was learned from; its place is not said."""
    options = record.setting("model.distillation")
    return {name: value for name, value in options.items() if name != "teacher"} if options else None


def settings_table(rows: Mapping[str, Any]) -> str:
    """Settings and what they are; those without a value are left out."""
    shown = [[name, _shown(value)] for name, value in rows.items() if value is not None]
    return markdown_table(["setting", "value"], shown)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, (list, tuple)):
        return " ".join(map(_shown, value)) if value else "none"
    return f"{value:,}" if isinstance(value, int) else rounded(value, 6) if isinstance(value, float) else str(value)


def class_name(section: Any) -> str | None:
    """The class of a section of the configuration, without its module."""
    path = section.get("class_path") if isinstance(section, Mapping) else section
    return path.rpartition(".")[2] if isinstance(path, str) else None


def optimization(record: TrainingRecord) -> dict[str, Any]:
    """How the weights were updated."""
    options = record.setting("model.optimization") or {}
    names = {"optimizer": "optimizer", "learning_rate": "learning rate", "schedule": "schedule"}
    names |= {"warmup_steps": "warm-up steps", "weight_decay": "weight decay", "betas": "betas"}
    shares = {
        "encoder_rate": "the encoder's share of the rate",
        "layer_decay": "share of the rate of the layer above",
    }
    names |= {name: shown for name, shown in shares.items() if options.get(name, 1.0) != 1.0}
    return {shown: options[name] for name, shown in names.items() if options.get(name) is not None}


def run_rows(record: TrainingRecord) -> dict[str, Any]:
    """What a run took, and where."""
    metrics = record.metrics
    minutes = metrics["seconds"] / 60 if "seconds" in metrics else None
    return {
        "gradient clipping": record.setting("trainer.gradient_clip_val"),
        "precision": metrics.get("precision"),
        "seed": metrics.get("seed"),
        "device": metrics.get("device"),
        "minutes": None if minutes is None else f"{minutes:.1f}",
        "tokens seen": metrics.get("tokens"),
        "words seen": metrics.get("words"),
    }


def curve(record: TrainingRecord, what: str) -> str:
    """The picture of the curves beside the card."""
    return f"![{what}]({CURVES})\n" if CURVES in record.pictures else ""


def limits(record: TrainingRecord, own: Sequence[str], *, pretrained: bool = True) -> str:
    """What it is not good for.

    Args:
        own: what is to say of this kind of folder.
        pretrained: whether its weights come from a pretraining.
    """
    corpus = record.stage("corpus")
    lines = [*own]
    if pretrained and corpus.get("synthetic"):
        lines.append("Its pretraining text is synthetic: it knows a small made-up world, and no real text.")
    elif pretrained and not corpus.get("language") and record.stage("encoder"):
        lines.append(NO_LANGUAGE)
    lines.append(
        "It is a small model for study and comparison. Nobody has tested it for bias, for toxic output or for how much "
        "of its training text it repeats: do not let it decide about people."
    )
    return "".join(f"- {line}\n" for line in lines)


NO_LANGUAGE = "The language of its pretraining text is not recorded here."
LICENSE = "No license has been chosen for these weights. Choose one before you share them: `push --license NAME`."


def lineage_table(record: TrainingRecord) -> str:
    """Each stage with the beginning of its SHA-256, as in lineage.json."""
    rows = [
        [
            str(stage["stage"]),
            str(stage.get("name", stage.get("scheme", ""))),
            str(stage.get("sha256", stage.get("config", "")))[:12],
            str(stage.get("version", "")),
            str(stage.get("wandb", "")),
        ]
        for stage in record.stages
    ]
    table = markdown_table(["stage", "name", "SHA-256 of content or configuration", "version", "W&B run"], rows)
    return f"{table}\nMade by {LIBRARY} {__version__}. The whole of it is in `lineage.json`.\n"
