"""One class for each word of a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipeline.data.rows import word_windows
from pipeline.finetuning.features import Cut, Feature
from pipeline.finetuning.heads.base import LinearHead
from pipeline.finetuning.heads.crf import Crf
from pipeline.finetuning.options import HeadOptions
from pipeline.finetuning.words import place_words
from pipeline.models.base import Encoder
from pipeline.models.inputs import Inputs
from pipeline.models.losses import Loss, classification_loss
from pipeline.models.outputs import Encoded, gather_words
from tasks.base import Prediction
from tasks.bio import spans

NO_WORD = -1  # the label of padding


@dataclass
class WordWindow:
    """What a window of a list of words has predictions for.

    Attributes:
        targets: numbers of words.
        word_ids: of each token the target that it is a piece of, counted from 0; -1 for none.
    """

    targets: range
    word_ids: list[int]


class TokenHead(LinearHead):
    """A linear layer on each word's vector: its first piece (Devlin et al. 2018, 5.3) or the mean of its pieces.

    With `crf` it scores whole sequences of tags.
    """

    by_word: ClassVar[bool] = True
    windows: ClassVar[str | None] = "A sentence"
    tag: ClassVar[str] = "token-classification"
    layout: ClassVar[str] = "token"
    takes: ClassVar[frozenset[str]] = frozenset({"class_weights", "label_smoothing", "words", "crf", "layers", "lstm"})

    def __init__(self, encoder: Encoder, *, outputs: int, options: HeadOptions, bias: bool = True) -> None:
        super().__init__(encoder, outputs=outputs, options=options, bias=bias)
        self.crf = Crf(outputs) if options.crf else None

    @classmethod
    def is_plain(cls, options: HeadOptions) -> bool:
        return super().is_plain(options) and not options.crf and options.words == "first"

    def forward(self, encoder: Encoder, batch: Inputs, encoded: Encoded) -> Tensor:
        """-> logits (B, W, C) of the words that `word_ids` (B, T) names."""
        vectors, _ = gather_words(self.hidden(encoded), batch["word_ids"], how=self.options.words)
        return self.classifier(self.dropout(vectors))

    @classmethod
    def features(cls, encoder: Encoder, texts: Sequence[Any], *, max_length: int, cut: Cut) -> list[Feature]:
        """Overlapping windows of lists of words; every word is a target of one."""
        most = max_length - encoder.special.count()
        return [feature for number, words in enumerate(texts) for feature in _windows(encoder, number, words, most)]

    @classmethod
    def inputs(cls, encoder: Encoder, features: Sequence[Feature]) -> Inputs:
        """With `word_ids` (B, T): the target word that a position is a piece of, -1 for none."""
        batch = super().inputs(encoder, features)
        words, begin = torch.full(batch["mask"].shape, -1), encoder.special.prefix
        for row, feature in enumerate(features):
            words[row, begin : begin + len(feature.ids)] = torch.tensor(feature.window.word_ids)
        return {**batch, "word_ids": words}

    @classmethod
    def collate(cls, encoder: Encoder, labels: Sequence[Any], features: Sequence[Feature]) -> tuple[Tensor, Tensor]:
        """Tags of whole texts -> those of the target words of each window (B, W), NO_WORD on padding."""
        longest = max(len(feature.window.targets) for feature in features)
        result = torch.full((len(features), longest), NO_WORD)
        for row, (feature, tags) in enumerate(zip(features, labels, strict=True)):
            targets = feature.window.targets
            result[row, : len(targets)] = torch.tensor([tags[i] for i in targets])
        return result, (result != NO_WORD).sum()

    def loss(self, outputs: Tensor, labels: Tensor, **options: Any) -> Loss:
        """`labels` (B, W) or wider: a part of a batch may have fewer words than the whole."""
        labels = labels[:, : outputs.shape[1]]
        mask = labels != NO_WORD
        if self.crf is None:
            return classification_loss(outputs[mask], labels[mask], **options)
        with torch.autocast(outputs.device.type, enabled=False):
            total = -self.crf.log_likelihood(outputs.float(), labels, mask).sum()
        return Loss(total, int(mask.sum()))  # `decode` searches for the tags, too slowly for each step

    def decode(self, outputs: Tensor, batch: Inputs) -> list[Prediction]:
        """The tags of the words of each row, and the probability of each.

        With a CRF the best sequence, and the marginals; the tag of the best sequence need not be the likeliest one.
        """
        counts = batch["word_ids"].amax(1) + 1
        logits = outputs.float()
        if self.crf is None:
            tags, probabilities = logits.argmax(-1), logits.softmax(-1)
        else:
            mask = torch.arange(logits.shape[1], device=logits.device) < counts[:, None]
            tags, probabilities = self.crf.decode(logits, mask), self.crf.marginals(logits, mask)
        chosen = probabilities.gather(-1, tags[..., None])[..., 0]
        rows = zip(tags.tolist(), chosen.tolist(), counts.tolist(), strict=True)
        return [Prediction(labels[:count], shares[:count]) for labels, shares, count in rows]

    @staticmethod
    def join(parts: list[Prediction], features: list[Feature], text: Any) -> Prediction:
        """The windows of a sentence, one after the other; a text without words has none."""
        tags = [tag for part in parts for tag in part.label]
        return Prediction(tags, [share for part in parts for share in part.probabilities])

    def read(self, text: str | list[str]) -> list[str]:
        return place_words(text)[0]

    def answer(self, text: str | list[str], prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
        """Words, tags, their probabilities, and spans with their characters (of listed words, joined by spaces)."""
        words, places = place_words(text)
        tags = [names[tag] for tag in prediction.label]
        result: dict[str, Any] = {"words": words, "tags": tags, "probabilities": prediction.probabilities}
        if self.options.spans:
            whole = text if isinstance(text, str) else " ".join(text)
            found = [(kind, places[first][0], places[last][1]) for kind, first, last in spans(tags)]
            result["spans"] = [
                {"type": kind, "begin": begin, "end": end, "text": whole[begin:end]} for kind, begin, end in found
            ]
        return result


def _windows(encoder: Encoder, number: int, words: Sequence[str], most: int) -> Iterator[Feature]:
    """Windows of a list of words, of at most `most` tokens each; of a longer word the first tokens."""
    pieces = encoder.word_pieces(words)
    cut = any(len(word) > most for word in pieces)
    pieces = [word[:most] for word in pieces]
    for window, targets in word_windows([len(word) for word in pieces], most) if words else ():
        ids = [piece for i in window for piece in pieces[i]]
        word_ids = [i - targets.start if i in targets else -1 for i in window for _ in pieces[i]]
        yield Feature(number, ids, was_cut=cut, window=WordWindow(targets, word_ids))
