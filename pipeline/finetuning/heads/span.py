"""The answer to a question in a text: two numbers for each token, whether the answer begins and whether it ends there.

Source: Devlin et al. 2018, 4.2, https://arxiv.org/abs/1810.04805.

Shapes: B batch, T positions, N size of a token's vector.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.finetuning.features import Cut, Feature
from pipeline.finetuning.heads.base import LinearHead
from pipeline.finetuning.heads.decomposable_attention import HIDDEN, AlignedTokens
from pipeline.finetuning.options import HeadOptions, Pair
from pipeline.models.base import Encoder
from pipeline.models.inputs import Inputs, sides
from pipeline.models.losses import Loss
from pipeline.models.outputs import Encoded
from pipeline.tokenization.base import Place
from tasks import questions
from tasks.base import Prediction
from tasks.questions import Answer

LONGEST = 30  # tokens of an answer
NEVER = torch.finfo(torch.float32).min


class SpanHead(LinearHead):
    """A linear layer on the tokens of a text that follows a question.

    On an encoder that reads them one by one, tokens of the text are first compared with those of the question
    (`attended`). A long text is read in windows, which keep the places of their tokens in the text (T, 2). Of a window
    without the answer the head learns that it begins and ends where the encoder pools a text (BERT's [CLS]), or at the
    last token: so the probabilities of answers in different windows can be compared.
    """

    tag: ClassVar[str] = "question-answering"
    layout: ClassVar[str] = "span"
    takes: ClassVar[frozenset[str]] = frozenset({"pair", "layers", "lstm"})
    windows: ClassVar[str | None] = "A text"
    readings: ClassVar[tuple[Pair, ...]] = ("joined", "attended")

    def __init__(self, encoder: Encoder, *, outputs: int, options: HeadOptions, bias: bool = True) -> None:
        attended, size = options.pair == "attended", self.size_of(encoder, options)
        super().__init__(encoder, outputs=outputs, options=options, bias=bias, seen=HIDDEN if attended else size)
        self.attention = AlignedTokens(size, dropout=options.dropout) if attended else None

    @classmethod
    def is_plain(cls, options: HeadOptions) -> bool:
        return super().is_plain(options) and options.pair != "attended"

    @classmethod
    def features(cls, encoder: Encoder, texts: Sequence[Any], *, max_length: int, cut: Cut) -> list[Feature]:
        """A question, of at most half of the positions, with each of the overlapping windows of its text."""
        room = most = max_length - encoder.special.count()
        if encoder.joint_pairs:
            room = max_length - encoder.special.count(2)
            most = room // 2
        distinct = list(dict.fromkeys(side for pair in texts for side in pair))  # a text has several questions
        tokens = dict(zip(distinct, encoder.tokenize_placed(distinct), strict=True))
        read = {text: widened(text, tokens[text][1]) for _, text in texts}
        spots = {text: np.asarray(places, np.int32).reshape(-1, 2) for text, places in read.items()}
        result = []
        for number, (asked, text) in enumerate(texts):
            question, ids = tokens[asked][0], tokens[text][0]
            first = question[:most]
            for part in windows(len(ids), room - len(first) if encoder.joint_pairs else room):
                cut_off = len(first) < len(question)
                result.append(Feature(number, (first, ids[part]), was_cut=cut_off, window=spots[text][part]))
        return result

    @classmethod
    def inputs(cls, encoder: Encoder, features: Sequence[Feature]) -> Inputs:
        """With `answerable` (B, T): which positions are the text's, without its question and special tokens."""
        batch = super().inputs(encoder, features)
        place = torch.arange(batch["mask"].shape[-1])
        begin = torch.tensor([_begin(encoder, feature) for feature in features])[:, None]
        count = torch.tensor([len(feature.window) for feature in features])[:, None]
        return {**batch, "answerable": (place >= begin) & (place < begin + count)}

    @classmethod
    def collate(cls, encoder: Encoder, labels: Sequence[Answer], features: Sequence[Feature]) -> tuple[Tensor, Tensor]:
        """Answers -> the positions of their first and last token in each window, (B, 2)."""
        ends = torch.tensor([_begin(encoder, one) + len(one.window) + encoder.special.suffix for one in features])
        mask = torch.arange(int(ends.max())) < ends[:, None]
        pooled = encoder.pooled_positions(mask)
        last = ends - 1 if encoder.special.suffix else torch.zeros_like(ends)
        nowhere = last if pooled is None else pooled % mask.shape[1]
        rows = nowhere[:, None].repeat(1, 2)
        for row, (answer, feature) in enumerate(zip(labels, features, strict=True)):
            begins, ends_of = feature.window.T
            inside = np.flatnonzero((begins < answer.end) & (ends_of > answer.begin))
            if len(inside) and begins[0] <= answer.begin and ends_of[-1] >= answer.end:
                rows[row] = _begin(encoder, feature) + torch.tensor([inside[0], inside[-1]])
        return rows, torch.tensor(len(rows))

    @classmethod
    def label_note(cls, encoder: Encoder, labels: Sequence[Answer]) -> str | None:
        answers = encoder.tokenize([answer.texts[0] for answer in labels])
        long = sum(len(ids) > LONGEST for ids in answers)
        return f"{long:,} answers of more than {LONGEST} tokens, which it does not give" if long else None

    def forward(self, encoder: Encoder, batch: Inputs, encoded: Encoded) -> Tensor:
        """-> logits (B, T, 2) of begin and end, on padding as low as can be."""
        vectors, mask = self.hidden(encoded), encoded.mask
        if self.attention is not None:
            (question, vectors), (asked, mask) = sides(vectors), sides(mask)
            vectors = self.attention(vectors, question, asked)
        return self.classifier(self.dropout(vectors)).float().masked_fill(~mask[..., None], NEVER)

    def loss(self, outputs: Tensor, labels: Tensor, **options: Any) -> Loss:
        """Cross entropy over positions without padding, the mean of begin and end: (B, T, 2) and (B, 2)."""
        return Loss(F.cross_entropy(outputs, labels, reduction="sum") / 2, len(labels))

    def decode(self, outputs: Tensor, batch: Inputs) -> list[Prediction]:
        """The first and last token of the likeliest answer, from the beginning of the window's text, and its nats."""
        there = batch["answerable"]
        begin, end = outputs.log_softmax(1).masked_fill(~there[..., None], NEVER).unbind(-1)
        ends = F.pad(end, (0, LONGEST - 1), value=NEVER).unfold(1, LONGEST, 1)  # (B, T, LONGEST): of each begin
        best, where = (begin[..., None] + ends).flatten(1).max(1)
        first = where // LONGEST - there.int().argmax(1)
        rows = zip(first.tolist(), (first + where % LONGEST).tolist(), best.tolist(), strict=True)
        return [Prediction(row, [math.exp(row[2])]) for row in rows]

    @staticmethod
    def join(parts: list[Prediction], features: list[Feature], text: tuple[str, str]) -> Prediction:
        """The likeliest answer of all windows, by its characters."""
        best, feature = max(zip(parts, features, strict=True), key=lambda part: part[0].label[2])
        low, high, _ = best.label
        found = (int(feature.window[low, 0]), int(feature.window[high, 1])) if len(feature.window) else (0, 0)
        return Prediction(questions.trimmed(text[1], *found), best.probabilities)

    def read(self, text: tuple[str, str]) -> tuple[str, str]:
        return text  # characters are counted as the user wrote them

    def answer(self, text: Any, prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
        return questions.answer(prediction)


def _begin(encoder: Encoder, feature: Feature) -> int:
    """The position of the first token of the window's text."""
    special = encoder.special
    return special.prefix + (len(feature.ids[0]) + special.between if encoder.joint_pairs else 0)


def widened(text: str, places: Sequence[Place]) -> list[Place]:
    """Places of tokens, with the characters beside them that no token covers, but spaces.

    A tokenizer can drop accents or zero-width spaces, and an answer has them all the same. They go to the token in
    front, else to the one behind.
    """
    begins, ends = [begin for begin, _ in places], [end for _, end in places]
    for number, (end, begin) in enumerate(zip([0, *ends], [*begins, len(text)], strict=True)):
        front, *more = re.split(r"\s", text[end:begin])
        if number:
            ends[number - 1] += len(front)
        if number < len(places):
            begins[number] -= len(more[-1] if more else "" if number else front)
    return list(zip(begins, ends, strict=True))


def windows(tokens: int, room: int) -> Iterator[slice]:
    """Windows of a text, of `room` tokens at most; an answer of LONGEST is whole in one, where half of the room is."""
    step = room - min(LONGEST - 1, room // 2)
    for begin in range(0, max(1, tokens - room + step), step):
        yield slice(begin, begin + room)
