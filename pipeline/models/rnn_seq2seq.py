"""Recurrent encoder-decoders: a vector for the whole source (Cho et al. 2014), attention by dot products (Luong et al.
2015), additive attention (Bahdanau et al. 2015).

Shapes: B batch, T positions of the source, U positions of the target, R rows that are written, E size of an embedding,
D model size, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline.errors import UserError, check_choice
from pipeline.models.encoder_decoder import EncoderDecoder, check_seq2seq
from pipeline.models.folder import Rate, Size
from pipeline.models.inputs import Inputs
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.output import Output
from pipeline.models.layers.recurrent import GATES, embedding_width, recurrent_layers, run_padded
from pipeline.models.layers.recurrent_decoder import AttentionKind, Cell, RecurrentDecoder
from pipeline.models.layers.source_attention import memory_of
from pipeline.models.losses import Loss
from pipeline.models.outputs import Encoded
from pipeline.tokenization.base import Tokenizer

OutputKind = Literal["tied", "full"]


class RnnSeq2SeqConfig(TypedDict):
    """The keys of `config.json` that are read."""

    vocab_size: Size
    cell: Cell
    attention: AttentionKind
    size: Size
    embedding_size: Size
    layers: Size
    max_length: Size
    output: OutputKind
    dropout_prob: Rate


class RnnSeq2Seq(EncoderDecoder):
    """A bidirectional recurrent encoder and a recurrent decoder (see `RecurrentDecoder`), with one embedding for both.

    As in `Recurrent` the embedding is multiplied by the root of E on its way in.

    Args:
        tokenizer: its length is V.
        cell: `gru` or `lstm`.
        attention: `none`, `dot` or `additive`.
        size: D, of the decoder's state and of an encoder layer's output, half of it from either side.
        layers: of the encoder, and of the decoder.
        max_length: longest source, and longest target, in tokens, special ones included.
        dropout: rate on embeddings, between layers and on what the output reads.
        embedding_size: E; None: D.
        output: `tied`: the embedding is the output matrix, behind a projection where E is not D; `full`: its own.
    """

    model_type = "rnn-seq2seq"
    offers: tuple[str, ...] = ("alignment",)
    shardable = False  # torch's layers read their weights where these were when they were made
    schema = RnnSeq2SeqConfig
    pretraining_tensors = lm_head_tensors = ("decoder.", "output.")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        cell: Cell,
        attention: AttentionKind,
        size: int,
        layers: int,
        max_length: int,
        dropout: float,
        embedding_size: int | None = None,
        output: OutputKind = "tied",
    ) -> None:
        super().__init__()
        check_seq2seq(tokenizer, "A recurrent encoder-decoder")
        if size % 2:
            raise UserError(f"size is {size}; it must be even: half of it reads from either side.")
        width = embedding_width(embedding_size, size)
        check_choice("cell", cell, get_args(Cell))
        check_choice("attention", attention, get_args(AttentionKind))
        self.tokenizer, self.size, self.max_length = tokenizer, size, max_length
        self.scale = width**0.5
        self.config = {
            "architectures": ["RnnSeq2Seq"],
            "model_type": self.model_type,
            "vocab_size": len(tokenizer),
            "cell": cell,
            "attention": attention,
            "size": size,
            "embedding_size": width,
            "layers": layers,
            "max_length": max_length,
            "output": output,
            "dropout_prob": dropout,
            "is_encoder_decoder": True,
        }
        if attention == "none":
            self.offers = ()  # nothing to align
        self.word_embedding = nn.Embedding(len(tokenizer), width)
        nn.init.normal_(self.word_embedding.weight, std=width**-0.5)
        self.layers = recurrent_layers(cell, width, size, layers, bidirectional=True)
        self.dropout = Dropout(dropout)
        self.decoder = RecurrentDecoder(
            cell, attention, size=size, embedding_size=width, layers=layers, dropout=self.dropout
        )
        self.output = Output(output, size=size, embedding_size=width, vocab_size=len(tokenizer))

    # ------------------------------------------------------------------ reading and writing

    def read(self, batch: Inputs) -> Encoded:
        """As the base's; the first layer are embeddings, with zeros up to D. `state` are the layers' last states from
        both sides, (B, D) each."""
        mask, x = batch["mask"], self.dropout(self.embed(batch) * self.scale)
        lengths = mask.sum(1).clamp(min=1).cpu()
        layers, ends = [F.pad(x, (0, self.size - x.shape[-1]))], []
        for index, layer in enumerate(self.layers):
            x, end = run_padded(cast(nn.RNNBase, layer), self.dropout(x) if index else x, lengths)
            h = end[0] if isinstance(end, tuple) else end
            layers.append(x)
            ends.append(torch.cat([h[0], h[1]], -1))
        return Encoded(layers=layers, mask=mask, input_ids=batch["input_ids"], state=ends)

    def begin(self, encoded: Encoded) -> list[Any]:
        """The source (its memory, or without attention its vector) and the states of the decoder's layers."""
        attention, top = self.decoder.attention, self.dropout(encoded.layers[-1])
        source = encoded.state[-1] if attention is None else memory_of(attention, top, encoded.mask)
        return [source, self.decoder.begin(encoded.state)]

    def decode(self, ids: Tensor, state: list[Any]) -> Tensor:
        hidden, state[1], _ = self.decoder(self._entered(ids), *state)
        return hidden

    def _entered(self, ids: Tensor) -> Tensor:
        """(R, U) -> (R, U, E): the decoder's input."""
        return self.dropout(self.embed({"input_ids": ids}) * self.scale)

    @torch.no_grad()
    def alignment(self, batch: Inputs) -> Tensor:
        """As the base's: the weights of the attention.

        Raises:
            UserError: there is none.
        """
        if self.decoder.attention is None:
            raise UserError("This encoder-decoder has attention: none, so there is no alignment.")
        return self.decoder(self._entered(batch["decoder_input_ids"]), *self.begin(self.read(batch)))[2]

    # ------------------------------------------------------------------ probabilities

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        return self.output.logits(hidden, self.word_embedding.weight)

    def token_loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Loss:
        return self.output.token_loss(hidden, labels, self.word_embedding.weight, smoothing=smoothing)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.word_embedding

    @property
    def output_embedding(self) -> nn.Parameter | None:
        return self.output.weight

    # ------------------------------------------------------------------ layers and folder

    @property
    def num_layers(self) -> int:
        return 1 + len(self.layers)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The embedding, each layer of the encoder, the decoder."""
        above = [list(self.decoder.parameters())]
        return [list(self.word_embedding.parameters()), *(list(layer.parameters()) for layer in self.layers), *above]

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        size, width, last = config["size"], config["embedding_size"], config["layers"] - 1
        gates = GATES[config["cell"]]
        return {
            "word_embedding.weight": (config["vocab_size"], width),
            f"layers.{last}.weight_ih_l0": (gates * size // 2, size if last else width),
            f"decoder.layers.{last}.weight_hh_l0": (gates * size, size),
            "decoder.readout.weight": (size, 2 * size + width),
        }
