"""Word2vec's continuous bag of words (Mikolov et al. 2013, https://arxiv.org/abs/1301.3781): static vectors.

Shapes: B batch, T positions, m size of a vector, D = 2 m size of the layers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.folder import Rate, Size
from pipeline.models.inputs import Inputs, SpecialTokens, padded, rows_of
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.output import Output
from pipeline.models.losses import Loss
from pipeline.models.outputs import Encoded, mean_of
from pipeline.tokenization.base import Tokenizer

STD = 0.1  # of vectors at the start


class CbowConfig(TypedDict):
    """The keys of `config.json` that are read."""

    vocab_size: Size
    embedding_size: Size
    window: Size
    max_length: Size
    dropout_prob: Rate


class Cbow(Encoder):
    """A token from the mean of the vectors around it: softmax(b + W mean(x)). A token has one vector, wherever it is.

    A neighbor k places away has the weight 1 - (k - 1) / n, which word2vec's random windows give it on average; special
    tokens, masks among them, have none. So a masked LM trains it: the softmax is over the whole vocabulary, where
    word2vec has a tree or a few wrong tokens. A head sees both: [x; mean(x)].

    Args:
        tokenizer: its length is V.
        embedding_size: m, width of the vector of a token.
        window: n, how many tokens to either side are neighbors.
        max_length: most tokens of a row.
        dropout: rate on the vectors.
        next_sentence: false: it has no head for it.

    Raises:
        UserError: a tokenizer of another scheme than wordpiece.
    """

    model_type = "cbow"
    scoring = "masked"
    context = ("full",)
    special = SpecialTokens(prefix=1, between=1, suffix=1)
    schema = CbowConfig
    pretraining_tensors = lm_head_tensors = ("output.",)
    joint_pairs = False

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        embedding_size: int,
        window: int,
        max_length: int,
        dropout: float,
        next_sentence: bool = False,
    ) -> None:
        super().__init__()
        assert not next_sentence  # an objective asks for what `offers` has
        if tokenizer.scheme != "wordpiece":
            raise UserError(f"CBOW needs a tokenizer of scheme wordpiece, not {tokenizer.scheme}.")
        if window < 1:
            raise UserError(f"window is {window}; it must be at least 1.")
        self.tokenizer, self.size, self.max_length, self.window = tokenizer, 2 * embedding_size, max_length, window
        self.config = {
            "architectures": ["Cbow"],
            "model_type": self.model_type,
            "vocab_size": len(tokenizer),
            "embedding_size": embedding_size,
            "window": window,
            "max_length": max_length,
            "dropout_prob": dropout,
        }
        self.embedding = nn.Embedding(len(tokenizer), embedding_size)
        nn.init.normal_(self.embedding.weight, std=STD)
        self.dropout = Dropout(dropout)
        self.output = Output("full", size=embedding_size, embedding_size=embedding_size, vocab_size=len(tokenizer))
        ordinary = torch.ones(len(tokenizer), dtype=torch.bool).index_fill_(0, torch.tensor(tokenizer.special_ids), 0)
        self.register_buffer("ordinary", ordinary, persistent=False)
        self.ordinary: Tensor

    @property
    def reach(self) -> int:
        return self.window + 1

    def forward(self, batch: Inputs, state: None = None) -> Encoded:
        """`input_ids`, `mask` (B, T) -> [x; 0] and [x; mean(x)], (B, T, D)."""
        ids, mask = batch["input_ids"], batch["mask"]
        x = self.dropout(self.embed(batch))
        around = neighbors(mask & self.ordinary[ids], self.window) @ x
        return Encoded(layers=[F.pad(x, (0, x.shape[-1])), torch.cat([x, around], -1)], mask=mask, input_ids=ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V), of the mean alone."""
        return self.output.logits(self.around(hidden), self.embedding.weight)

    def token_loss(self, hidden: Tensor, labels: Tensor) -> Loss:
        return self.output.token_loss(self.around(hidden), labels, self.embedding.weight)

    def around(self, hidden: Tensor) -> Tensor:
        """[x; mean(x)] (..., D) -> mean(x) (..., m)."""
        return hidden[..., self.size // 2 :]

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embedding

    @property
    def output_embedding(self) -> nn.Parameter | None:
        return self.output.weight

    def pooled(self, encoded: Encoded) -> Tensor:
        """The mean of the top layer over the tokens."""
        return mean_of(encoded.layers[-1], encoded.mask)

    @property
    def num_layers(self) -> int:
        return 2

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return [list(self.embedding.parameters()), []]

    def collate(self, texts: Sequence[Any]) -> Inputs:
        """[CLS] a [SEP] or [CLS] a [SEP] b [SEP], see `rows_of`."""
        cls, sep, pad = (self.tokenizer.id(role) for role in ("cls", "sep", "pad"))
        return padded(rows_of(texts, begin=[cls], between=[sep], end=[sep], max_length=self.max_length), pad=pad)

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        return {"embedding.weight": (config["vocab_size"], config["embedding_size"])}


def neighbors(known: Tensor, window: int) -> Tensor:
    """Which positions (B, T) have a vector -> the weights of neighbors (B, T, T): rows with the sum 1, or 0 of none."""
    place = torch.arange(known.shape[1], device=known.device)
    distance = (place[:, None] - place).abs()
    weights = (1 - (distance - 1) / window).clamp(min=0).masked_fill(distance == 0, 0) * known[:, None]
    return weights / weights.sum(-1, keepdim=True).clamp(min=1 / window)
