"""A fine-tuned model: encoder, head and label names; saved as a folder, loaded in one call."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, ConfigDict, Field
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline import encoders
from pipeline.errors import UserError
from pipeline.finetuning.features import Cut, Item, collate, items_of
from pipeline.finetuning.heads import Decision, Head, SentenceHead, TokenHead
from pipeline.models.base import Encoder
from pipeline.models.folder import Rate, read_config
from pipeline.models.inputs import Batch, check_texts, flatten_pairs
from pipeline.models.outputs import Encoded
from pipeline.storage.validation import checked
from tasks.bio import spans


def _numbered(names: dict[str, str]) -> dict[str, str]:
    if not names or {str(index) for index in range(len(names))} != names.keys():
        raise ValueError("its keys must be the numbers from 0 to one less than there are labels")
    return names


@dataclass
class HeadOptions:
    """What a head is, and how texts come to it; kept in the model's `config.json`.

    Args:
        by_word: one label a word, instead of one a text.
        pairs: whether it reads pairs of texts.
        spans: whether tags are BIO tags of spans.
        columns: role -> column of the task's files.
        mix, mix_dropout, lstm, dropout: see Head.
        words, crf: see TokenHead.
        max_length: most tokens of a text, special ones included.
        cut: which part of a longer text is kept.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    by_word: bool
    pairs: bool
    spans: bool
    columns: dict[str, str]
    mix: bool
    mix_dropout: Rate
    lstm: Annotated[int, Field(ge=0)]
    dropout: Rate
    words: Literal["first", "mean"]
    crf: bool
    max_length: Annotated[int, Field(ge=3)]
    cut: Cut


class ModelConfig(TypedDict):
    """What of a model's `config.json` is its own, beside that of its encoder."""

    id2label: Annotated[dict[str, str], AfterValidator(_numbered)]
    head: HeadOptions


class TunedModel(nn.Module):
    """Texts to labels, or words to tags.

    Args:
        encoder: what reads the text.
        labels: names of the classes, in order.
        options: of the head.
    """

    def __init__(self, encoder: Encoder, *, labels: list[str], options: HeadOptions) -> None:
        super().__init__()
        encoder.forget_between_batches()  # rows of a task have nothing to do with each other
        self.encoder, self.labels, self.options = encoder, labels, options
        kind = "token" if options.by_word else "sentence"
        own = options.mix or options.lstm or options.crf or (options.by_word and options.words != "first")
        self.layout = None if own else encoder.hf_heads.get(kind)
        shared: dict[str, Any] = {
            **{name: getattr(options, name) for name in ("mix", "mix_dropout", "lstm", "dropout")},
            "classes": len(labels),
            "bias": self.layout is None or self.layout.bias,
        }
        self.head: Head
        if options.by_word:
            self.head = TokenHead(encoder, words=options.words, crf=options.crf, **shared)
        else:
            compared = options.pairs and not encoder.joint_pairs
            self.head = SentenceHead(encoder, times=4 if compared else 1, **shared)

    def forward(self, batch: Batch) -> tuple[Tensor, Encoded]:
        """-> logits, (B, C) or by word (B, W, C), and what the encoder gave."""
        encoded = self.encoder(flatten_pairs(batch))
        return self.head(self.encoder, batch, encoded), encoded

    def items(self, texts: Sequence[Any]) -> list[Item]:
        options = self.options
        return items_of(self.encoder, texts, by_word=options.by_word, room=options.max_length, cut=options.cut)

    @torch.no_grad()
    def predict(self, texts: Sequence[Any], *, batch_size: int = 64) -> list[dict[str, Any]]:
        """For each text, or pair of texts, its `label`, `probability`, and `probabilities` by label name.

        A tagger takes strings, which are split at spaces and punctuation, or lists of words, and gives `words`,
        `tags`, `probabilities` of these tags and `spans` with their first character and the one behind their last
        (in the string, or in the words joined by spaces). Where a text, or a word of a tagger's, was too long and has
        been cut, `cut` is true.

        Raises:
            UserError: pairs for a model of single texts, or the other way.
        """
        self._check(texts)
        if not self.options.by_word:  # as a task reads them
            texts = [text.strip() if isinstance(text, str) else tuple(map(str.strip, text)) for text in texts]
        placed = [place_words(text) for text in texts] if self.options.by_word else []
        items = self.items([words for words, _ in placed] if self.options.by_word else texts)
        decisions = self._decide(items, batch_size)
        cut = {item.text for item in items if item.was_cut}
        if not self.options.by_word:
            answers = [self.named(probabilities.tolist()) for _, probabilities in decisions]
            return _marked(answers, cut)
        found: list[tuple[list[str], list[float]]] = [([], []) for _ in texts]
        for item, (tags, probabilities) in zip(items, decisions, strict=True):
            found[item.text][0].extend(self.labels[tag] for tag in tags.tolist())
            found[item.text][1].extend(probabilities.gather(-1, tags[:, None])[:, 0].tolist())
        answers = [self._tagged(text, *place, *tags) for text, place, tags in zip(texts, placed, found, strict=True)]
        return _marked(answers, cut)

    def _check(self, texts: Sequence[Any]) -> None:
        check_texts(texts)
        pairs, by_word = self.options.pairs, self.options.by_word
        if any(isinstance(text, tuple) != pairs or (isinstance(text, list) and not by_word) for text in texts):
            wanted = "pairs (text, text)" if pairs else "single texts" + (" or lists of words" if by_word else "")
            raise UserError(f"This model reads {wanted}.")

    def _decide(self, items: Sequence[Item], batch_size: int) -> list[Decision]:
        self.eval()
        order = sorted(range(len(items)), key=lambda i: len(items[i]))
        results: list[Any] = [None] * len(items)
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            batch = collate(self.encoder, [items[i] for i in rows])
            batch = {name: value.to(self.encoder.device) for name, value in batch.items()}
            for row, decision in zip(rows, self.head.decide(self(batch)[0], batch), strict=True):
                results[row] = decision
        return results

    def named(self, probabilities: list[float]) -> dict[str, Any]:
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        return {
            "label": self.labels[best],
            "probability": probabilities[best],
            "probabilities": dict(zip(self.labels, probabilities, strict=True)),
        }

    def _tagged(
        self,
        text: str | list[str],
        words: list[str],
        places: list[tuple[int, int]],
        tags: list[str],
        probabilities: list[float],
    ) -> dict[str, Any]:
        result: dict[str, Any] = {"words": words, "tags": tags, "probabilities": probabilities}
        if self.options.spans:
            whole = text if isinstance(text, str) else " ".join(text)
            found = [(kind, places[first][0], places[last][1]) for kind, first, last in spans(tags)]
            result["spans"] = [
                {"type": kind, "begin": begin, "end": end, "text": whole[begin:end]} for kind, begin, end in found
            ]
        return result

    # ------------------------------------------------------------------ folders

    def save(self, folder: Path, *, card: str) -> None:
        """The layout of an encoder folder, plus the head's tensors and the label names in `config.json`.

        Where transformers has the same head (`Encoder.hf_heads`) it opens there, with its names for the tensors.
        """
        config = {
            **(self.encoder.saved_config() if self.layout is None else self.encoder.config),
            "id2label": {str(index): name for index, name in enumerate(self.labels)},
            "label2id": {name: index for index, name in enumerate(self.labels)},
            "head": asdict(self.options),
        }
        if self.layout is not None:
            config |= {"architectures": [self.layout.architecture], **self.layout.config}
        self.encoder.save_as(folder, config, self._state(), card=card)

    def _state(self) -> dict[str, Tensor]:
        """Tensors by their names in the folder: of the encoder's those that were trained, or that the head reads."""
        head = self.head.state_dict()
        if self.layout is None:
            return self.encoder.trained_state() | {f"head.{name}": value for name, value in head.items()}
        encoder, without = self.encoder.export_state(), self.layout.without
        kept = {name: value for name, value in encoder.items() if not name.startswith(without)}
        return kept | {name.replace("classifier", self.layout.name): value for name, value in head.items()}

    def unsaved(self) -> list[str]:
        """Tensors of the encoder that were neither in its folder nor are trained here, and so are not saved."""
        return sorted(self.encoder.untrained - self._state().keys())


def _marked(answers: list[dict[str, Any]], cut: set[int]) -> list[dict[str, Any]]:
    return [{**answer, "cut": True} if number in cut else answer for number, answer in enumerate(answers)]


WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def place_words(text: str | list[str]) -> tuple[list[str], list[tuple[int, int]]]:
    """Words of a text, and where each begins and ends."""
    places: list[tuple[int, int]] = []
    if isinstance(text, str):
        for match in WORD.finditer(text):
            begin, end = match.span()
            # A combining mark is neither letter nor space: it belongs to the letter in front, and splits no word.
            marked = _is_mark(text[begin]) or (text[begin].isalnum() and begin > 0 and _is_mark(text[begin - 1]))
            if places and places[-1][1] == begin and marked:
                places[-1] = (places[-1][0], end)
            else:
                places.append((begin, end))
        return [text[begin:end] for begin, end in places], places
    at = 0
    for word in text:
        places.append((at, at + len(word)))
        at += len(word) + 1
    return text, places


def load(folder: str | Path) -> TunedModel:
    """A fine-tuned model from its folder, in eval mode.

    Raises:
        UserError: no such folder, one of an encoder without a head, a damaged or a contradictory one.
    """
    folder = Path(folder)
    config, file = read_config(folder), folder / "config.json"
    if "head" not in config or "id2label" not in config:
        raise UserError(f"{folder} is an encoder without a head; fine-tune it first (make finetune FROM={folder}).")
    options = checked(ModelConfig, config, file)["head"]
    labels = [config["id2label"][str(index)] for index in range(len(config["id2label"]))]
    encoder, state = encoders.fresh(folder)
    if options.max_length > encoder.max_length:
        raise UserError(
            f"{file}: head.max_length is {options.max_length}, but the encoder has only {encoder.max_length} positions."
        )
    if options.lstm and len(state.get("head.lstm.weight_ih_l0", ())) != 4 * options.lstm:
        raise UserError(f"{file}: head.lstm is {options.lstm:,}, but model.safetensors has no LSTM of that size.")
    model = TunedModel(encoder, labels=labels, options=options)
    prefix = "head." if model.layout is None else f"{model.layout.name}."
    head = {name.removeprefix("head."): state.pop(name) for name in list(state) if name.startswith(prefix)}
    if model.layout is not None:
        head = {name.replace(model.layout.name, "classifier"): value for name, value in head.items()}
    encoders.copy_tensors(encoder, state, folder)
    try:
        model.head.load_state_dict(head)
    except RuntimeError:  # tensors by other names
        raise UserError(f"{folder} was saved by another version of this program; fine-tune it again.") from None
    return model.eval()
