"""The nodes of a distributed run: how they find one another, and how long they wait."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.pytorch.utilities import rank_zero_only

from pipeline.errors import UserError
from pipeline.tracking import lineage

LATEST = 90  # seconds after which a file of another machine is seen


def set_rank_of_node(num_nodes: int) -> None:
    """Marks a process of another node than the first as not of rank 0, before its trainer exists.

    Lightning reads RANK and the like when it is imported, but NODE_RANK (or GROUP_RANK) only in a trainer. Runs on one
    node ignore them: a cluster may set them for every job.
    """
    node = os.environ.get("NODE_RANK", os.environ.get("GROUP_RANK", "0"))
    if num_nodes > 1 and node != "0" and "RANK" not in os.environ:
        rank_zero_only.rank = max(1, getattr(rank_zero_only, "rank", 0))  # type: ignore[attr-defined]


def prepare_nodes(trainer: Any) -> None:
    """Sets how long nodes wait for one another: $PIPELINE_NODE_TIMEOUT minutes, else Lightning's 30.

    Raises:
        UserError: no port is set where they could meet, or the timeout is not a positive number.
    """
    if trainer.num_nodes < 2:
        return
    if (text := os.environ.get("PIPELINE_NODE_TIMEOUT")) is not None:
        try:
            minutes = float(text)
        except ValueError:
            minutes = 0
        if not 0 < minutes < 10**6:
            raise UserError(f"PIPELINE_NODE_TIMEOUT is {text}; it must be a number of minutes above 0.")
        trainer.strategy._timeout = timedelta(minutes=minutes)  # of the process group: also when a node is lost later
    if not trainer.strategy.cluster_environment.creates_processes_externally and "MASTER_PORT" not in os.environ:
        raise UserError(
            f"trainer.num_nodes is {trainer.num_nodes}, but no other node could find this one: set MASTER_ADDR and "
            "MASTER_PORT to the same on all of them and NODE_RANK to 0, 1, ..., or start them by SLURM."
        )


def appears(folder: Path) -> bool:
    """Whether the run folder that the first process has begun is seen here, after a while: file systems may be slow."""
    for _ in range(LATEST):
        if (folder / lineage.FILE).is_file():
            return True
        time.sleep(1)
    return False


def announce_nodes(trainer: Any) -> None:
    """Prints where a run waits for its other nodes, and for how long."""
    if trainer.num_nodes > 1 and trainer.is_global_zero:
        cluster, longest = trainer.strategy.cluster_environment, getattr(trainer.strategy, "_timeout", None)
        where = f"{cluster.main_address}:{cluster.main_port}"
        minutes = (longest or default_pg_timeout).total_seconds() / 60
        print(f"Waiting for the other nodes at {where}, for at most {minutes:g} minutes ...", flush=True)
