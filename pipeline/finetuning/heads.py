"""The small networks that a task puts on an encoder."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.finetuning.crf import Crf
from pipeline.models.base import Encoder
from pipeline.models.inputs import Batch
from pipeline.models.layers.dropout import Dropout
from pipeline.models.losses import Loss, classification_loss
from pipeline.models.outputs import Encoded, gather_words

Decision = tuple[Tensor, Tensor]  # labels and probabilities of one row


class ScalarMix(nn.Module):
    """gamma * sum_k softmax(w)_k * layer_k (Peters et al. 2018, equation 1).

    Args:
        layers: how many layers are mixed.
        dropout: rate at which a layer is left out of a training step's mix, so that none is relied on alone.
    """

    def __init__(self, layers: int, *, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def shares(self) -> dict[str, float]:
        """What each layer counts, and gamma."""
        shares = {f"layer_{k}": float(w) for k, w in enumerate(self.weights.detach().softmax(0))}
        return {**shares, "gamma": float(self.gamma.detach())}

    def forward(self, layers: list[Tensor]) -> Tensor:
        """[(B, T, D)] -> (B, T, D)."""
        weights: Tensor = self.weights
        if self.training and self.dropout:
            out = torch.rand(len(weights), device=weights.device) < self.dropout
            weights = weights.masked_fill(out & ~out.all(), -1e9)  # not all of them
        return self.gamma * torch.einsum("k,kbtd->btd", weights.softmax(0), torch.stack(layers))


class Head(nn.Module):
    """What all heads have: a way to see the encoder's layers, dropout, a linear layer.

    Args:
        encoder: gives the sizes.
        classes: C, number of labels.
        dropout: before the linear layer.
        mix: see a scalar mix of all layers instead of the top one: for a frozen encoder, whose top layer was shaped
            by pretraining alone.
        mix_dropout: of the scalar mix.
        lstm: cells of a biLSTM in each direction between encoder and head (Peters et al. 2018, 3.3); 0: none.
        times: how many vectors of a text the linear layer sees side by side.
        bias: of the linear layer.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        classes: int,
        dropout: float,
        mix: bool,
        mix_dropout: float,
        lstm: int,
        times: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.mix = ScalarMix(encoder.num_layers, dropout=mix_dropout) if mix else None
        self.lstm = nn.LSTM(encoder.size, lstm, batch_first=True, bidirectional=True) if lstm else None
        self.dropout = Dropout(dropout)
        self.classifier = nn.Linear((2 * lstm or encoder.size) * times, classes, bias=bias)
        nn.init.normal_(self.classifier.weight, std=0.02)
        if bias:
            nn.init.zeros_(self.classifier.bias)

    def hidden(self, encoded: Encoded) -> Tensor:
        """(B, T, N): the top layer or the mix of all, through the biLSTM where there is one."""
        x = encoded.layers[-1] if self.mix is None else self.mix(encoded.layers)
        if self.lstm is None:
            return x
        lengths = encoded.mask.sum(1).cpu()
        # Autocast runs cuDNN's LSTM in float16, whatever its own type; that would need the loss scaled.
        with torch.autocast("cuda", enabled=False) if x.is_cuda else contextlib.nullcontext():
            x = self.dropout(x.float() if x.is_cuda else x)
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]

    def forward(self, encoder: Encoder, batch: Batch, encoded: Encoded) -> Tensor:
        """-> logits: (B, C) of texts, (B, W, C) of words."""
        raise NotImplementedError

    def loss(self, logits: Tensor, labels: Tensor, **options: Any) -> Loss:
        """Cross entropy, or what the head has in its place; `labels` are (B,) or (B, W), -1 where no word is."""
        raise NotImplementedError

    def decide(self, logits: Tensor, batch: Batch) -> list[Decision]:
        """For each row the best labels and all probabilities."""
        raise NotImplementedError


class SentenceHead(Head):
    """One label for a text, or for a pair of texts.

    It sees the encoder's own pooled representation when that is trained; a mix or a biLSTM as the mean over tokens.
    """

    def forward(self, encoder: Encoder, batch: Batch, encoded: Encoded) -> Tensor:
        """-> logits (B, C)."""
        vector = self.represent(encoder, encoded)
        if batch["mask"].ndim == 3:  # pairs, whose texts were read apart
            vector = compare(*vector.unflatten(0, (-1, 2)).unbind(1))
        return self.classifier(self.dropout(vector))

    def represent(self, encoder: Encoder, encoded: Encoded) -> Tensor:
        """(B, N)."""
        if self.mix is None and self.lstm is None:
            return encoder.pooled(encoded)
        mask = encoded.mask[..., None]
        return (self.hidden(encoded) * mask).sum(1) / mask.sum(1)

    def loss(self, logits: Tensor, labels: Tensor, **options: Any) -> Loss:
        return classification_loss(logits, labels, **options)

    def decide(self, logits: Tensor, batch: Batch) -> list[Decision]:
        """Label () and probabilities (C,) of each row."""
        return list(zip(logits.argmax(-1), logits.float().softmax(-1), strict=True))


class TokenHead(Head):
    """One label for each word, from the first of its pieces or their mean.

    Args:
        words: `first` (Devlin et al. 2018, 5.3) or `mean`.
        crf: score whole sequences of tags with a CRF.
    """

    def __init__(self, encoder: Encoder, *, words: Literal["first", "mean"], crf: bool, **options: Any) -> None:
        super().__init__(encoder, **options)
        self.words = words
        self.crf = Crf(options["classes"]) if crf else None

    def forward(self, encoder: Encoder, batch: Batch, encoded: Encoded) -> Tensor:
        """-> logits (B, W, C) of the words that `word_of` (B, T) names."""
        vectors, _ = gather_words(self.hidden(encoded), batch["word_of"], how=self.words)
        return self.classifier(self.dropout(vectors))

    def loss(self, logits: Tensor, labels: Tensor, **options: Any) -> Loss:
        """`labels` (B, W) or wider, -1 where no word is; a part of a batch may have fewer words than the whole."""
        labels = labels[:, : logits.shape[1]]
        asked = labels >= 0
        loss = classification_loss(logits[asked], labels[asked], **options)
        if self.crf is None:
            return loss
        with torch.autocast(logits.device.type, enabled=False):
            total = -self.crf.log_likelihood(logits.float(), labels, asked).sum()
        return Loss(total, loss.count, loss.correct)

    def decide(self, logits: Tensor, batch: Batch) -> list[Decision]:
        """Labels (W,) and probabilities (W, C) of the words of each row.

        With a CRF the best sequence, and the marginals; the tag of the best sequence need not be the likeliest one.
        """
        counts = batch["word_of"].amax(1) + 1
        logits = logits.float()
        if self.crf is None:
            tags, probabilities = logits.argmax(-1), logits.softmax(-1)
        else:
            there = torch.arange(logits.shape[1], device=logits.device) < counts[:, None]
            tags, probabilities = self.crf.decode(logits, there), self.crf.marginals(logits, there)
        return [(tags[i, :n], probabilities[i, :n]) for i, n in enumerate(counts.tolist())]


def compare(u: Tensor, v: Tensor) -> Tensor:
    """(B, 4 D): [u; v; |u - v|; u v] of texts that were read apart (Mou et al. 2016; Conneau et al. 2017)."""
    return torch.cat([u, v, (u - v).abs(), u * v], -1)
