"""Fresh weights for the top layers of a pretrained encoder (Zhang et al. 2021).

The top layers know most of pretraining's own task and least of any other; on few rows fine-tuning does not unlearn it.
"""

from __future__ import annotations

import torch
from torch import nn

from pipeline.errors import UserError
from pipeline.models.base import Encoder


def refresh(encoder: Encoder, layers: int) -> list[str]:
    """Gives the top `layers` layers that heads read new random weights; returns the names of their modules.

    What is on top of them counts as the highest, as BERT's pooler (section 4.2).

    Raises:
        UserError: the encoder has fewer layers.
    """
    groups = [group for group in encoder.layer_groups()[1 : encoder.num_layers] if group]
    if layers > len(groups):
        has = f"has {len(groups)}" if groups else "has none"
        raise UserError(
            f"model.recipe.reinit_layers is {layers}, but this {encoder.model_type} {has} above its embeddings."
        )
    chosen = {id(parameter) for group in groups[len(groups) - layers :] for parameter in group}
    others: nn.Module = type(encoder).from_config(encoder.config, encoder.tokenizer)
    pairs = zip(encoder.named_parameters(), others.parameters(), strict=True)
    found: dict[str, None] = {}
    with torch.no_grad():
        for (name, parameter), new in pairs:
            if id(parameter) in chosen:
                parameter.copy_(new)
                found[module_of(name)] = None
    return list(found)


def module_of(parameter: str) -> str:
    """`blocks.3.attention.query.weight` -> `blocks.3`."""
    first, *rest = parameter.split(".")
    return f"{first}.{rest[0]}" if rest and rest[0].isdigit() else first
