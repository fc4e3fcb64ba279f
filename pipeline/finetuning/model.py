"""A fine-tuned model: encoder, head and names of its outputs; saved as a folder, loaded in one call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pipeline import encoders
from pipeline.console import typed
from pipeline.console.progress import progress
from pipeline.errors import UserError
from pipeline.finetuning.features import Feature
from pipeline.finetuning.heads import head_class
from pipeline.finetuning.heads.base import Head
from pipeline.finetuning.options import HeadOptions, ModelConfig, Pair
from pipeline.finetuning.predictions import Numbered, predictions_of
from pipeline.models.base import Encoder
from pipeline.models.encoding import eval_mode
from pipeline.models.folder import read_config
from pipeline.models.inputs import Inputs, check_batch_size, check_texts
from pipeline.models.outputs import Encoded
from pipeline.storage.validation import checked
from tasks.base import Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SHOWN = 6  # texts of a plot


def reading_of(encoder: Encoder, pair: Pair | None, head: type[Head]) -> Pair:
    """How a head reads pairs (see HeadOptions)."""
    return pair or ("joined" if encoder.joint_pairs else head.readings[1])


class FineTunedModel(nn.Module):
    """Texts, pairs or lists of words -> predictions.

    Args:
        encoder: reads the text.
        labels: names of the head's outputs, in order.
        options: of the head.
    """

    def __init__(self, encoder: Encoder, *, labels: list[str], options: HeadOptions) -> None:
        super().__init__()
        encoder.forget_between_batches()  # the texts of a batch are unrelated
        kind = head_class(options.name)
        options = replace(options, pair=reading_of(encoder, options.pair, kind) if options.pairs else None)
        if options.pairs:
            encoder.join_pairs(options.pair == "joined")
        self.encoder, self.labels, self.options = encoder, labels, options
        self.layout = encoder.hf_heads.get(kind.layout) if kind.is_plain(options) else None
        bias = self.layout is None or self.layout.bias
        self.head = kind(encoder, outputs=len(labels), options=options, bias=bias)

    def forward(self, batch: Inputs, *, whole: bool = True) -> tuple[Tensor, Encoded]:
        """-> the head's outputs, (B, C) or by word (B, W, C), and the encoder's.

        Args:
            whole: the encoder's top layer at all positions, also where the head reads only some.
        """
        encoded = self.head.encoded(self.encoder, batch, whole=whole)
        return self.head(self.encoder, batch, encoded), encoded

    def features(self, texts: Sequence[Any]) -> list[Feature]:
        """Texts as the head reads them."""
        return self.head.features(self.encoder, texts, max_length=self.options.max_length, cut=self.options.cut)

    def predict(self, texts: Sequence[Any], *, batch_size: int = 64) -> list[dict[str, Any]]:
        """The answer of the head to each text or pair of texts.

        A classifier gives `label`, `probability`, and `probabilities` by label name. A tagger takes strings, which are
        split at spaces and punctuation, or lists of words, and gives `words`, `tags`, `probabilities` of these tags and
        `spans` with their first character and the one behind their last (in the string, or in the words joined by
        spaces). A model of questions gives the `answer` in the text, with such characters. Where a text, or a word of a
        tagger's, was too long and has been cut, `cut` is true.

        Raises:
            UserError: pairs for a model of single texts, or the other way.
        """
        texts = self.check(texts)
        read = [self.head.read(text) for text in texts]
        features = self.features(read)
        predictions = self.of_features(features, read, batch_size)
        cut = {feature.text for feature in features if feature.was_cut}
        return [
            self.head.answer(text, prediction, self.labels) | ({"cut": True} if number in cut else {})
            for number, (text, prediction) in enumerate(zip(texts, predictions, strict=True))
        ]

    def predictions(self, texts: Sequence[Any], *, batch_size: int = 64) -> list[Prediction]:
        """As `predict`, of texts as the task reads them: labels as those of its examples."""
        return self.of_features(self.features(texts), texts, batch_size)

    def plots(self, texts: Sequence[Any]) -> dict[str, Figure]:
        """What the head shows of some texts, by the names of the plots."""
        with eval_mode(self):
            return self.head.plots(self.encoder, self.features(texts[:SHOWN]))

    def check(self, texts: Sequence[Any]) -> list[Any]:
        """The texts as a list; raises UserError for others than the head reads."""
        listed = check_texts(texts)
        pairs, by_word = self.options.pairs, self.head.by_word
        if any(isinstance(text, tuple) != pairs or (isinstance(text, list) and not by_word) for text in listed):
            wanted = "pairs (text, text)" if pairs else "single texts" + (" or lists of words" if by_word else "")
            raise UserError(f"This model reads {wanted}.")
        return listed

    @torch.no_grad()
    def of_features(self, features: Sequence[Feature], texts: Sequence[Any], batch_size: int) -> list[Prediction]:
        """The prediction of each text, in batches of similar length."""
        check_batch_size(batch_size)
        order = sorted(range(len(features)), key=lambda i: len(features[i]))
        result: list[Numbered] = []
        begins = range(0, len(order), batch_size)
        with eval_mode(self):
            for begin in progress(begins, total=len(begins), desc="predict", unit="batch", leave=False, delay=1):
                rows = order[begin : begin + batch_size]
                batch = self.encoder.on_device(self.head.inputs(self.encoder, [features[i] for i in rows]))
                result += zip(rows, self.head.decode(self(batch, whole=False)[0], batch), strict=True)
        return predictions_of(result, features, texts, join=self.head.join)

    # ------------------------------------------------------------------ folders

    def saved_config(self) -> dict[str, Any]:
        """`config.json` of its folder, with the options of the head and the names of its outputs."""
        config = {
            **(self.encoder.saved_config() if self.layout is None else self.encoder.config),
            "id2label": {str(index): name for index, name in enumerate(self.labels)},
            "label2id": {name: index for index, name in enumerate(self.labels)},
            "head": asdict(self.options),
        }
        if self.layout is not None:
            config |= {"architectures": [self.layout.architecture], **self.layout.config, **self.head.hf_config}
        return config

    def save(self, folder: Path, *, card: str | None = None) -> None:
        """The layout of an encoder folder, with the head's tensors, and the names of its outputs in `config.json`.

        Where transformers has the same head (`Encoder.hf_heads`) it opens there, with its names for the tensors.
        """
        self.encoder.save_as(folder, self.saved_config(), self._state(), card=card)
        cut = {"truncation_side": "left"} if self.options.cut == "tail" else {}  # nothing there cuts on both sides
        self.encoder.tokenizer.save_config(folder, max_length=self.options.max_length, **cut)
        if self.layout is not None:  # transformers is to read texts as they are read here
            self._save_ends(folder)
        if self.encoder.in_transformers and (search := self.head.generation(self.encoder)) is not None:
            (folder / "generation_config.json").write_text(json.dumps(search, indent=2) + "\n")

    def _save_ends(self, folder: Path) -> None:
        special, nothing = self.encoder.special, list[int]()
        text, pair = (self.encoder.collate([empty])["input_ids"][0].tolist() for empty in (nothing, (nothing, nothing)))
        begin, between = pair[: special.prefix], pair[special.prefix : special.prefix + special.between]
        self.encoder.tokenizer.save_with_ends(folder, begin=begin, between=between, end=text[special.prefix :])

    def _state(self) -> dict[str, Tensor]:
        """Tensors by their names in the folder: of the encoder's those that were trained, or that the head reads."""
        head = self.head.export_state()
        if self.layout is None:
            return self.encoder.trained_state() | {f"head.{name}": value for name, value in head.items()}
        encoder, without = self.encoder.export_state(), self.layout.without
        kept = {name: value for name, value in encoder.items() if not name.startswith(without)}
        return kept | {name.replace("classifier", self.layout.name): value for name, value in head.items()}

    def unsaved(self) -> list[str]:
        """Tensors of the encoder that were neither in its folder nor are trained here, and so are not saved."""
        return sorted(self.encoder.untrained - self._state().keys())


def load(folder: str | Path) -> FineTunedModel:
    """A fine-tuned model from its folder, in eval mode.

    Raises:
        UserError: no such folder, one of an encoder without a head, a damaged or a contradictory one.
    """
    folder = Path(folder)
    config, file = read_config(folder), folder / "config.json"
    if "head" not in config or "id2label" not in config:
        raise UserError(
            f"{folder} is an encoder without a head; fine-tune it first ({typed.command('finetune', from_=folder)})."
        )
    options = checked(ModelConfig, config, file)["head"]
    labels = [config["id2label"][str(index)] for index in range(len(config["id2label"]))]
    encoder, state = encoders.fresh(folder)
    if options.max_length > encoder.max_length:
        raise UserError(
            f"{file}: head.max_length is {options.max_length}, but the encoder has only {encoder.max_length} positions."
        )
    if options.lstm and len(state.get("head.lstm.weight_ih_l0", ())) != 4 * options.lstm:
        raise UserError(f"{file}: head.lstm is {options.lstm:,}, but model.safetensors has no LSTM of that size.")
    model = FineTunedModel(encoder, labels=labels, options=options)
    prefix = "head." if model.layout is None else f"{model.layout.name}."
    head = {name.removeprefix("head."): state.pop(name) for name in list(state) if name.startswith(prefix)}
    if model.layout is not None:
        head = {name.replace(model.layout.name, "classifier"): value for name, value in head.items()}
    encoders.copy_tensors(encoder, state, folder)
    try:
        model.head.import_state(head)
    except UserError as error:
        raise UserError(f"{folder / 'model.safetensors'}: {error}") from None
    except (RuntimeError, KeyError):  # tensors by other names
        raise UserError(f"{folder} was saved by another version of this program; fine-tune it again.") from None
    return model.eval()
