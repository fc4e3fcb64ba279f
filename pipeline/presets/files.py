"""Named configurations: `configs/KIND/NAME.yaml` by name, what is in them, and what is taken where none is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.console.similar import did_you_mean
from pipeline.errors import UserError
from pipeline.presets import former_names
from pipeline.storage.validation import read_yaml

DEFAULT_MODEL, DEFAULT_CORPUS, DEFAULT_TASK = "bert", "sample", "sentiment"
LARGEST_SEED = 2**32 - 1

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PACKAGED = Path(__file__).resolve().parent.parent / "configs"  # of an installed wheel
CONFIGS = PACKAGED if PACKAGED.is_dir() else REPOSITORY / "configs"


def folders_of(kind: str) -> list[Path]:
    """Where configurations of a kind are; users' own tasks are in `configs/tasks` of the current folder."""
    own = Path("configs") / kind
    return [CONFIGS / kind, *([own] if kind == "tasks" and own.is_dir() and own.resolve() != CONFIGS / kind else [])]


def named_config(kind: str, name: str) -> Path | None:
    """`configs/KIND/NAME.yaml`, if there is one; the pipeline's own comes first."""
    name = former_names.CONFIGURATIONS.get((kind, name), name)
    return next((file for folder in folders_of(kind) if (file := folder / f"{name}.yaml").is_file()), None)


def pretraining_files(model: str, corpus: str) -> list[Path]:
    """The configuration files of a pretraining, in their order: what all share, the model's own, the corpus's, and what
    this model takes for this corpus; those that there are."""
    named = [("pretrain", model), ("corpora", corpus), (f"corpora/{corpus}", model)]
    return [CONFIGS / "base.yaml", *(file for place in named if (file := named_config(*place)) is not None)]


def model_file(model: str) -> Path:
    """MODEL= -> `configs/pretrain/MODEL.yaml`.

    Raises:
        UserError: there is no such model.
    """
    file = named_config("pretrain", model)
    if file is None:
        raise UserError(unknown("model", model, "pretrain"))
    return file


def pretrained(model: str) -> Path:
    """Where `make pretrain MODEL=` puts its encoder."""
    return Path("runs/pretrain") / model / "encoder"


def known(kind: str) -> list[str]:
    """The names of a kind."""
    return sorted({path.stem for folder in folders_of(kind) for path in folder.glob("*.yaml")})


def unknown(what: str, name: str, kind: str) -> str:
    """A message that there is no such configuration, with those that there are."""
    names = known(kind)
    return f"There is no {what} '{name}'; there are {', '.join(names)}.{did_you_mean(name, names)}"


def preset_file(kind: str, name: str, what: str) -> Path:
    """A name in `configs/KIND`, or a path -> the YAML file.

    Args:
        what: what it is called in the message.

    Raises:
        UserError: there is none.
    """
    file = named_config(kind, name) or Path(name)
    if not file.is_file():
        raise UserError(f"{unknown(what, name, kind)} A YAML file would do too.")
    return file


# Sections of a configuration; those in the second line may be the name of a class alone.
SECTIONS = ("trainer", "model", "data", "model.optimization", "model.recipe", "data.tokenizer")
CLASSES = ("model.encoder", "model.objective", "data.task")


def content_of(file: Path) -> dict[str, Any]:
    """What a configuration file sets, by today's names.

    Raises:
        UserError: it is not valid YAML, a section is not a mapping, or a setting has two names.
    """
    content = read_yaml(file)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{file} is not valid: it must have settings, as `trainer:`, `model:` or `data:`.")
    try:
        content = former_names.current(content)
    except UserError as error:
        raise UserError(f"{file} is not valid: {error}") from None
    for section in (*SECTIONS, *(f"{part}{rest}" for part in CLASSES for rest in ("", ".init_args"))):
        *above, name = section.split(".")
        parent: Any = content
        for part in above:
            parent = parent.get(part, {}) if isinstance(parent, dict) else {}
        if isinstance(parent, dict) and name in parent:
            value = parent[name]
            if value is None and section == "data.task":  # in pretraining: the text of no task
                continue
            if not isinstance(value, (dict, str) if section in CLASSES else dict):
                shown = "null" if value is None else repr(value)
                raise UserError(f"{file} is not valid: {section} is {shown}; it must be a mapping of settings.")
    return content


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Nested configuration -> dotted names, where some may be written as sections too."""
    if not isinstance(config, dict) or not config:
        return {prefix[:-1]: config} if prefix else {}
    return {name: value for key, part in config.items() for name, value in flat(part, f"{prefix}{key}.").items()}
