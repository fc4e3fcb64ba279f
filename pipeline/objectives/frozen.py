"""A model that an objective consults and does not train, as the teacher of a distillation (Hinton et al. 2015)."""

from __future__ import annotations

from typing import Any

import torch

from pipeline.models.base import Encoder
from pipeline.models.inputs import Inputs
from pipeline.models.outputs import Encoded


class Frozen:
    """A model in eval mode, without gradients, on the device of its inputs.

    An objective makes one in `setup`. It is not a module, so its weights are in no checkpoint, no optimizer and no
    parameter count; a resumed run loads it again.
    """

    def __init__(self, model: Encoder) -> None:
        self.model = model.eval().requires_grad_(False)

    def __call__(self, inputs: Inputs, state: Any = None) -> Encoded:
        if (device := inputs["mask"].device) != self.model.device:
            self.model.to(device)
        with torch.no_grad():
            return self.model(inputs, state)
