"""What every encoder is: tokens in, all layers and a mask out; saved as a folder of safetensors and JSON."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typing_extensions import NotRequired, TypedDict

from pipeline.errors import UserError
from pipeline.models import generation
from pipeline.models.layers.transformer import Dropout
from pipeline.models.losses import Loss
from pipeline.storage.checksums import check_seal
from pipeline.storage.validation import checked, read_json
from pipeline.tokenization.base import Tokenizer

Size = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]

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
    """How many tokens the first text of a pair keeps: the end of the longer one goes first.

    Of an odd room for two long texts the longer one, or the second of two as long, gets one token more, as in
    `longest_first` of Hugging Face's fast tokenizers.
    """
    half = room // 2 if first <= second else room - room // 2
    return min(first, max(room - second, half))


class SpecialTokens(NamedTuple):
    """How many special tokens a row has in front of its text, between the texts of a pair, and behind."""

    prefix: int
    between: int
    suffix: int

    def count(self, texts: int = 1) -> int:
        """Special tokens of a row of one text or two."""
        return self.prefix + self.between * (texts - 1) + self.suffix


Scoring = Literal["causal", "masked", "bidirectional"]
Side = Literal["left", "right", "full"]


class Encoder(nn.Module):
    """Base of all encoders. What one can do is said by its class: nothing else asks which class it is.

    Attributes:
        model_type: the name in `config.json` and of `MODEL=`.
        scoring: how it gives probabilities, and so which scorer prompting takes: of each token given those to its
            left (`causal`), given all others (`masked`), or given either side (`bidirectional`).
        context: what its output may depend on: the D features in as many equal parts, and for each part the side of
            the input that it sees beside the position itself. The audit's leak checks follow from it.
        special: how many special tokens a row has.
        offers: further capabilities that an objective may require: `next_sentence`.
        schema: of `config.json`, see validation.py.
        heads: prefixes of the tensors that no layer needs: what only pretraining and its probabilities use.
        lm_head: those of them that `logits` needs.
        untrained: tensors of the heads that were never trained, by their names in the folder: they were not in the
            folder that the encoder is from. They are random, and not saved.
        config: the content of `config.json`; `training_length` where it is known, the tokens of a row in pretraining.
        tokenizer: the tokenizer whose ids the embedding knows.
        max_length: most positions that it takes.
        joins_pairs: whether a pair is one sequence with separators (BERT: Devlin et al. 2018, 3.2, with segment ids;
            GPT: Radford et al. 2018, 3.3), or two texts that are compared (ELMo).
    """

    model_type: ClassVar[str]
    scoring: ClassVar[Scoring]
    context: ClassVar[tuple[Side, ...]]
    special: ClassVar[SpecialTokens]
    offers: ClassVar[tuple[str, ...]] = ()
    schema: ClassVar[Any]
    heads: ClassVar[tuple[str, ...]] = ()
    lm_head: ClassVar[tuple[str, ...]] = ()
    joins_pairs: ClassVar[bool] = True
    untrained: frozenset[str] = frozenset()
    config: dict[str, Any]
    tokenizer: Tokenizer
    max_length: int
    size: int
    memory: list[tuple[Tensor, Tensor]] | None = None  # what is carried from batch to batch, where something is

    @property
    def carries(self) -> bool:
        """Whether a batch begins with the state that the one before left, so that their order matters."""
        return False

    def forget_between_batches(self) -> None:
        """Begins each batch from zero, from now on."""

    @abstractmethod
    def forward(self, batch: Batch) -> Encoded:
        """`input_ids` (B, T), `mask` (B, T) and what else the encoder knows -> all layers."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Top layer (..., D) -> logits over the vocabulary (..., V)."""

    def token_loss(self, hidden: Tensor, labels: Tensor) -> Loss:
        """Cross entropy of tokens, summed, without all logits at once: top layer (N, D), labels (N,).

        Encoders that score `causal` or `masked` have it.
        """
        raise NotImplementedError

    def token_losses(self, hidden: Tensor, labels: Sequence[Tensor]) -> list[Loss]:
        """Cross entropy of the words after and before each position, summed: top layer (B, T, D), two labels (B, T).

        Labels are -1 where nothing is predicted. Encoders that score `bidirectional` have it.
        """
        raise NotImplementedError

    @classmethod
    def capabilities(cls) -> frozenset[str]:
        """What an objective may require of an encoder: how it scores, and what else it offers."""
        return frozenset({cls.scoring, *cls.offers})

    @property
    def token_embedding(self) -> nn.Embedding | None:
        """The table with a vector for each token (V, D), where there is one."""
        return None

    @abstractmethod
    def log_probs(self, batch: Batch, targets: Tensor | None = None, encoded: Encoded | None = None) -> Tensor:
        """Log-probability of the token at each position, as `scoring` has it.

        Args:
            targets: (B, T) tokens asked for; None: those of the batch.
            encoded: what the encoder returned for the batch; None: it is run.

        Returns:
            (B, T) nats, 0 where the encoder cannot say: given all tokens before (`causal`), or given the whole batch,
            so that masks belong where `targets` are asked for (`masked`); (B, T, 2), given all tokens before and
            given all after (`bidirectional`).
        """

    def likeliest_next(self, hidden: Tensor) -> Tensor:
        """Top layer (N, D) of a bidirectional model -> the likeliest next token of each, (N,)."""
        return self.logits(hidden)[..., 0, :].argmax(-1)

    def new_cache(self) -> generation.Cache | None:
        """An empty cache, which `forward` takes as its second argument and extends; None: the model has none.

        A model that has one also reads `positions` (B, T) and `attend` (B, T, T) in its batch.
        """
        return None

    def generate(
        self, prompt: Sequence[int], *, tokens: int, temperature: float, top_k: int, top_p: float, seed: int
    ) -> list[int]:
        """The continuation of a prompt, see `generation.generate`.

        Raises:
            UserError: the model is not causal.
        """
        if self.scoring != "causal":
            raise UserError(f"Only causal models generate text; {self.model_type} is {self.scoring}.")
        return generation.generate(
            self, prompt, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
        )

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

    @classmethod
    @abstractmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of some tensors of an encoder folder, which together bound all that the config asks for."""

    @abstractmethod
    def export_state(self) -> dict[str, Tensor]:
        """Tensors by their names in the encoder folder, as views of the encoder's own."""

    @classmethod
    def folder_name(cls, name: str) -> str | None:
        """The name of a tensor in another's folder -> in ours; None for a copy of another tensor, or a constant."""
        return None if BUFFER.fullmatch(name) else name

    @torch.no_grad()
    def import_state(self, state: Mapping[str, Tensor]) -> Receipt:
        """Takes over tensors by their names in an encoder folder (ours or another's).

        Raises:
            UserError: a tensor of another shape.
        """
        ours = self.export_state()
        theirs = {name: value for there, value in state.items() if (name := self.folder_name(there)) is not None}
        loaded = [name for name in ours if name in theirs]
        for name in loaded:
            if theirs[name].shape != ours[name].shape:
                shapes = f"{tuple(theirs[name].shape)}, but config.json asks for {tuple(ours[name].shape)}"
                raise UserError(f"{name} has shape {shapes}.")
            ours[name].copy_(theirs[name])
        new = [name for name in ours if name not in theirs]
        self.untrained = frozenset(name for name in new if name.startswith(self.heads))
        return Receipt(loaded=loaded, new=new, unused=sorted(theirs.keys() - ours.keys()))

    def check_lm(self) -> None:
        """Raises UserError where `logits` would be random."""
        if lacking := sorted(name for name in self.untrained if name.startswith(self.lm_head)):
            names = ", ".join(lacking[:3]) + (", ..." if len(lacking) > 3 else "")
            raise UserError(f"This encoder has no {names}: it gives vectors, but no probabilities.")

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
        ids = map(self.units, self.tokenizer.encode_batch(parts))
        result: list[Any] = []
        for text in texts:
            if isinstance(text, list):
                result.append([piece for word in self.word_pieces(text) for piece in word])
            else:
                pieces = [next(ids) for _ in _parts(text)]
                result.append((pieces[0], pieces[1]) if isinstance(text, tuple) else pieces[0])
        return result

    def word_pieces(self, words: Sequence[str]) -> list[list[Any]]:
        """The units of each word of a list; at least one."""
        return [self.units(ids) for ids in self.tokenizer.encode_words(words)]

    def units(self, ids: Sequence[int]) -> list[Any]:
        """Token ids of a text -> what `collate` takes, one unit a position: the ids themselves."""
        return list(ids)

    def unit_text(self, unit: Any) -> str:
        """A unit as text: with its first space, where the tokenizer keeps spaces; else with its mark, as `##ing`."""
        if self.tokenizer.keeps_spaces:
            return self.tokenizer.decode([unit])
        return str(self.tokenizer.backend.id_to_token(unit))

    def unknown_words(self, units: Sequence[Any]) -> list[str]:
        """The words among units that the model cannot predict by name."""
        return []

    @torch.no_grad()
    def encode(self, texts: Sequence[Text], *, logits: bool = False, batch_size: int = 32) -> Encoded:
        """All layers for texts: strings, (str, str) pairs or lists of words; longer ones are cut at `max_length`.

        Runs in eval mode without gradients, and pads with zeros to the longest. Batches are of similar length, but in
        the order of the texts where the encoder `carries` its state from one to the next.

        Returns:
            Layers of shape (B, T, D), with B = len(texts) and T of the longest, special tokens included.

        Raises:
            UserError: no text, or something that is none; logits of an encoder whose LM head was never trained.
        """
        if not texts:
            raise UserError("encode() was given no text.")
        if logits:
            self.check_lm()
        check_texts(texts)
        ids = self.tokenize(texts)
        order = list(range(len(ids)))
        if not self.carries:
            order.sort(key=lambda i: count(ids[i]))
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

    def saved_config(self) -> dict[str, Any]:
        """`config.json` of a folder that holds `trained_state`."""
        return dict(self.config)

    def trained_state(self) -> dict[str, Tensor]:
        """As `export_state`, without what was never trained."""
        return {name: value for name, value in self.export_state().items() if name not in self.untrained}

    def save(self, folder: Path, *, card: str | None = None) -> None:
        """Writes the encoder folder: config, weights, tokenizer, model card."""
        self.save_as(folder, self.saved_config(), self.trained_state(), card=card)

    def save_as(self, folder: Path, config: dict[str, Any], state: dict[str, Tensor], *, card: str | None) -> None:
        """As `save`, with this config and these tensors."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
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


class FolderConfig(TypedDict):
    """What every `config.json` has; an encoder's own `schema` is beside it."""

    model_type: str
    architectures: NotRequired[list[str] | None]


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
    config = read_json(folder / "config.json")
    checked(FolderConfig, config, folder / "config.json")
    return config


# Masks and positions that some folders of transformers carry: constants.
BUFFER = re.compile(r"(.*\.)?(position_ids|attn\.(bias|masked_bias))")
LARGEST = torch.finfo(torch.float32).max
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def read_state(folder: Path) -> dict[str, Tensor]:
    """The weights of a folder.

    Raises:
        UserError: the file is damaged, or a tensor holds something else than finite numbers.
    """
    file = folder / "model.safetensors"
    try:
        state = load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} is damaged ({error}).") from None
    for name, value in state.items():
        if BUFFER.fullmatch(name) or not value.numel():
            continue
        if value.dtype not in FLOATS:
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(f"{file}: {name} is of type {kind}; weights are float32, float64, float16 or bfloat16.")
        low, high = (float(bound) for bound in value.aminmax())  # of a NaN anywhere both are NaN
        if not -LARGEST <= low <= high <= LARGEST:
            raise UserError(f"{file}: {name} holds numbers that are not finite; make the folder anew.")
    return state


def check_sizes(kind: type[Encoder], config: dict[str, Any], state: Mapping[str, Tensor], folder: Path) -> None:
    """Compares what a config asks for with what its folder holds, before anything is built.

    Raises:
        UserError: the tensors have other sizes, or are not there.
    """
    shapes = {kind.folder_name(name): tuple(value.shape) for name, value in state.items()}
    wanted = kind.sizes(config)
    file = folder / "model.safetensors"
    if not shapes.keys() & wanted.keys():
        raise UserError(f"No tensor in {file} belongs to a {config['model_type']} encoder.")
    for name, shape in wanted.items():
        if name not in shapes:
            raise UserError(f"{file} has no {name}, which {folder / 'config.json'} asks for.")
        if shapes[name] != shape:
            raise UserError(f"{file}: {name} has shape {shapes[name]}, but config.json asks for {shape}.")
