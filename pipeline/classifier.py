"""A fine-tuned model: encoder, head and label names; saved as a folder, loaded in one call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline import UserError, encoders
from pipeline import tokenizer as tokenizers
from pipeline.encoders.base import Batch, Encoder, count, read_config, read_state
from pipeline.heads import SentenceHead


class Classifier(nn.Module):
    """Texts to labels.

    Args:
        encoder: what reads the text.
        labels: names of the classes, in order.
        dropout: of the head.
        mix: whether the head mixes all layers (see SentenceHead).
        max_length: most tokens of a text, special ones included.
        mix_dropout: of the scalar mix.
        pairs: whether it reads pairs of texts.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        labels: list[str],
        dropout: float,
        mix: bool,
        max_length: int,
        mix_dropout: float,
        pairs: bool,
    ) -> None:
        super().__init__()
        self.encoder, self.labels, self.max_length = encoder, labels, max_length
        head: dict[str, Any] = {"dropout": dropout, "mix": mix, "mix_dropout": mix_dropout, "pairs": pairs}
        self.head = SentenceHead(encoder, classes=len(labels), **head)
        self.settings = {**head, "max_length": max_length}

    def forward(self, batch: Batch) -> Tensor:
        """-> logits (B, classes)."""
        return self.head(self.encoder, batch)

    @torch.no_grad()
    def predict(self, texts: Sequence[str | tuple[str, str]], *, batch_size: int = 64) -> list[dict[str, Any]]:
        """For each text, or pair of texts, its `label`, `probability`, and `probabilities` by label name."""
        if any(isinstance(text, tuple) != self.settings["pairs"] for text in texts):
            raise UserError(f"This model reads {'pairs (text, text)' if self.settings['pairs'] else 'single texts'}.")
        self.eval()
        ids = self.encoder.tokenize(texts)
        order = sorted(range(len(ids)), key=lambda i: count(ids[i]))
        results: list[dict[str, Any]] = [{} for _ in ids]
        device = next(self.parameters()).device
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            batch = self.encoder.collate_for_head([ids[i] for i in rows], self.max_length)
            logits = self({name: value.to(device) for name, value in batch.items()})
            for row, probabilities in zip(rows, logits.float().softmax(-1).tolist(), strict=True):
                results[row] = self.named(probabilities)
        return results

    def named(self, probabilities: list[float]) -> dict[str, Any]:
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        return {
            "label": self.labels[best],
            "probability": probabilities[best],
            "probabilities": dict(zip(self.labels, probabilities, strict=True)),
        }

    def save(self, folder: Path, *, card: str) -> None:
        """The layout of an encoder folder, plus the head's tensors and the label names in `config.json`."""
        from safetensors.torch import save_file

        self.encoder.save(folder, card=card)
        config = {
            **self.encoder.config,
            "id2label": {str(index): name for index, name in enumerate(self.labels)},
            "label2id": {name: index for index, name in enumerate(self.labels)},
            "head": self.settings,
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        state = self.encoder.export_state() | {f"head.{name}": value for name, value in self.head.state_dict().items()}
        tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder: str | Path) -> Classifier:
    """A fine-tuned model from its folder, in eval mode.

    Raises:
        UserError: no such folder, or one of an encoder without a head.
    """
    folder = Path(folder)
    config = read_config(folder)
    if "head" not in config or "id2label" not in config:
        raise UserError(f"{folder} is an encoder without a head; fine-tune it first (make finetune FROM={folder}).")
    encoder = encoders.encoder_class(config["model_type"]).from_config(config, tokenizers.load(folder))
    state = read_state(folder)
    head = {name.removeprefix("head."): state.pop(name) for name in list(state) if name.startswith("head.")}
    encoder.import_state(state)
    labels = [config["id2label"][str(index)] for index in range(len(config["id2label"]))]
    model = Classifier(encoder, labels=labels, **config["head"])
    model.head.load_state_dict(head)
    return model.eval()
