"""What all heads share: a view of the encoder's layers, dropout, a linear layer.

Shapes: B batch, T positions, D size of the encoder, N size of what the linear layer sees, C outputs, W words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from pipeline.finetuning.features import Cut, Feature, cut_texts
from pipeline.finetuning.heads.scalar_mix import ScalarMix
from pipeline.finetuning.options import HeadOptions, Pair
from pipeline.models.base import Encoder, Learning
from pipeline.models.inputs import Inputs, flatten_pairs, of_two_lengths, one_side
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.recurrent import run_padded
from pipeline.models.losses import Loss
from pipeline.models.outputs import Encoded, in_turn
from tasks.base import Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Settings of the recipe that some heads take (see Head.takes) -> what a head that does not says of them.
REFUSED = {
    "layers": "layers is for heads on an encoder's layers, and this task's head has none.",
    "lstm": "lstm is for heads on an encoder's layers, and this task's head has none.",
    "pair": "pair is for pairs of texts, and this task has none.",
    **dict.fromkeys(("crf", "words"), "crf and words are for tagging: a single label has neither sequence nor words."),
    "class_weights": "class_weights is for classes, and this task has none.",
    "label_smoothing": "label_smoothing is for classes and tokens, and this task has none.",
}


class Head(nn.Module):
    """What answers one kind of task on an encoder; most are a network, see LinearHead.

    Attributes:
        by_word: whether it reads lists of words instead of texts.
        windows: what it reads in windows where it is too long, as `A sentence`; None: it reads a part of a long text.
        readings: how it can read pairs of texts (see HeadOptions); the second by an encoder that reads them one by one.
        requires: how its encoder must score, as `seq2seq`; None: it reads any.
        tag: the name of what it does on the Hugging Face hub.
        layout: `sentence`, `token` or `span`: which class of transformers has such a head, see `Encoder.hf_heads`.
        hf_config: what `config.json` must say there.
        takes: settings of the recipe that not all heads have, see REFUSED.
        learning: how it learns, as its encoder does (see Encoder).
        replaces: the head whose tasks it takes over for encoders that learn as it does; None: a task names it.
        mix: the scalar mix of layers that it sees; None: it has none.
        thorough: whether `decode` may take its time, as in a test; a validation between training steps may not.
    """

    by_word: ClassVar[bool] = False
    windows: ClassVar[str | None] = None
    readings: ClassVar[tuple[Pair, ...]] = ("joined", "compared", "attended")
    tag: ClassVar[str] = "text-classification"
    requires: ClassVar[str | None] = None
    layout: ClassVar[str] = "sentence"
    hf_config: ClassVar[dict[str, Any]] = {}
    takes: ClassVar[frozenset[str]] = frozenset()
    learning: ClassVar[Learning] = "gradient"
    replaces: ClassVar[str | None] = None
    mix: ScalarMix | None
    thorough: bool = True

    @classmethod
    def is_plain(cls, options: HeadOptions) -> bool:
        """Whether the head is a linear layer alone, as in transformers."""
        return False

    def export_state(self) -> dict[str, Tensor]:
        """Tensors by their names in the model folder."""
        return self.state_dict()

    def import_state(self, state: dict[str, Tensor]) -> None:
        """Takes over all tensors by their names in a model folder.

        Raises:
            RuntimeError: there are others, or some are missing.
        """
        self.load_state_dict(state)

    # ------------------------------------------------------------------ what each head says

    @property
    def reads_pooled(self) -> bool:
        """Whether all that it reads is what the encoder has pooled: a subclass that reads more says no."""
        return False

    def encoded(self, encoder: Encoder, batch: Inputs, *, whole: bool = True) -> Encoded:
        """What of the encoder it reads.

        Args:
            whole: the top layer at all positions, also where the head reads only some.
        """

        def read(rows: Inputs) -> Encoded:
            asked = encoder.pooled_positions(rows["mask"]) if self.reads_pooled and not whole else None
            return encoder(encoder.asked(rows, asked))

        if batch["mask"].ndim == 2 or not of_two_lengths(batch):
            return read(flatten_pairs(batch))
        # Side by side: questions are not padded to the length of the texts that they are about.
        return in_turn(read(one_side(batch, 0)), read(one_side(batch, 1)), flatten_pairs(batch))

    @classmethod
    def features(cls, encoder: Encoder, texts: Sequence[Any], *, max_length: int, cut: Cut) -> list[Feature]:
        """Texts as it reads them: a feature each, or several windows, of at most `max_length` positions.

        Args:
            cut: which part of a longer text is kept, of heads without windows.
        """
        return cut_texts(encoder, texts, max_length=max_length, cut=cut)

    @classmethod
    def inputs(cls, encoder: Encoder, features: Sequence[Feature]) -> Inputs:
        """Features as a padded batch, with what `forward` needs beside."""
        return encoder.collate_for_head([feature.ids for feature in features])

    @classmethod
    def collate(cls, encoder: Encoder, labels: Sequence[Any], features: Sequence[Feature]) -> tuple[Tensor, Tensor]:
        """Labels of the texts of a batch -> a tensor with a row for each feature, and the number of predictions ()."""
        raise NotImplementedError

    @classmethod
    def label_note(cls, encoder: Encoder, labels: Sequence[Any]) -> str | None:
        """What the report says of labels that it cannot give, as too long ones."""
        return None

    def forward(self, encoder: Encoder, batch: Inputs, encoded: Encoded) -> Tensor:
        """-> outputs: (B, C) of texts, (B, W, C) of words."""
        raise NotImplementedError

    def loss(self, outputs: Tensor, labels: Tensor, **options: Any) -> Loss:
        """The loss that is trained on; `labels` as `collate` gives them, or rows of them.

        Args:
            options: of training alone: `weights` (C,) and `smoothing`, for heads that take them.
        """
        raise NotImplementedError

    def decode(self, outputs: Tensor, batch: Inputs) -> list[Prediction]:
        """The label of each row of a batch."""
        raise NotImplementedError

    @staticmethod
    def join(parts: list[Prediction], features: list[Feature], text: Any) -> Prediction:
        """The predictions about the features of a text -> that about the text."""
        return parts[0]

    def generation(self, encoder: Encoder) -> dict[str, Any] | None:
        """How transformers' `generate` is to do what this head does: `generation_config.json`. None: it cannot."""
        return None

    def plots(self, encoder: Encoder, features: Sequence[Feature]) -> dict[str, Figure]:
        """What a model that has been trained shows of some texts, by the names of the plots."""
        return {}

    # ------------------------------------------------------------------ predict

    def read(self, text: Any) -> Any:
        """A text, as a user gives it -> as the task reads it."""
        return text.strip() if isinstance(text, str) else tuple(map(str.strip, text))

    def answer(self, text: Any, prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
        """What `predict` says of a text.

        Args:
            names: of the outputs.
        """
        raise NotImplementedError


class LinearHead(Head):
    """A linear layer on the encoder's layers.

    Args:
        encoder: gives the sizes.
        outputs: C, numbers for each text or word.
        options: `dropout` is that before the linear layer. `mix`: see a scalar mix of all layers instead of the top
            one: for a frozen encoder, whose top layer was shaped by pretraining alone. `lstm`: cells of a biLSTM in
            each direction between encoder and head (Peters et al. 2018, 3.3); 0: none.
        bias: of the linear layer.
        seen: how many numbers the linear layer sees; None: N.
    """

    def __init__(
        self, encoder: Encoder, *, outputs: int, options: HeadOptions, bias: bool = True, seen: int | None = None
    ) -> None:
        super().__init__()
        self.options, lstm = options, options.lstm
        self.mix = ScalarMix(encoder.num_layers, dropout=options.mix_dropout) if options.mix else None
        self.lstm = nn.LSTM(encoder.size, lstm, batch_first=True, bidirectional=True) if lstm else None
        self.dropout = Dropout(options.dropout)
        self.classifier = nn.Linear(seen or self.size_of(encoder, options), outputs, bias=bias)
        nn.init.normal_(self.classifier.weight, std=0.02)
        if bias:
            nn.init.zeros_(self.classifier.bias)

    @classmethod
    def is_plain(cls, options: HeadOptions) -> bool:
        """Whether the head is a linear layer alone, as in transformers."""
        return not (options.mix or options.lstm)

    @staticmethod
    def size_of(encoder: Encoder, options: HeadOptions) -> int:
        """N: the size of a token's vector, see `hidden`."""
        return 2 * options.lstm or encoder.size

    def hidden(self, encoded: Encoded) -> Tensor:
        """(B, T, N): the top layer or the mix of all, through the biLSTM where there is one."""
        x = encoded.layers[-1] if self.mix is None else self.mix(encoded.layers)
        if self.lstm is None:
            return x
        return run_padded(self.lstm, self.dropout(x), encoded.mask.sum(1).cpu())[0]
