"""What the command line lets choose by name: known before torch is imported, so that a wrong one is told at once."""

from __future__ import annotations

from typing import Literal, get_args

ArmName = Literal["full", "scratch", "frozen", "random"]  # in the order of tables
ARMS = get_args(ArmName)
FROZEN = ("frozen", "random")  # a head alone is trained
FRESH = ("scratch", "random")  # on fresh weights
INPUTS = ("lines", "tsv", "csv", "jsonl")  # what predict reads
