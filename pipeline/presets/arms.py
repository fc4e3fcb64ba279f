"""Arms: the ways to fine-tune that are compared."""

from __future__ import annotations

from typing import Literal, get_args

ArmName = Literal["full", "scratch", "frozen", "random"]  # in the order of tables
ARMS = get_args(ArmName)
FROZEN = ("frozen", "random")  # a head alone is trained
FRESH = ("scratch", "random")  # on fresh weights
