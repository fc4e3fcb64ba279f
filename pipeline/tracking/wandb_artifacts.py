"""Folders that runs make and use, as artifacts of Weights & Biases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline import encoders
from pipeline.storage.checksums import file_hash
from pipeline.storage.validation import read_json
from pipeline.tracking import lineage
from pipeline.tracking.wandb import ResumableWandb, staged_in
from pipeline.tracking.wandb_environment import tolerated


def artifact_name(kind: str, folder: Path) -> str:
    """The name of an artifact, so that W&B counts versions: bert-sample, and of a model bert-sample-sentiment.

    All encoders of a model and corpus are one collection, and all that is fine-tuned from them on a task another.
    """
    model = encoders.variant(read_json(folder / "config.json", dict[str, Any]))
    stages, names = lineage.read(folder), [model]
    for origin in ("corpus", "task")[: 1 if kind == "encoder" else 2]:
        names += lineage.names_of(stages, origin)[-1:] or ([kind] if origin == "corpus" else [])
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(names))[:128]


def folder_artifact(kind: str, folder: Path, about: Mapping[str, Any]) -> tuple[Any, str]:
    """A folder as an artifact, and the alias of its version: the beginning of the hash of the weights.

    Args:
        about: further metadata.
    """
    import wandb

    content = file_hash(folder / "model.safetensors")
    artifact = wandb.Artifact(artifact_name(kind, folder), type=kind, metadata={"sha256": content, **about})
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            # Not copied into W&B's cache: the file stays in the run folder.
            artifact.add_file(str(file), name=file.name, policy="immutable", skip_cache=True)
    return artifact, content[:12]


def log_artifact(run: Any, kind: str, folder: Path, about: Mapping[str, Any], aliases: Iterable[str]) -> None:
    """Logs a folder that a run has made, as the latest version of its artifact.

    Args:
        about: its metadata.
        aliases: further ones, as the arm: each names the latest version that had it.
    """
    artifact, alias = folder_artifact(kind, folder, about)
    run.log_artifact(artifact, aliases=["latest", alias, *aliases])


def use_artifact(logger: ResumableWandb, encoder: Path) -> None:
    """Declares that a run uses an encoder, unless it is private: W&B would upload it, with its vocabulary.

    The run's configuration has the hash of the weights in any case, so errors are warnings.
    """
    stages = lineage.read(encoder)
    if not lineage.is_public(stages):
        return
    run = logger.experiment  # outside: an error here means no logging at all
    kind = "model" if stages[-1]["stage"] == "model" else "encoder"
    with tolerated(), staged_in(logger.closed.parent):
        artifact, alias = folder_artifact(kind, encoder, {})
        if logger.mode == "online":
            run.use_artifact(artifact, aliases=[alias])
        elif hasattr(run, "_log_artifact"):
            # use_artifact refuses to work offline; this records what it would send, and `make sync` sends that.
            run._log_artifact(artifact, aliases=[alias], is_user_created=True, use_after_commit=True)
