"""Which process of a run this is."""

from __future__ import annotations

from lightning.pytorch.utilities import rank_zero_only


def is_main() -> bool:
    """Whether this is the process of rank 0: of several, it alone writes and prints."""
    return getattr(rank_zero_only, "rank", 0) == 0
