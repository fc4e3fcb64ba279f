"""A fine-tuned model: encoder, head and label names; saved as a folder, loaded in one call."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline import UserError, encoders
from pipeline import tokenizer as tokenizers
from pipeline.encoders.base import Batch, Encoded, Encoder, apart, check_texts, read_config, read_state
from pipeline.heads import Decision, Head, SentenceHead, TokenHead
from pipeline.inputs import Cut, Item, collate, items_of
from tasks.tagging import spans


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

    by_word: bool
    pairs: bool
    spans: bool
    columns: dict[str, str]
    mix: bool
    mix_dropout: float
    lstm: int
    dropout: float
    words: Literal["first", "mean"]
    crf: bool
    max_length: int
    cut: Cut


class TunedModel(nn.Module):
    """Texts to labels, or words to tags.

    Args:
        encoder: what reads the text.
        labels: names of the classes, in order.
        options: of the head.
    """

    def __init__(self, encoder: Encoder, *, labels: list[str], options: HeadOptions) -> None:
        super().__init__()
        self.encoder, self.labels, self.options = encoder, labels, options
        kind = "token" if options.by_word else "sentence"
        own = options.mix or options.lstm or options.crf or (options.by_word and options.words != "first")
        self.layout = None if own else encoder.head_layouts.get(kind)
        shared: dict[str, Any] = {
            **{name: getattr(options, name) for name in ("mix", "mix_dropout", "lstm", "dropout")},
            "classes": len(labels),
            "bias": self.layout is None or self.layout.bias,
        }
        self.head: Head
        if options.by_word:
            self.head = TokenHead(encoder, words=options.words, crf=options.crf, **shared)
        else:
            compared = options.pairs and not encoder.joins_pairs
            self.head = SentenceHead(encoder, times=4 if compared else 1, **shared)

    def forward(self, batch: Batch) -> tuple[Tensor, Encoded]:
        """-> logits, (B, C) or by word (B, W, C), and what the encoder gave."""
        encoded = self.encoder(apart(batch))
        return self.head(self.encoder, batch, encoded), encoded

    def items(self, texts: Sequence[Any]) -> list[Item]:
        options = self.options
        return items_of(self.encoder, texts, by_word=options.by_word, room=options.max_length, cut=options.cut)

    @torch.no_grad()
    def predict(self, texts: Sequence[Any], *, batch_size: int = 64) -> list[dict[str, Any]]:
        """For each text, or pair of texts, its `label`, `probability`, and `probabilities` by label name.

        A tagger takes strings, which are split at spaces and punctuation, or lists of words, and gives `words`,
        `tags`, `probabilities` of these tags and `spans` with their first character and the one behind their last
        (in the string, or in the words joined by spaces).

        Raises:
            UserError: pairs for a model of single texts, or the other way.
        """
        self._check(texts)
        if not self.options.by_word:  # as a task reads them
            texts = [text.strip() if isinstance(text, str) else tuple(map(str.strip, text)) for text in texts]
        placed = [place_words(text) for text in texts] if self.options.by_word else []
        items = self.items([words for words, _ in placed] if self.options.by_word else texts)
        decisions = self._decide(items, batch_size)
        if not self.options.by_word:
            return [self.named(probabilities.tolist()) for _, probabilities in decisions]
        found: list[tuple[list[str], list[float]]] = [([], []) for _ in texts]
        for item, (tags, probabilities) in zip(items, decisions, strict=True):
            found[item.text][0].extend(self.labels[tag] for tag in tags.tolist())
            found[item.text][1].extend(probabilities.gather(-1, tags[:, None])[:, 0].tolist())
        return [self._tagged(text, *place, *tags) for text, place, tags in zip(texts, placed, found, strict=True)]

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

        Where transformers has the same head (`Encoder.head_layouts`) it opens there, with its names for the tensors.
        """
        from safetensors.torch import save_file

        self.encoder.save(folder, card=card)
        config = {
            **self.encoder.config,
            "id2label": {str(index): name for index, name in enumerate(self.labels)},
            "label2id": {name: index for index, name in enumerate(self.labels)},
            "head": asdict(self.options),
        }
        state = self.encoder.export_state()
        if self.layout is None:
            state |= {f"head.{name}": value for name, value in self.head.state_dict().items()}
        else:
            config |= {"architectures": [self.layout.architecture], **self.layout.config}
            state = {name: value for name, value in state.items() if not name.startswith(self.layout.without)}
            state |= {
                name.replace("classifier", self.layout.name): value for name, value in self.head.state_dict().items()
            }
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


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
        UserError: no such folder, or one of an encoder without a head.
    """
    folder = Path(folder)
    config = read_config(folder)
    if "head" not in config or "id2label" not in config:
        raise UserError(f"{folder} is an encoder without a head; fine-tune it first (make finetune FROM={folder}).")
    other = UserError(f"{folder} was saved by another version of this program; fine-tune it again.")
    try:
        options = HeadOptions(**config["head"])
    except TypeError:
        raise other from None
    encoder = encoders.encoder_class(config["model_type"]).from_config(config, tokenizers.load(folder))
    labels = [config["id2label"][str(index)] for index in range(len(config["id2label"]))]
    model = TunedModel(encoder, labels=labels, options=options)
    state = read_state(folder)
    prefix = "head." if model.layout is None else f"{model.layout.name}."
    head = {name.removeprefix("head."): state.pop(name) for name in list(state) if name.startswith(prefix)}
    if model.layout is not None:
        head = {name.replace(model.layout.name, "classifier"): value for name, value in head.items()}
    encoder.import_state(state)
    try:
        model.head.load_state_dict(head)
    except RuntimeError:  # tensors by other names
        raise other from None
    return model.eval()
