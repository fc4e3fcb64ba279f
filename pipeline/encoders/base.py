"""What every encoder is: tokens in, all layers and a mask out; saved as a folder of safetensors and JSON."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipeline import UserError
from pipeline.encoders.transformer import Dropout
from pipeline.folders import check_seal
from pipeline.tokenizer import Tokenizer

# What goes into an encoder: `mask` (B, T) bool; of BERT and GPT `input_ids` (B, T), of BERT `token_type_ids` (B, T), of
# GPT, where it matters, `documents` or `positions`; of ELMo `characters` of the words that occur, `words` (B, T),
# which of these stands where. Beside it what objectives and heads ask for: `labels`, `word_of` (B, T), `total/NAME`,
# `rows` (B,).
Batch = dict[str, Tensor]
Text = str | tuple[str, str] | list[str]


@dataclass
class Encoded:
    """What an encoder returns.

    Attributes:
        layers: [(B, T, D)] from the embeddings to the top.
        mask: (B, T) bool, true where a token stands, false on padding.
        input_ids: (B, T).
        logits: (B, T, V) when asked for; ELMo: (B, T, 2, V), forward and backward, as log-probabilities.
        words: (B, T) the word that a position belongs to, -1 for special tokens and padding; when the texts were
            lists of words.
    """

    layers: list[Tensor]
    mask: Tensor
    input_ids: Tensor
    logits: Tensor | None = None
    words: Tensor | None = None

    def by_word(self, layer: Tensor, *, how: Literal["first", "mean"]) -> tuple[Tensor, Tensor]:
        """A layer (B, T, D) -> one vector a word (B, W, D), and which of them are there (B, W).

        `first` takes the first piece of each word (Devlin et al. 2018, 5.3), `mean` the mean of its pieces. A word
        that was cut off has none.
        """
        assert self.words is not None, "only texts given as lists of words have words"
        return gather_words(layer, self.words, how=how)


def gather_words(layer: Tensor, words: Tensor, *, how: Literal["first", "mean"]) -> tuple[Tensor, Tensor]:
    """(B, T, D) and the word of each position (B, T), -1 for none -> as `Encoded.by_word`."""
    count = int(words.max()) + 1
    pieces = nn.functional.one_hot(words.clamp(min=0), max(count, 1)) * (words >= 0)[..., None]
    if how == "first":
        pieces = pieces * (pieces.cumsum(1) == 1)
    sums = pieces.to(layer.dtype).transpose(1, 2) @ layer
    numbers = pieces.sum(1)
    return sums / numbers.clamp(min=1)[..., None], numbers > 0


@dataclass
class Receipt:
    """Which tensors a folder gave to an encoder: nothing is left out in silence.

    Attributes:
        loaded: those of the encoder that the folder has.
        new: those that it has not, which keep their fresh weights.
        unused: those of the folder that the encoder has no place for.
    """

    loaded: list[str]
    new: list[str]
    unused: list[str]

    def __str__(self) -> str:
        return f"{len(self.loaded)} tensors loaded, {len(self.new)} new, {len(self.unused)} unused"


@dataclass
class HeadLayout:
    """How transformers keeps a linear head on an encoder.

    Attributes:
        architecture: its class.
        name: of the linear layer.
        bias: whether that has one.
        without: prefixes of tensors of the encoder that this class does not have.
        config: what else `config.json` must say.
    """

    architecture: str
    name: str
    bias: bool = True
    without: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)


def apart(batch: Batch) -> Batch:
    """Pairs (B, 2, T) as the rows (2 B, T) that an encoder reads, in one pass; another batch as it is."""
    if batch["mask"].ndim == 2:
        return batch
    return {name: value.flatten(0, 1) if value.ndim == 3 else value for name, value in batch.items()}


def check_texts(texts: Any) -> None:
    """Raises UserError for what is no list of texts: a string alone would be read letter by letter."""
    if isinstance(texts, str) or not all(isinstance(text, (str, tuple, list)) for text in texts):
        raise UserError('Texts come in a list, as ["one", "two"]: each a string, a pair (a, b) or a list of words.')


def left_to_first(first: int, second: int, room: int) -> int:
    """How many tokens the first text of a pair keeps: the end of the longer one goes first."""
    return min(first, max(room - second, (room + 1) // 2))


class Encoder(nn.Module):
    """Base of all encoders.

    Attributes:
        model_type: the name in `config.json` and of `MODEL=`.
        config: the content of `config.json`.
        tokenizer: the tokenizer whose ids the embedding knows.
        max_length: most positions that it takes.
        joins_pairs: whether a pair is one sequence with separators (BERT: Devlin et al. 2018, 3.2, with segment ids;
            GPT: Radford et al. 2018, 3.3), or two texts that are compared (ELMo).
    """

    model_type: ClassVar[str]
    joins_pairs: ClassVar[bool] = True
    config: dict[str, Any]
    tokenizer: Tokenizer
    max_length: int
    size: int
    memory: list[tuple[Tensor, Tensor]] | None = None  # what is carried from batch to batch, where something is

    @abstractmethod
    def forward(self, batch: Batch) -> Encoded:
        """`input_ids` (B, T), `mask` (B, T) and what else the encoder knows -> all layers."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Top layer (..., D) -> logits over the vocabulary (..., V)."""

    @abstractmethod
    def log_probs(self, batch: Batch, targets: Tensor | None = None) -> Tensor:
        """Log-probability of the token at each position, as this family of encoders gives it.

        Args:
            targets: (B, T) tokens asked for; None: those of the batch.

        Returns:
            (B, T) nats, 0 where the encoder cannot say. GPT: given all tokens before; BERT: given the whole
            batch, so that masks belong where `targets` are asked for; ELMo: (B, T, 2), given all words before,
            and given all words after.
        """

    @abstractmethod
    def pooled(self, encoded: Encoded) -> Tensor:
        """(B, D): the representation of a whole text, the head's input."""

    @property
    def head_layouts(self) -> dict[str, HeadLayout]:
        """`sentence` and `token` -> the class of transformers that has the same head, where there is one."""
        return {}

    def collate_for_head(self, texts: Sequence[Any]) -> Batch:
        """As `collate`; pairs of an encoder that does not join them are (B, 2, T), see `apart`."""
        if self.joins_pairs or not isinstance(texts[0], tuple):
            return self.collate(texts)
        both = self.collate([side for pair in texts for side in pair])
        return {name: value if name == "characters" else value.unflatten(0, (-1, 2)) for name, value in both.items()}

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @abstractmethod
    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Parameters from the embeddings to the top layer, for per-layer rates and unfreezing."""

    @abstractmethod
    def collate(self, texts: Sequence[Any]) -> Batch:
        """Token ids of texts or pairs (lists of ids, or pairs of such lists) as one padded batch."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any], tokenizer: Tokenizer) -> Encoder:
        """A new encoder of the architecture that `config.json` describes."""

    @abstractmethod
    def export_state(self) -> dict[str, Tensor]:
        """Tensors by their names in the encoder folder."""

    @abstractmethod
    def import_state(self, state: dict[str, Tensor]) -> Receipt:
        """Takes over tensors by their names in an encoder folder (ours or another's)."""

    def take_over(self, found: dict[str, Tensor], *, shown: Callable[[str], str] = str) -> tuple[list[str], list[str]]:
        """Copies tensors that have our names and layout already.

        Args:
            shown: our name -> the one that the user knows from the folder.

        Returns:
            Which of our tensors were loaded, and which stay new, as shown.

        Raises:
            UserError: a tensor of another shape.
        """
        loaded, new = [], []
        for name, value in self.state_dict().items():
            if name not in found:
                new.append(shown(name))
                continue
            if found[name].shape != value.shape:
                shapes = f"{tuple(found[name].shape)}, but config.json asks for {tuple(value.shape)}"
                raise UserError(f"{shown(name)} has shape {shapes}.")
            value.copy_(found[name])
            loaded.append(shown(name))
        return loaded, new

    def texts_of(self, batch: Batch) -> list[str]:
        """The rows of a batch as text, masks and special tokens included: to look at."""
        rows = zip(batch["input_ids"].tolist(), batch["mask"].tolist(), strict=True)
        kept = [[token for token, there in zip(*row, strict=True) if there] for row in rows]
        return [self.tokenizer.backend.decode(ids, skip_special_tokens=False) for ids in kept]

    def set_dropout(self, rate: float) -> None:
        """Another rate for all dropout of the encoder: fine-tuning wants some where pretraining had none."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.p = rate
        self.config.update({key: rate for key in self.config if key.endswith(("dropout_prob", "_pdrop"))})

    # ------------------------------------------------------------------ texts in, layers out

    def tokenize(self, texts: Iterable[Text]) -> list[Any]:
        """str -> ids; (str, str) -> (ids, ids); list of words -> ids of the words in a row. No special tokens."""
        texts = list(texts)
        parts = [part for text in texts if not isinstance(text, list) for part in _parts(text)]
        ids = iter(self.tokenizer.encode_batch(parts))
        result: list[Any] = []
        for text in texts:
            if isinstance(text, list):
                result.append([piece for word in self.word_pieces(text) for piece in word])
            else:
                pieces = [next(ids) for _ in _parts(text)]
                result.append((pieces[0], pieces[1]) if isinstance(text, tuple) else pieces[0])
        return result

    def word_pieces(self, words: Sequence[str]) -> list[list[Any]]:
        """What stands at the positions of each word of a list, as `collate` takes it; at least one."""
        return [list(pieces) for pieces in self.tokenizer.encode_words(words)]

    @torch.no_grad()
    def encode(self, texts: Sequence[Text], *, logits: bool = False, batch_size: int = 32) -> Encoded:
        """All layers for texts: strings, (str, str) pairs or lists of words; longer ones are cut at `max_length`.

        Runs in eval mode without gradients, in batches of similar length, and pads with zeros to the longest.

        Returns:
            Layers of shape (B, T, D), with B = len(texts) and T of the longest, special tokens included.

        Raises:
            UserError: no text, or something that is none.
        """
        if not texts:
            raise UserError("encode() was given no text.")
        check_texts(texts)
        ids = self.tokenize(texts)
        order = sorted(range(len(ids)), key=lambda i: count(ids[i]))
        aligned = all(isinstance(text, list) for text in texts)
        was_training = self.training
        self.eval()
        parts: list[tuple[list[int], Encoded]] = []
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            batch = {name: value.to(self.device) for name, value in self.collate([ids[i] for i in rows]).items()}
            encoded = self(batch)
            encoded = replace(encoded, logits=self.logits(encoded.layers[-1]) if logits else None)
            if aligned:
                encoded.words = self._words_of([texts[i] for i in rows], encoded.mask)
            parts.append((rows, encoded))
        self.train(was_training)
        return _gather(parts, pad=self.tokenizer.id("pad"))

    def _words_of(self, texts: Sequence[Any], mask: Tensor) -> Tensor:
        """(B, T): numbers of words; every encoder puts one special token in front and one behind."""
        words = torch.full(mask.shape, -1)
        for row, text in enumerate(texts):
            counts = torch.tensor([len(pieces) for pieces in self.word_pieces(text)], dtype=torch.long)
            numbers = torch.arange(len(counts)).repeat_interleave(counts)[: int(mask[row].sum()) - 2]
            words[row, 1 : len(numbers) + 1] = numbers
        return words.to(mask.device)

    # ------------------------------------------------------------------ folders

    def save(self, folder: Path, *, card: str | None = None) -> None:
        """Writes the encoder folder: config, weights, tokenizer, model card."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=2) + "\n")
        state = {name: value.detach().cpu().contiguous() for name, value in self.export_state().items()}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        self.tokenizer.save(folder, max_length=self.max_length)
        (folder / "README.md").write_text(card or f"# {self.model_type} encoder\n")


def _parts(text: Text) -> list[str]:
    return [text] if isinstance(text, str) else list(text)


def count(ids: Any) -> int:
    """Tokens of a text or of a pair."""
    return len(ids[0]) + len(ids[1]) if isinstance(ids, tuple) else len(ids)


def _gather(parts: list[tuple[list[int], Encoded]], *, pad: int) -> Encoded:
    """Batches of different lengths, in bucketed order -> one `Encoded` in the order of the texts."""
    length = max(encoded.mask.shape[1] for _, encoded in parts)
    order = torch.tensor([row for rows, _ in parts for row in rows]).argsort()

    def joined(tensors: list[Tensor], fill: float = 0) -> Tensor:
        shape = (0, 0) * (tensors[0].dim() - 2)
        padded = [nn.functional.pad(t, (*shape, 0, length - t.shape[1]), value=fill) for t in tensors]
        return torch.cat(padded)[order]

    outputs = [encoded for _, encoded in parts]
    logits = [encoded.logits for encoded in outputs if encoded.logits is not None]
    words = [encoded.words for encoded in outputs if encoded.words is not None]
    return Encoded(
        layers=[joined([encoded.layers[i] for encoded in outputs]) for i in range(len(outputs[0].layers))],
        mask=joined([encoded.mask for encoded in outputs]),
        input_ids=joined([encoded.input_ids for encoded in outputs], fill=pad),
        logits=joined(logits) if logits else None,
        words=joined(words, fill=-1) if words else None,
    )


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of an encoder folder. Nothing in it is ever run: it names sizes and one of our own encoders.

    Raises:
        UserError: no folder, no or damaged config, no weights.
    """
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder} of an encoder or model; make one, or name another (FROM=).")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            inside = next((folder / part for part in ("encoder", "model") if (folder / part).is_dir()), None)
            hint = f"; did you mean {inside}?" if inside else "."
            raise UserError(f"{folder} is no folder of an encoder or model: {name} is missing{hint}")
    check_seal(folder)
    try:
        config = json.loads((folder / "config.json").read_text())
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{folder / 'config.json'} is damaged: it is not JSON.") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"{folder / 'config.json'} does not name a model_type.")
    return config


def read_state(folder: Path) -> dict[str, Tensor]:
    try:
        return load_file(folder / "model.safetensors")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{folder / 'model.safetensors'} is damaged ({error}).") from None
