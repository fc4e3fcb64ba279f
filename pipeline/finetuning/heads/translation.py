"""A text for a text: an encoder-decoder translates. The head has no weights of its own.

Shapes: B batch, T positions of the source, U positions of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.finetuning.features import Feature
from pipeline.finetuning.heads.base import Head
from pipeline.finetuning.options import HeadOptions
from pipeline.models.base import Encoder
from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.models.generation import Search
from pipeline.models.inputs import Inputs
from pipeline.models.losses import Loss
from pipeline.models.outputs import Encoded
from pipeline.tokenization.base import printable
from tasks.base import Prediction
from tasks.plots import alignments

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def longest(source: int) -> int:
    """Tokens that a translation may have, of a source of so many; a short one, as `OK`, may need many more."""
    return max(2 * source + 10, source + 50)


@dataclass
class Sources:
    """What the loss and the search of a batch begin with."""

    model: EncoderDecoder
    batch: Inputs
    encoded: Encoded


class TranslationHead(Head):
    """Trains the decoder on targets (teacher forcing), and finds translations by beam search.

    Args:
        encoder: an encoder-decoder; its languages become those that the columns of the task name.

    Raises:
        UserError: it is none, or has no token for such a language.
    """

    tag: ClassVar[str] = "translation"
    requires: ClassVar[str | None] = "seq2seq"
    takes: ClassVar[frozenset[str]] = frozenset({"label_smoothing"})

    def __init__(self, encoder: Encoder, *, outputs: int, options: HeadOptions, bias: bool = True) -> None:
        super().__init__()
        self.check_encoder(encoder)
        if options.mix:
            raise UserError("Translation has no head of its own to train: an arm with a frozen encoder learns nothing.")
        self.options, self.mix = options, None
        cast(EncoderDecoder, encoder).set_languages(*options.languages)

    def encoded(self, encoder: Encoder, batch: Inputs, *, whole: bool = True) -> Encoded:
        return cast(EncoderDecoder, encoder).read(batch)

    @classmethod
    def collate(cls, encoder: Encoder, labels: Sequence[str], features: Sequence[Feature]) -> tuple[Tensor, Tensor]:
        """Targets -> token ids with their end (B, U), -1 on padding; too long a target loses its end."""
        model = cast(EncoderDecoder, encoder)
        ids = model.collate_targets(model.target_ids(labels))["labels"]
        return ids, (ids >= 0).sum()

    @classmethod
    def check_encoder(cls, encoder: Encoder) -> None:
        """Raises: UserError, it is no encoder-decoder."""
        if encoder.scoring != cls.requires:
            raise UserError(
                f"Translation needs an encoder-decoder, as transformer or bart; {encoder.model_type} is none."
            )

    @classmethod
    def label_note(cls, encoder: Encoder, labels: Sequence[str]) -> str | None:
        cls.check_encoder(encoder)
        model = cast(EncoderDecoder, encoder)
        most = model.max_length - len(model.target_prefix) - 1
        long = sum(len(ids) > most for ids in model.target_ids(labels))
        return f"{long:,} targets cut to {model.max_length} tokens" if long else None

    def forward(self, encoder: Encoder, batch: Inputs, encoded: Encoded) -> Any:
        return Sources(cast(EncoderDecoder, encoder), batch, encoded)

    def loss(self, outputs: Any, labels: Tensor, **options: Any) -> Loss:
        """Cross entropy of the targets' tokens; `smoothing` spreads a share of the probability over all tokens."""
        model, there = outputs.model, labels >= 0
        batch = {**outputs.batch, "decoder_input_ids": model.shifted(labels)}
        hidden = model.teacher_forced(batch, outputs.encoded)[there]
        return model.token_loss(hidden, labels[there], smoothing=options.get("smoothing", 0.0))

    def decode(self, outputs: Any, batch: Inputs) -> list[Prediction]:
        model, options = outputs.model, self.options
        beam = options.beam if self.thorough else 1
        how = Search(beam=beam, length_penalty=options.length_penalty)
        most = [longest(size) for size in outputs.batch["mask"].sum(1).tolist()]  # whatever stands beside it
        rows = model.write(outputs.batch, how, outputs.encoded, most)
        return [Prediction(model.tokenizer.decode(row).strip()) for row in rows]

    def answer(self, text: Any, prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
        return {"translation": prediction.label}

    def generation(self, encoder: Encoder) -> dict[str, Any] | None:
        """The search of `decode`; but a text that does not end has as many tokens as the model has positions, since
        transformers knows no limit for each source."""
        model = cast(EncoderDecoder, encoder)
        return {
            "num_beams": self.options.beam,
            "length_penalty": self.options.length_penalty,
            "max_new_tokens": model.max_length - 1,
            "decoder_start_token_id": model.decoder_start,
            **{f"{name}_token_id": model.tokenizer.id(name) for name in ("bos", "pad", "eos")},
        }

    def plots(self, encoder: Encoder, features: Sequence[Feature]) -> dict[str, Figure]:
        """The alignment of some sources and their translations: how much attention a token pays to each of a source."""
        model = cast(EncoderDecoder, encoder)
        if "alignment" not in model.offers:
            return {}
        drawn: list[tuple[Tensor, list[str], list[str]]] = []
        decode = model.tokenizer.backend.decode
        for feature in features:
            batch = model.on_device(self.inputs(model, [feature]))
            with torch.no_grad():
                [target] = model.write(batch, Search(tokens=longest(batch["input_ids"].shape[1])))
                targets = model.on_device(model.collate_targets([target]))
                weights = model.alignment({**batch, **targets})[0].float().cpu()
            written, read = (
                [printable(decode([token], skip_special_tokens=False)) for token in ids.tolist()]
                for ids in (targets["labels"][0], batch["input_ids"][0])
            )
            drawn.append((weights, written, read))
        return {"alignment": alignments(drawn)}
