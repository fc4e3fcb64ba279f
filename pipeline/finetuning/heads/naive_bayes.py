"""One class for a text by Bayes' rule: a model a label that counts its texts (Lewis 1998; Peng et al. 2004)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.errors import UserError
from pipeline.finetuning.features import Feature
from pipeline.finetuning.heads.base import Head
from pipeline.finetuning.heads.sentence import SentenceHead
from pipeline.finetuning.options import HeadOptions
from pipeline.models.base import Encoder, Learning
from pipeline.models.inputs import Inputs
from pipeline.models.outputs import Encoded
from tasks.base import Prediction


class NaiveBayesHead(Head):
    """log P(label | text) = log P(label) + log P(text | label) - log P(text).

    P(text | label) is of the tokens alone, each given that the text goes on: the length of a text is no evidence, so
    that the beginning of one is classified as well. The texts of a pair are independent of each other, given the label.
    With order 1 and add-k this is multinomial naive Bayes.

    Args:
        encoder: has the tokenizer and the settings of the models; counts nothing itself.
        outputs: C, the number of labels.
    """

    learning: ClassVar[Learning] = "counting"
    replaces: ClassVar[str | None] = "sentence"

    collate = SentenceHead.collate
    loss = SentenceHead.loss
    answer = SentenceHead.answer

    def __init__(self, encoder: Encoder, *, outputs: int, options: HeadOptions, bias: bool = True) -> None:
        super().__init__()
        self.mix = None
        models = (encoder.from_config(encoder.config, encoder.tokenizer) for _ in range(outputs))
        self.models: Sequence[Encoder] = nn.ModuleList(models)  # type: ignore[assignment]
        self.log_prior = torch.full((outputs,), -np.log(outputs), dtype=torch.float64)
        special = encoder.tokenizer.special
        self.boundaries = torch.tensor(sorted({encoder.tokenizer.id(role) for role in special if role != "unk"}))

    def fit(self, features: Sequence[Feature], labels: Sequence[int]) -> int:
        """Counts the texts of each label; returns how many n-grams are stored."""
        texts: list[list[np.ndarray]] = [[] for _ in self.models]
        for feature, label in zip(features, labels, strict=True):
            parts = feature.ids if isinstance(feature.ids, tuple) else (feature.ids,)
            texts[label] += [np.asarray(part, dtype=np.int64) for part in parts]
        stored = 0
        for model, own in zip(self.models, texts, strict=True):
            if own:
                stored += model.fit(np.concatenate(own), np.cumsum([0, *map(len, own)]))
        counts = np.bincount(labels, minlength=len(self.models))
        # A label that training does not have is unlikely, not impossible: as if it had half a text.
        self.log_prior = torch.from_numpy(np.log(np.maximum(counts, 0.5) / len(labels)))
        return stored

    @property
    def counted(self) -> Tensor:
        """(C,) bool: the labels whose model has counted anything."""
        return torch.tensor([bool(model.export_state()) for model in self.models])

    def forward(self, encoder: Encoder, batch: Inputs, encoded: Encoded) -> Tensor:
        """-> log-probabilities of the labels (B, C), float64."""
        evidence = batch["mask"] & ~torch.isin(batch["input_ids"], self.boundaries)
        scores = [(model.inner_log_probs(batch, encoded) * evidence).sum(-1) for model in self.models]
        return (torch.stack(scores, -1) + self.log_prior).log_softmax(-1)

    def decode(self, outputs: Tensor, batch: Inputs) -> list[Prediction]:
        # To a model that has counted nothing all tokens are alike: on unusual ones it would beat those that have.
        outputs = outputs.masked_fill(~self.counted, -torch.inf).log_softmax(-1)
        rows = zip(outputs.argmax(-1).tolist(), outputs.exp().tolist(), strict=True)
        return [Prediction(label, probabilities) for label, probabilities in rows]

    # ------------------------------------------------------------------ folders

    def export_state(self) -> dict[str, Tensor]:
        """`log_prior` (C,), and the tensors of each label's model behind its number, as `0.1.tokens`."""
        named = ((number, model.export_state().items()) for number, model in enumerate(self.models))
        tensors = {f"{number}.{name}": value for number, items in named for name, value in items}
        return {"log_prior": self.log_prior, **tensors}

    def import_state(self, state: dict[str, Tensor]) -> None:
        prior = state.get("log_prior", torch.empty(0))
        if prior.shape != self.log_prior.shape:
            raise UserError(f"head.log_prior has {prior.numel()} numbers, but there are {len(self.models)} labels.")
        self.log_prior = prior.double()
        for number, model in enumerate(self.models):
            begin = f"{number}."
            model.import_state({name.removeprefix(begin): state[name] for name in state if name.startswith(begin)})
