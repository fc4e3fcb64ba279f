"""The lines of Python that load a folder: in transformers where it opens there, else in this library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TASK_TAGS = ("text-classification", "token-classification")
PAIR = '{"text": "A dog runs.", "text_pair": "An animal moves."}'


def loading(
    config: Mapping[str, Any], place: str, *, library: str, tag: str, on_hub: bool = False, branch: str | None = None
) -> str:
    """A sentence, and three lines of Python.

    Args:
        config: the content of the folder's config.json.
        place: the folder, or its name on the hub.
        library: what opens it.
        tag: its pipeline tag.
        on_hub: whether the place is a name on the hub.
        branch: of the hub; None: the main one.
    """
    quoted = f'"{place}"' + ("" if branch is None else f', revision="{branch}"')
    pairs = bool(config.get("head", {}).get("pairs"))
    if library == "transformers":
        lines = _in_transformers(config, quoted, tag=tag, pairs=pairs)
        where = "It opens in transformers unchanged"
    else:
        lines = _in_ours(quoted, tag=tag, pairs=pairs, predicts="head" in config, on_hub=on_hub)
        lacking = "head for pairs" if config.get("head", {}).get("pair") in ("compared", "attended") else "model"
        where = f"It opens in {library}; transformers has no such {lacking}"
    named = "" if on_hub else f" (`{place}` is this folder)"
    code = "\n".join(lines)
    return f"{where}{named}:\n\n```python\n{code}\n```\n"


def _in_transformers(config: Mapping[str, Any], quoted: str, *, tag: str, pairs: bool) -> list[str]:
    if tag in TASK_TAGS:
        text = PAIR if pairs else '"A dog runs."'
        given = f"{text}, truncation=True" if tag == "text-classification" else text
        return ["from transformers import pipeline", f'model = pipeline("{tag}", model={quoted})', f"model({given})"]
    [architecture] = config.get("architectures", ["AutoModel"])  # of layers alone, without a trained head
    return [
        f"from transformers import AutoTokenizer, {architecture}",
        f"tokenizer = AutoTokenizer.from_pretrained({quoted})",
        f"model = {architecture}.from_pretrained({quoted})",
    ]


def _in_ours(quoted: str, *, tag: str, pairs: bool, predicts: bool, on_hub: bool) -> list[str]:
    folder = f"snapshot_download({quoted})" if on_hub else quoted
    lines = ["from huggingface_hub import snapshot_download"] if on_hub else []
    if predicts:
        text = '("A dog runs.", "An animal moves.")' if pairs else '"A dog runs."'
        return [*lines, "import pipeline", f"model = pipeline.load({folder})", f"model.predict([{text}])"]
    opened = f"encoder = encoders.load({folder})"
    if tag in ("text-generation", "text2text-generation"):
        nats = 'prompting.log_likelihoods(encoder, [("A dog", " runs.")])'
        return [*lines, "from pipeline import encoders, prompting", opened, nats]
    return [*lines, "from pipeline import encoders", opened, 'layers = encoder.encode(["A dog runs."]).layers']
