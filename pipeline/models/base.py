"""The base of all encoders: tokens in, all layers and a mask out; saved as a folder of safetensors and JSON.

Shapes: B batch, T positions, D model size, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.errors import UserError
from pipeline.models import encoding, generation
from pipeline.models.folder import BUFFER, HeadLayout, write_weights
from pipeline.models.inputs import Inputs, SpecialTokens, Text
from pipeline.models.layers.dropout import Dropout
from pipeline.models.losses import CHUNK, Loss
from pipeline.models.outputs import Encoded, LoadReport
from pipeline.tokenization.base import Place, Tokenizer
from tasks.dataset import listed

Scoring = Literal["causal", "masked", "bidirectional", "seq2seq"]
Side = Literal["left", "right", "full"]
Learning = Literal["gradient", "counting"]


class Encoder(nn.Module, ABC):
    """Base of all encoders. Class attributes say what a model can do: nothing outside asks which class it is.

    Attributes:
        model_type: the name in `config.json`.
        hf_model_types: what Hugging Face calls the same model, where it is something else.
        scoring: how it gives probabilities, and so which scorer prompting takes: of each token given those to its
            left (`causal`), given all others (`masked`), given either side (`bidirectional`), or of each token of a
            target, given its source and the tokens before it (`seq2seq`: see EncoderDecoder).
        learning: `gradient`, step by step, or `counting`: at once, by `fit`, without parameters and vectors.
        context: what its output may depend on: the D features in as many equal parts, and for each part the side of
            the input that it sees beside the position itself. The audit's leak checks follow from it.
        special: how many special tokens a row has.
        offers: further capabilities: `next_sentence`, `packing` (reads `documents` in a batch), `positions` (reads
            `positions` (B, T)), `attend` (reads these and `attend` (B, T, T): what a token may see), `state` (gives one
            without being handed one, and of one size: rows may continue those of the batch before), `top_positions`
            (see `asked`), `causal_rows` (reads rows from left to right where a batch says so), `alignment` (a decoder
            whose attention can be drawn).
        token_input: the input that says which token is where (B, T).
        shared_inputs: inputs that do not have a row for each row of the batch.
        shardable: whether each process may hold a part of the weights only.
        whole_numbers: whether tensors of its folder may hold whole numbers.
        schema: of `config.json`, see validation.py.
        pretraining_tensors: prefixes of the tensors that no layer needs: what only pretraining and its
            probabilities use.
        lm_head_tensors: those of them that `logits` needs.
        learned_positions: whether it has a vector for each position, which only the positions of pretraining train.
        untrained: those of them that were never trained, by their names in the folder: they were not in the
            folder that the encoder is from. They are random, and not saved.
        config: the content of `config.json`; `training_length` where it is known, the tokens of a row in pretraining.
        tokenizer: the tokenizer whose ids the embedding knows.
        max_length: most positions that it takes.
        joint_pairs: whether a head gets a pair as one sequence with separators (BERT: Devlin et al. 2018, 3.2, with
            segment ids; GPT: Radford et al. 2018, 3.3), or as two texts that are read one by one (ELMo); `join_pairs`
            changes that for one encoder.
        may_be_zero: whole numbers among its arguments that may be 0; all others are at least 1.
    """

    model_type: ClassVar[str]
    hf_model_types: ClassVar[tuple[str, ...]] = ()
    scoring: ClassVar[Scoring]
    learning: ClassVar[Learning] = "gradient"
    context: ClassVar[tuple[Side, ...]]
    special: SpecialTokens
    offers: tuple[str, ...] = ()
    token_input: ClassVar[str] = "input_ids"
    shared_inputs: ClassVar[tuple[str, ...]] = ()
    shardable: ClassVar[bool] = True
    whole_numbers: ClassVar[bool] = False
    schema: ClassVar[Any]
    pretraining_tensors: ClassVar[tuple[str, ...]] = ()
    lm_head_tensors: ClassVar[tuple[str, ...]] = ()
    joint_pairs: bool = True
    learned_positions: ClassVar[bool] = False
    may_be_zero: ClassVar[tuple[str, ...]] = ()
    untrained: frozenset[str] = frozenset()
    config: dict[str, Any]
    tokenizer: Tokenizer
    max_length: int
    size: int

    @classmethod
    def variant(cls, config: Mapping[str, Any]) -> str:
        """What a model of this configuration is called: its `model_type`, unless that comprises several."""
        return cls.model_type

    @property
    def reach(self) -> int | None:
        """How many tokens of each side that it sees an output depends on, its own included; None: on all."""
        return None

    @property
    def carries(self) -> bool:
        """Whether `encode` begins each batch with the state after the one before, so that their order matters."""
        return False

    def forget_between_batches(self) -> None:
        """Begins each batch from zero, from now on."""

    def fit(self, tokens: np.ndarray, starts: np.ndarray) -> int:
        """Learns from texts by counting; what was counted before is forgotten.

        Args:
            tokens: (N,) of all texts.
            starts: (D + 1,) first token of each text, then N.

        Returns:
            How many counts are kept: its parameters.
        """
        raise NotImplementedError

    def inner_log_probs(self, batch: Inputs, encoded: Encoded) -> Tensor:
        """(B, T): as `log_probs`, of a model that counts; each token given too that the text does not end before it."""
        raise NotImplementedError

    def check_fit(self, tokens: int, memory: float) -> None:
        """Raises: UserError, its settings do not agree, or to `fit` so many tokens takes more than `memory` bytes."""

    @abstractmethod
    def forward(self, batch: Inputs, state: Any = None) -> Encoded:
        """`input_ids` (B, T), `mask` (B, T) and what else the encoder knows -> all layers.

        Args:
            state: `Encoded.state` of the batch that this one continues; None: rows begin here.
        """

    def embed(self, batch: Inputs) -> Tensor:
        """(B, T, ...): the vector of each token alone, without its position."""
        assert self.token_embedding is not None
        return self.token_embedding(batch["input_ids"])

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Top layer (..., D) -> logits over the vocabulary (..., V)."""

    def token_loss(self, hidden: Tensor, labels: Tensor) -> Loss:
        """Cross entropy of tokens, summed, without all logits at once: top layer (N, D), labels (N,).

        Encoders that score `causal` or `masked` have it.
        """
        raise NotImplementedError

    def token_log_probs(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The log-probability of each token, without all logits at once: top layer (N, D), labels (N,) -> (N,) nats.

        An encoder that scores `causal` and looks its probabilities up has its own.
        """
        parts = zip(hidden.split(CHUNK), labels.split(CHUNK), strict=True)
        scores = [self.logits(h).float().log_softmax(-1).gather(-1, label[:, None])[:, 0] for h, label in parts]
        return torch.cat(scores)

    def token_losses(self, hidden: Tensor, labels: Sequence[Tensor]) -> list[Loss]:
        """Cross entropy of the words after and before each position, summed: top layer (B, T, D), two labels (B, T).

        Labels are -1 where nothing is predicted. Encoders that score `bidirectional` have it.
        """
        raise NotImplementedError

    def next_sentence_logits(self, encoded: Encoded) -> Tensor:
        """(B, 2): 0 = the second text follows, 1 = it does not; of encoders that offer `next_sentence`."""
        raise NotImplementedError

    @classmethod
    def capabilities(cls) -> frozenset[str]:
        """What an objective may require of an encoder: how it scores, and what else it offers."""
        return frozenset({cls.scoring, *cls.offers})

    @property
    def token_embedding(self) -> nn.Embedding | None:
        """The table with a vector for each token (V, D), where there is one."""
        return None

    @property
    def output_embedding(self) -> nn.Parameter | None:
        """The output matrix with a vector for each token (V, D), where it is not the table of the input."""
        return None

    def log_probs(self, batch: Inputs, targets: Tensor | None = None, encoded: Encoded | None = None) -> Tensor:
        """Log-probability of the token at each position, as `scoring` has it.

        Args:
            targets: (B, T) tokens that are scored; None: those of the batch.
            encoded: what the encoder returned for the batch; None: it is run.

        Returns:
            (B, T) nats, 0 where there is no prediction and on padding: given all tokens before (`causal`), or given
            the whole batch, so that masks belong where `targets` are scored (`masked`); (B, T, 2), given all tokens
            before and given all after (`bidirectional`, which overrides this).
        """
        targets = batch["input_ids"] if targets is None else targets
        hidden = (encoded or self(batch)).layers[-1]
        ahead = int(self.scoring == "causal")  # a position predicts the next token
        scores = self.logits(hidden[:, : hidden.shape[1] - ahead]).float().log_softmax(-1)
        scores = scores.gather(-1, targets[:, ahead:, None])[..., 0] * batch["mask"][:, ahead:]
        return nn.functional.pad(scores, (ahead, 0))

    def likeliest_next(self, hidden: Tensor) -> Tensor:
        """Top layer (N, D) of a bidirectional model, which defines it -> the likeliest next token of each, (N,)."""
        raise NotImplementedError

    def new_state(self) -> Any:
        """What `forward` takes as `state` where a text begins that is read in parts; None: nothing.

        The parts that follow take `Encoded.state`; where that is None, the model has no state, and reads all again.
        """
        return None

    def generate(self, prompt: Sequence[int], **how: Any) -> list[int]:
        """The ids that follow those of a prompt, without the end of text.

        Args:
            how: see `generation.Search`.

        Raises:
            UserError: the model is not causal, has no weights of an output, or the prompt has no tokens, or others than
                the model's.
        """
        if self.scoring != "causal":
            raise UserError(f"Only causal models generate text; {self.model_type} is {self.scoring}.")
        self.check_lm()
        with encoding.eval_mode(self):
            return generation.generate(self, generation.checked_ids(self, prompt), generation.Search(**how))

    @abstractmethod
    def pooled(self, encoded: Encoded) -> Tensor:
        """(B, D): the representation of a whole text, the head's input."""

    def pooled_positions(self, mask: Tensor) -> Tensor | None:
        """(B,) the position b T + t of each row of a `mask` (B, T) that `pooled` reads of the top layer; None: more.

        A subclass whose `pooled` reads others than its parent's says so here too.
        """
        return None

    def asked(self, batch: Inputs, positions: Tensor | None) -> Inputs:
        """The batch with `top_positions`, where the encoder offers that.

        Args:
            positions: (N,) different positions b T + t of which the top layer is read; it is NaN elsewhere. None: all.
        """
        if positions is None or "top_positions" not in self.offers:
            return batch
        return {**batch, "top_positions": positions}

    @property
    def hf_heads(self) -> dict[str, HeadLayout]:
        """`sentence`, `token` and `span` -> the class of transformers that has the same head, where there is one."""
        return {}

    @property
    def in_transformers(self) -> bool:
        """Whether a class of transformers opens its folder."""
        return bool(self.hf_heads)

    def join_pairs(self, joined: bool) -> None:
        """Heads get a pair as one sequence, or text by text, from now on (see `joint_pairs`).

        Raises:
            UserError: the encoder has no token to stand between two texts.
        """
        if joined and not (self.joint_pairs or self.special.between):
            raise UserError(
                f"A {self.model_type} has no token to stand between the texts of a pair: set model.recipe.pair to "
                "compared or attended."
            )
        self.joint_pairs = joined

    def collate_for_head(self, texts: Sequence[Any]) -> Inputs:
        """As `collate`; pairs of an encoder that does not join them are (B, 2, T), see `flatten_pairs`."""
        if self.joint_pairs or not isinstance(texts[0], tuple):
            return self.collate(texts)
        both = self.collate([side for pair in texts for side in pair])
        return {
            name: value if name in self.shared_inputs else value.unflatten(0, (-1, 2)) for name, value in both.items()
        }

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def on_device(self, batch: Inputs) -> Inputs:
        """A batch on the device of the encoder."""
        return {name: value.to(self.device) for name, value in batch.items()}

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """The number of layers that `forward` returns, embeddings included."""

    @abstractmethod
    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Parameters from the embeddings to the top layer, for per-layer rates and unfreezing.

        Those of the `num_layers` layers that heads read come first. A parameter stands in one group; weights that
        layers share in that of the lowest one, and the groups of the others are empty.
        """

    def above_layers(self) -> list[nn.Parameter]:
        """Parameters of no layer: of output layers, which give probabilities."""
        inside = {id(parameter) for group in self.layer_groups() for parameter in group}
        return [parameter for parameter in self.parameters() if id(parameter) not in inside]

    @abstractmethod
    def collate(self, texts: Sequence[Any]) -> Inputs:
        """Token ids of texts or pairs (lists of ids, or pairs of such lists) as one padded batch."""

    @classmethod
    def completed(cls, config: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
        """What `from_config` reads of a folder: its config, and what only the names of its tensors tell."""
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], tokenizer: Tokenizer) -> Encoder:
        """A new encoder of the architecture that `config.json` describes.

        By default the constructor has the names of `schema`, and `dropout` for its `dropout_prob`; what the tokenizer
        says, `vocab_size`, is left out. An architecture with other names, as those of transformers, translates them.
        """
        settings = {name: config[name] for name in cls.schema.__annotations__ if name in config}
        settings.pop("vocab_size", None)
        if "dropout_prob" in settings:
            settings["dropout"] = settings.pop("dropout_prob")
        return cls(tokenizer, **settings)

    @classmethod
    @abstractmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of some tensors of an encoder folder, which together bound all that the config asks for."""

    def export_state(self) -> dict[str, Tensor]:
        """Tensors by their names in the encoder folder, as views of the encoder's own."""
        return self.state_dict()

    @classmethod
    def folder_name(cls, name: str) -> str | None:
        """The name of a tensor in another's folder -> in ours; None for a copy of another tensor, or a constant."""
        return None if BUFFER.fullmatch(name) else name

    @torch.no_grad()
    def import_state(self, state: Mapping[str, Tensor]) -> LoadReport:
        """Takes over tensors by their names in an encoder folder (ours or another's).

        Raises:
            UserError: a tensor of another shape, or a copy of another tensor that is none.
        """
        ours = self.export_state()
        theirs = {name: value for there, value in state.items() if (name := self.folder_name(there)) is not None}
        loaded = [name for name in ours if name in theirs]
        for name in loaded:
            if theirs[name].shape != ours[name].shape:
                shapes = f"{tuple(theirs[name].shape)}, but config.json asks for {tuple(ours[name].shape)}"
                raise UserError(f"{name} has shape {shapes}.")
            ours[name].copy_(theirs[name])
        for name in state:
            if self.folder_name(name) is None:
                self.check_copy(name, state[name])
        new = [name for name in ours if name not in theirs]
        self.untrained = frozenset(name for name in new if name.startswith(self.pretraining_tensors))
        return LoadReport(loaded=loaded, new=new, unused=sorted(theirs.keys() - ours.keys()))

    def check_copy(self, name: str, value: Tensor) -> None:
        """Raises: UserError, a tensor of a folder that is a copy of the embedding by its name is another matrix."""
        table = None if self.token_embedding is None else self.token_embedding.weight
        if table is not None and value.shape == table.shape and not torch.equal(value.to(table), table):
            raise UserError(f"{name} differs from the embedding of the tokens; here they are the same matrix.")

    def count_as_trained(self, parameters: Iterable[nn.Parameter]) -> None:
        """Takes the tensors of these parameters out of `untrained`: a folder has them."""
        storages = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        state = self.export_state()
        kept = [name for name in self.untrained if state[name].untyped_storage().data_ptr() not in storages]
        self.untrained = frozenset(kept)

    @property
    def untrained_lm(self) -> list[str]:
        """The tensors that `logits` needs and no training has changed."""
        return sorted(name for name in self.untrained if name.startswith(self.lm_head_tensors))

    def check_lm(self) -> None:
        """Raises UserError where `logits` would be random."""
        if lacking := self.untrained_lm:
            names = listed(lacking, most=3)
            raise UserError(f"This encoder has no {names}: it gives vectors, but no probabilities.")

    def texts_of(self, batch: Inputs) -> list[str]:
        """The rows of a batch as text, masks and special tokens included: to look at."""
        rows = zip(batch["input_ids"].tolist(), batch["mask"].tolist(), strict=True)
        kept = [[token for token, there in zip(*row, strict=True) if there] for row in rows]
        return [self.tokenizer.backend.decode(ids, skip_special_tokens=False) for ids in kept]

    def set_dropout(self, rate: float) -> None:
        """Another rate for all dropout of the encoder: fine-tuning wants some where pretraining had none."""
        for module in self.modules():
            if isinstance(module, (Dropout, nn.Dropout)):
                module.p = rate
        names = ("dropout_prob", "dropout_rate", "_pdrop", "dropout")
        for key in self.config:
            if key.endswith(names) and key != "activation_dropout":  # blocks have none
                self.config[key] = rate

    # ------------------------------------------------------------------ texts in, layers out

    def tokenize(self, texts: Iterable[Text]) -> list[Any]:
        """str -> ids; (str, str) -> (ids, ids); list of words -> ids of the words in a row. No special tokens."""
        return encoding.tokenize(self, texts)

    def tokenize_placed(self, texts: Sequence[str]) -> list[tuple[list[Any], list[Place]]]:
        """As `tokenize`, with the place of each unit in its text."""
        return [(self.units(ids), self.unit_places(ids, all)) for ids, all in self.tokenizer.encode_placed(texts)]

    def unit_places(self, ids: Sequence[int], places: Sequence[Place]) -> list[Place]:
        """The places of tokens -> those of the units that `units` makes of them."""
        return list(places)

    def word_pieces(self, words: Sequence[str]) -> list[list[Any]]:
        """The units of each word of a list; at least one."""
        return [self.units(ids) for ids in self.tokenizer.encode_words(words)]

    def units(self, ids: Sequence[int]) -> list[Any]:
        """Token ids of a text -> what `collate` takes, one unit a position: the ids themselves."""
        return list(ids)

    def unit_text(self, unit: Any) -> str:
        """A unit as text: with its first space, where the tokenizer keeps spaces; else with its mark, as `##ing`.

        Special tokens have their names.
        """
        if self.tokenizer.keeps_spaces:
            return self.tokenizer.decode([unit]) or str(self.tokenizer.backend.id_to_token(unit))
        return str(self.tokenizer.backend.id_to_token(unit))

    def unknown_words(self, units: Sequence[Any]) -> list[str]:
        """The words among units that the model cannot predict by name."""
        special = self.tokenizer.special
        if "unk" not in special or special["unk"] in (special.get("bos"), special.get("eos")):  # it spells all words
            return []
        return [self.unit_text(unit) for unit in units if unit == self.tokenizer.id("unk")]

    def encode(
        self, texts: Sequence[Text], *, logits: bool = False, batch_size: int = 32, state: Any = None
    ) -> Encoded:
        """All layers for texts: strings, (str, str) pairs or lists of words; longer ones are cut at `max_length`.

        Runs in eval mode without gradients, and pads with zeros to the longest. Batches are of similar length, but in
        the order of the texts where the encoder `carries` its state from one to the next; then `state` is that of the
        texts before.

        Returns:
            Layers of shape (B, T, D), with B = len(texts) and T of the longest, special tokens included.

        Raises:
            UserError: no text, or something that is none; logits of an encoder whose LM head was never trained.
        """
        return encoding.encode(self, texts, logits=logits, batch_size=batch_size, state=state)

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
        folder = Path(folder)
        write_weights(folder, config, state)
        self.tokenizer.save(folder, max_length=self.max_length)
        (folder / "README.md").write_text(card or f"# {self.model_type} encoder\n")
