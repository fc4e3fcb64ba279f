"""What a fine-tuned model keeps in `config.json` about its head and its input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from pipeline.finetuning.features import Cut
from pipeline.models.folder import Rate

Pair = Literal["joined", "compared", "attended"]


@dataclass(kw_only=True)
class HeadOptions:
    """What a head is, and how its input is made; kept in the model's `config.json`.

    Args:
        name: of the head, a file in `heads`.
        pairs: whether it reads pairs of texts.
        pair: how it reads them: `joined` as one sequence (Devlin et al. 2018, 3.2), or one by one, and then `compared`
            by a vector of each (Conneau et al. 2017) or `attended` token by token (Parikh et al. 2016). None: as the
            encoder does (see `Encoder.joint_pairs`, and `Head.readings`).
        columns: role -> column of the task's files.
        dropout, mix, mix_dropout, lstm: see Head.
        spans: whether tags are BIO tags of spans.
        words, crf: see TokenHead.
        beam, length_penalty: of the search for a translation, see generation.Search.
        languages: of the source and of the target, for models whose texts name theirs.
        extra: what a kind of task tells its head beside these, as a threshold.
        max_length: most tokens of a text, special ones included.
        cut: which part of a longer text is kept.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*$")]
    pairs: bool
    columns: dict[str, str]
    mix: bool
    mix_dropout: Rate
    lstm: Annotated[int, Field(ge=0)]
    dropout: Rate
    max_length: Annotated[int, Field(ge=3)]
    cut: Cut
    spans: bool = False
    words: Literal["first", "mean"] = "first"
    crf: bool = False
    beam: Annotated[int, Field(ge=1)] = 1
    length_penalty: float = 1.0
    languages: list[str] = field(default_factory=list)
    pair: Pair | None = None
    extra: dict[str, Any] = field(default_factory=dict)


# Settings of a head, in `model.recipe`, that are those of every head unless it is told otherwise.
PLAIN: dict[str, Any] = {
    **{"lstm": 0, "words": "first", "crf": False, "class_weights": "none", "label_smoothing": 0.0},
    **{"pair": "auto", "layers": "auto"},
}


def _numbered(names: dict[str, str]) -> dict[str, str]:
    if not names or {str(index) for index in range(len(names))} != names.keys():
        raise ValueError("its keys must be the numbers from 0 to one less than there are labels")
    return names


def _named(head: Any) -> Any:
    """The options of models up to 0.13, which said `by_word` instead of a name."""
    if not isinstance(head, dict) or "by_word" not in head:
        return head
    rest = {name: value for name, value in head.items() if name != "by_word"}
    return {"name": "token" if head["by_word"] else "sentence", **rest}


class ModelConfig(TypedDict):
    """The keys of a model's `config.json` beside those of its encoder."""

    id2label: Annotated[dict[str, str], AfterValidator(_numbered)]
    head: Annotated[HeadOptions, BeforeValidator(_named)]
