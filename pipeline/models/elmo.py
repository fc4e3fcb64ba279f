"""ELMo (Peters et al. 2018, https://arxiv.org/abs/1802.05365): characters, convolutions, two-way LSTM.

Shapes: B batch, T positions (words), W distinct words of a batch, C characters of a word, P projection of one
direction, D = 2 P model size, V output words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, cast

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.folder import Rate, Size
from pipeline.models.inputs import Inputs, SpecialTokens, cut_pair
from pipeline.models.layers.char_cnn import BEGIN, CHARACTERS, END, WIDEST, CharacterEncoder
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.lstm import Lstm, State, side_by_side
from pipeline.models.layers.recurrent import first_rows
from pipeline.models.layers.spelled_words import UNKNOWN, collate_words
from pipeline.models.losses import Loss
from pipeline.models.outputs import Encoded, greatest_of
from pipeline.tokenization.base import Place, Tokenizer
from pipeline.tokenization.spelled_words import MAX_CHARACTERS, split_words, word_ranges

MOST_HIGHWAYS = 1_000  # far above any in use
Clip = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ElmoConfig(TypedDict):
    """The keys of `config.json`."""

    vocab_size: Size
    character_size: Size
    filters: list[tuple[Size, Size]]
    highways: Annotated[int, Field(ge=0)]
    projection: Size
    cell: Size
    layers: Size
    max_length: Size
    max_characters: Size
    activation: Literal["relu", "tanh"]
    cell_clip: Clip | None
    projection_clip: Clip | None
    state: Literal["reset", "carry"]
    cutoffs: list[Size] | None
    dropout_prob: Rate
    skip_connections: NotRequired[bool]  # folders of 0.12 do not name it


class Elmo(Encoder):
    """Words spelled in characters, read by LSTMs in both directions, each of which predicts the next word.

    Args:
        tokenizer: of scheme `words`; its output words are V.
        character_size: width of the embedding of a character.
        filters: [[width, count], ...] of the convolutions over characters.
        highways: number of highway layers (Srivastava et al. 2015).
        projection: P, width of each direction; the encoder gives D = 2 P.
        cell: width of the LSTM cells, before the projection to P.
        layers: LSTM layers of each direction.
        max_length: longest text in words, both marks included.
        max_characters: longest word, both its marks included; longer ones are cut.
        dropout: rate on the input of each LSTM layer and on the top.
        cutoffs: ranks at which the adaptive softmax (Grave et al. 2017) cuts the output words; its classes fade in
            width from one cut to the next. None: no output layer.
        activation: behind the convolutions over characters.
        cell_clip: bound of the cells' values, as in the published models; None: no bound, and the fast kernel.
        projection_clip: bound of the projected outputs; None: no bound.
        skip_connections: add the input of each LSTM layer above the first to its output.
        state: `reset`: `encode` begins each row from zero, so a sentence has the same vectors in any batch;
            `carry`: it begins where the batch before ended, in both directions, as the original does. A state that is
            given to `forward` is continued by `carry` in both directions, by `reset` forward only.
    """

    model_type = "elmo"
    scoring = "bidirectional"
    context = ("left", "right")
    special = SpecialTokens(prefix=1, between=2, suffix=1)
    may_be_zero = ("highways",)
    token_input = "words"
    shared_inputs = ("characters",)
    shardable = False  # the softmax needs whole weights in float32
    schema = ElmoConfig
    pretraining_tensors = lm_head_tensors = ("output.",)
    joint_pairs = False

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        character_size: int,
        filters: list[list[int]],
        highways: int,
        projection: int,
        cell: int,
        layers: int,
        max_length: int,
        dropout: float,
        cutoffs: list[int] | None,
        max_characters: int = MAX_CHARACTERS,
        activation: Literal["relu", "tanh"] = "relu",
        cell_clip: float | None = None,
        projection_clip: float | None = None,
        skip_connections: bool = True,
        state: Literal["reset", "carry"] = "reset",
    ) -> None:
        super().__init__()
        if tokenizer.scheme != "words":
            raise UserError(f"ELMo needs a tokenizer of scheme words, not {tokenizer.scheme}.")
        if not filters or not all(0 < width <= WIDEST and count > 0 for width, count in filters):
            raise UserError(f"filters must be pairs of a width from 1 to {WIDEST} and a count, not {filters}.")
        if highways > MOST_HIGHWAYS:
            raise UserError(f"highways is {highways:,}; it must be at most {MOST_HIGHWAYS:,}.")
        least = max(3, *(width for width, _ in filters))  # begin, a character, end
        if max_characters < least:
            raise UserError(f"max_characters is {max_characters}; with these filters it must be at least {least}.")
        for name, clip in (("cell_clip", cell_clip), ("projection_clip", projection_clip)):
            if clip is not None and not clip > 0:
                raise UserError(f"{name} is {clip}; it must be above 0, or null for no bound.")
        if cutoffs is not None and cutoffs != sorted({c for c in cutoffs if c > 0}):
            raise UserError(f"cutoffs must be positive and rise, not {cutoffs}.")
        self.tokenizer, self.size, self.max_length = tokenizer, 2 * projection, max_length
        self.projection, self.max_characters, self.state = projection, max_characters, state
        self.skip_connections = skip_connections
        outputs = len(tokenizer.outputs) + 3
        self.config = {
            "architectures": ["Elmo"],
            "model_type": "elmo",
            "vocab_size": len(tokenizer),
            "output_size": outputs if cutoffs is not None else None,
            "character_size": character_size,
            "filters": filters,
            "highways": highways,
            "projection": projection,
            "cell": cell,
            "layers": layers,
            "max_length": max_length,
            "max_characters": max_characters,
            "activation": activation,
            "cell_clip": cell_clip,
            "projection_clip": projection_clip,
            "skip_connections": skip_connections,
            "state": state,
            "dropout_prob": dropout,
            "cutoffs": cutoffs,
        }
        self.characters = CharacterEncoder(
            character_size=character_size,
            filters=filters,
            highways=highways,
            projection=projection,
            activation=activation,
        )
        lstm = partial(Lstm, size=projection, cell=cell, cell_clip=cell_clip, projection_clip=projection_clip)
        self.forwards = nn.ModuleList(lstm() for _ in range(layers))
        self.backwards = nn.ModuleList(lstm() for _ in range(layers))
        self.dropout = Dropout(dropout)
        self.output = None if cutoffs is None else _adaptive_softmax(projection, outputs, cutoffs)

    # ------------------------------------------------------------------ words in, layers out

    def forward(self, batch: Inputs, state: list[State] | None = None) -> Encoded:
        """`characters` (W, C) of distinct words, `words` (B, T) rows of it, `mask` (B, T) -> layers.

        The first layer is the word alone, twice, so that all are D wide; then those of the LSTMs, forward half
        first. The states do not see the skip connections.

        Args:
            state: of each layer, forward and backward in turn. Row b begins where row b ended; of a batch with fewer
                rows the first ones, and rows that are new begin from zero.
        """
        mask, x = batch["mask"], self.embed(batch)
        layers = [torch.cat([x, x], -1)]
        turn = None if bool(mask.all()) else _reversed(mask)
        ahead, back = x, _turn(x, turn)
        before = None if state is None else [cast(State, first_rows(part, len(x))) for part in state]
        after: list[State] = []
        for index, (forwards, backwards) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            state_ahead = None if before is None else before[2 * index]
            state_back = None if before is None or not self.carries else before[2 * index + 1]
            assert isinstance(forwards, Lstm)
            assert isinstance(backwards, Lstm)
            (out_ahead, new_ahead), (out_back, new_back) = side_by_side(
                [forwards, backwards],
                [self.dropout(ahead), self.dropout(back)],
                [state_ahead, state_back],
                mask,
            )
            skip = self.skip_connections and index > 0
            ahead, back = (ahead + out_ahead, back + out_back) if skip else (out_ahead, out_back)
            layers.append(torch.cat([ahead, _turn(back, turn)], -1))
            after += [new_ahead, new_back]
        after = [(h.detach(), c.detach()) for h, c in after] if state is None else _with_other_rows(after, state)
        return Encoded(layers=layers, mask=mask, input_ids=batch["input_ids"], state=after)

    def embed(self, batch: Inputs) -> Tensor:
        """(B, T, P): each word alone; a word that a batch repeats goes through the convolutions once."""
        return F.embedding(batch["words"], self.characters(batch["characters"]))

    def texts_of(self, batch: Inputs) -> list[str]:
        letters = [bytes(i - 1 for i in row if 1 <= i <= 256) for row in batch["characters"].tolist()]
        spelled = [word.decode(errors="replace") for word in letters]
        rows = zip(batch["words"].tolist(), batch["mask"].tolist(), strict=True)
        return [" ".join(spelled[word] for word, there in zip(*row, strict=True) if there) for row in rows]

    @property
    def carries(self) -> bool:
        return self.state == "carry"

    def forget_between_batches(self) -> None:
        """State `reset` from now on."""
        self.state = self.config["state"] = "reset"

    def directions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Top layer (..., D) -> what the softmax sees of both directions, each (..., P)."""
        ahead, back = hidden.chunk(2, -1)
        return self.dropout(ahead), self.dropout(back)

    def token_losses(self, hidden: Tensor, labels: Sequence[Tensor]) -> list[Loss]:
        """One softmax for both directions (Peters et al. 2018, 3.1), in one pass over the predictions of both."""
        predicted = [label >= 0 for label in labels]
        chosen = torch.cat([half[mask] for half, mask in zip(self.directions(hidden), predicted, strict=True)])
        targets = torch.cat([label[mask] for label, mask in zip(labels, predicted, strict=True)])
        with torch.autocast(chosen.device.type, enabled=False):  # the library's layer does not take two types
            scores = self.softmax()(chosen.float(), targets).output.split([int(mask.sum()) for mask in predicted])
        return [Loss(-part.sum(), len(part)) for part in scores]

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., 2, V): log-probabilities of the next word forward and of the one before backward."""
        softmax = self.softmax()
        both = torch.stack(hidden.chunk(2, -1), -2)
        return softmax.log_prob(both.flatten(0, -2).float()).view(*both.shape[:-1], -1)

    def likeliest_next(self, hidden: Tensor) -> Tensor:
        """Top layer (N, D) -> the likeliest next word of each, (N,), faster than by `logits`."""
        return self.softmax().predict(hidden.chunk(2, -1)[0].float())

    def log_probs(self, batch: Inputs, targets: Tensor | None = None, encoded: Encoded | None = None) -> Tensor:
        """(B, T, 2): log p(word | all before it) and log p(word | all after it), 0 where there are none."""
        targets = batch["input_ids"] if targets is None else targets
        ahead, back = (encoded or self(batch)).layers[-1].chunk(2, -1)
        predicted = batch["mask"][:, 1:]
        softmax = self.softmax()
        scores = torch.zeros(*targets.shape, 2, device=targets.device)
        scores[:, 1:, 0][predicted] = softmax(ahead[:, :-1][predicted].float(), targets[:, 1:][predicted]).output
        scores[:, :-1, 1][predicted] = softmax(back[:, 1:][predicted].float(), targets[:, :-1][predicted]).output
        return scores

    def check_lm(self) -> None:
        super().check_lm()
        self.softmax()

    def softmax(self) -> nn.AdaptiveLogSoftmaxWithLoss:
        """Raises: UserError, there is none."""
        if self.output is None:
            raise UserError("This ELMo has no output layer: it gives vectors, not probabilities.")
        return self.output

    def pooled(self, encoded: Encoded) -> Tensor:
        """The greatest of the top layer over the words, in each feature (Conneau et al. 2017, 3.2.4)."""
        return greatest_of(encoded.layers[-1], encoded.mask)

    @property
    def num_layers(self) -> int:
        return 1 + len(self.forwards)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        groups = [list(self.characters.parameters())]
        for forwards, backwards in zip(self.forwards, self.backwards, strict=True):
            groups.append([*forwards.parameters(), *backwards.parameters()])
        return groups

    def units(self, ids: Sequence[int]) -> list[bytes]:
        """The words, in UTF-8, that tokens spell."""
        return split_words(np.asarray(ids, dtype=np.int64))

    def unit_places(self, ids: Sequence[int], places: Sequence[Place]) -> list[Place]:
        return [(places[low][0], places[high - 1][1]) for low, high in word_ranges(np.asarray(ids))]

    def unit_text(self, unit: bytes) -> str:
        return unit.decode(errors="replace")

    def unknown_words(self, units: Sequence[bytes]) -> list[str]:
        """Words that are all the same to the softmax."""
        outputs = self.tokenizer.outputs
        return [self.unit_text(word) for word in units if outputs.get(word, UNKNOWN) == UNKNOWN]

    def collate(self, texts: Sequence[Any]) -> Inputs:
        """<S> words </S>; a pair is one text after the other, each between marks; too long a pair loses words from the
        end of the longer text.
        """
        rows = []
        for text in texts:
            if isinstance(text, tuple):
                first, second = cut_pair(*text, room=self.max_length - self.special.count(2))
                row = [*first, END, BEGIN, *second]
            else:
                row = list(text[: self.max_length - self.special.count()])
            rows.append([BEGIN, *row, END])
        return collate_words(rows, self.tokenizer.outputs, max_characters=self.max_characters)

    # ------------------------------------------------------------------ folders

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        projection, width = config["projection"], sum(count for _, count in config["filters"])
        highways = {f"characters.highways.{config['highways'] - 1}.weight": (2 * width, width)}
        return {
            "characters.embedding.weight": (CHARACTERS + 1, config["character_size"]),
            "characters.project.weight": (projection, width),
            f"forwards.{config['layers'] - 1}.input.weight": (4 * config["cell"], projection),
            **(highways if config["highways"] else {}),
        }

    def saved_config(self) -> dict[str, Any]:
        """Without an output layer where it was never trained."""
        return {**self.config, "cutoffs": None, "output_size": None} if self.untrained else dict(self.config)


def _adaptive_softmax(size: int, outputs: int, cutoffs: list[int]) -> nn.AdaptiveLogSoftmaxWithLoss:
    inside = [cutoff for cutoff in cutoffs if cutoff < outputs - 1] or [max(1, outputs // 2)]
    return nn.AdaptiveLogSoftmaxWithLoss(size, outputs, inside, div_value=2.0)


def _reversed(mask: Tensor) -> Tensor:
    """Gather index (B, T) that reverses each row's tokens and leaves padding in place."""
    place = torch.arange(mask.shape[1], device=mask.device)
    turned = mask.sum(1, keepdim=True) - 1 - place
    return torch.where(turned >= 0, turned, place)


def _turn(x: Tensor, turn: Tensor | None) -> Tensor:
    """(B, T, D) with the words of each row reversed."""
    return x.flip(1) if turn is None else x.gather(1, turn[..., None].expand_as(x))


def _with_other_rows(after: list[State], before: list[State]) -> list[State]:
    """The states after a batch; rows that were not in it keep those from before. No gradient flows through them."""
    pairs = zip(after, before, strict=True)
    return [(_with_rest(h, old_h), _with_rest(c, old_c)) for (h, c), (old_h, old_c) in pairs]


def _with_rest(part: Tensor, before: Tensor) -> Tensor:
    return torch.cat([part.detach(), before[len(part) :].detach().to(part)])
