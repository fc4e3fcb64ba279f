"""Errors of jsonargparse in plain words: which key, what it is, what it may be, what was meant."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Mapping
from pydoc import locate
from typing import Any

from pipeline.cli.short_names import KEYS, Stage
from pipeline.console.similar import similar
from pipeline.presets.parsing import first_sentence

ELSEWHERE = {  # what other programs call it
    **{"lr": "learning-rate", "max_steps": "steps", "max-steps": "steps", "num_train_epochs": "epochs"},
    **{
        "max_epochs": "epochs",
        "per_device_train_batch_size": "batch-size",
        "gradient_accumulation_steps": "accumulate",
    },
    **{"bf16": "precision", "fp16": "precision", "num_workers": "data.workers", "output_dir": "out"},
}
FLAGS = (  # which are no settings
    *("model", "data", "seed", "corpus", "task", "from", "teacher", "arm", "seeds", "out", "overwrite", "resume"),
    *("quiet", "verbose"),
)
ONLY: Mapping[Stage, tuple[str, ...]] = {"pretrain": ("corpus",), "finetune": ("task", "arm", "seeds")}  # has them
KINDS = {"int": "a whole number", "float": "a finite number", "bool": "true or false", "str": "a text"}
KINDS["list[int]"] = "a list of whole numbers, as [10, 20]"
NOT_KNOWN = (  # what names a key that there is not
    r"nrecognized arguments: --(?P<flag>[^\s=]+)",
    r"Group '(?P<group>[^']+)' does not accept option '(?P<option>[^']+)'",
    r"Parser key \"(?P<parent>[^\"]+)\"(?:.*?class_path '(?P<path>[^']+)')?"
    r".*Option '(?P<argument>[^']+)' is not accepted",
)
WRONG = r'Parser key "(?P<key>[^"]+)": Expected a (?:<class \'(?P<kind>\w+)\'>|typing\.Literal(?P<choices>\[[^]]*\]))'
UNION = (
    r'Parser key "(?P<key>[^"]+)": Does not validate.* Subtypes: (?P<kinds>.*) Errors: .* Given value: (?P<value>.*)\.$'
)
NESTED = (  # of a group of settings that may be null
    r"Parser key \"(?P<group>[^\"]+)\":\s+Does not validate.*Parser key \"(?P<name>\w+)\":"
    r"\s+Expected a <class '(?P<kind>\w+)'>\. Got value: (?P<value>[^\n]*)\n.*<class 'NoneType'>"
)
CLASS = r"Parser key \"(?P<key>[^\"]+)\": .*Problem with given class_path '(?P<path>[^']+)': (?P<why>.*)$"
NO_CLASS = r'Parser key "(?P<key>[^"]+)":.* Expected a dot import path string: (?P<path>\S+)'
OTHER_CLASS = (
    r'Parser key "(?P<key>[^"]+)": .*Import path (?P<path>\S+) does not correspond to a subclass of (?P<base>\w+)'
)


def key_in(message: str) -> str | None:
    """The name of the key that an error is about."""
    keys = re.findall(r"(?:key|option|Option) ['\"]([^'\"]+)", message)
    return keys[-1] if keys else None


def plain(message: str, keys: Iterable[str], classes: Mapping[str, str]) -> str:
    """An error as one sentence, with a suggestion where there is one.

    Args:
        keys: all that there are.
        classes: key -> the class path that it has.
    """
    if found := re.search(NESTED, message, flags=re.DOTALL):
        return f"{found['group']}.{found['name']} is {found['value']}; it must be {KINDS[found['kind']]}."
    message = first_sentence(message)
    for pattern in NOT_KNOWN:
        if found := re.search(pattern, message):
            return _not_known(found.groupdict(), [*keys], classes)
    if found := re.search(WRONG + r".* Got value: (?P<value>.*)\.$", message):
        kind, choices = found["kind"], found["choices"]
        may_be = KINDS.get(kind, kind) if kind else "one of " + ", ".join(map(str, ast.literal_eval(choices)))
        return f"{found['key']} is {found['value']}; it must be {may_be}."
    if found := re.search(r"following arguments are required: (?P<keys>[\w., -]+)\.$", message):
        first = found["keys"].partition(",")[0].strip().lstrip("-")
        return f"{first} is set nowhere: give it a value in a YAML file, or as --{first}=VALUE."
    if found := re.search(NO_CLASS, message):
        return f"{found['key']} is {found['path']}; it must be the name of a class."
    if found := re.search(UNION, message):
        kinds = re.findall(r"(\w+(?:\[int\])?)(?='>|,)|Literal\[([^]]*)\]", found["kinds"])
        may_be = " or ".join(KINDS.get(kind, choices.replace("'", "")) for kind, choices in kinds if kind != "NoneType")
        return f"{found['key']} is {found['value']}; it must be {may_be}."
    if found := re.search(CLASS, message):
        return f"{found['key']} is {found['path']}, which cannot be loaded: {found['why']}"
    if found := re.search(OTHER_CLASS, message):
        return f"{found['key']} is {found['path']}, which is not a subclass of {found['base']}."
    return message


def _not_known(found: Mapping[str, str], keys: list[str], classes: Mapping[str, str]) -> str:
    if flag := found.get("flag"):
        named = {name.rpartition(".")[2]: name for name in reversed(keys)} | {name: name for name in keys}
        named |= {name: name for name in FLAGS}
        named |= {
            name.replace("-", sign): name for names in KEYS.values() for name in names for sign in "-_"
        } | ELSEWHERE
        meant = flag if flag in named else similar(flag, named)
        word = named[meant] if meant else None
        if word == flag:  # a short name that others have
            word = next((names[word] for names in KEYS.values() if names.get(word) in keys), None)
        others = [stage for stage, names in KEYS.items() if flag in (*names, *ONLY[stage])]
        hint = f" Did you mean --{word}?" if word else f" It is one of {others[0]}." if len(others) == 1 else ""
        return f"There is no setting or flag --{flag.rstrip('.')}.{hint}"
    if parent := found.get("parent"):
        prefix, name = f"{parent}.init_args", found["argument"]
        kind: Any = locate(found.get("path") or classes[parent])
        keys = [f"{prefix}.{argument}" for argument in inspect.signature(kind).parameters]
    else:
        prefix, name = found["group"], found["option"]
    meant = similar(f"{prefix}.{name}", keys)
    return f"there is no setting {prefix}.{name}." + (f" Did you mean {meant}?" if meant else "")


def sentence(message: str) -> str:
    """With a capital letter, unless it begins with the name of a key."""
    begins_with_key = re.match(r"[\w.]+ is ", message) and not message.startswith("there is")
    return message if begins_with_key else f"{message[0].upper()}{message[1:]}"
