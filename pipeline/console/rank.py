"""Which process of a run this is."""

from __future__ import annotations

import os
import sys

NAMES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # where Lightning reads it when it is imported


def is_main() -> bool:
    """Whether this is the process of rank 0: of several, it alone writes and prints."""
    lightning = sys.modules.get("lightning.pytorch.utilities.rank_zero")  # commands that train have imported it
    if lightning is not None and hasattr(lightning, "rank_zero_only"):
        return bool(lightning.rank_zero_only.rank == 0)
    return next((int(os.environ[name]) for name in NAMES if name in os.environ), 0) == 0
