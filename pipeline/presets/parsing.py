"""How jsonargparse reads configurations: a YAML file names the class of its task, former names are translated; and what
it says of a wrong setting, in a sentence."""

from __future__ import annotations

import re
from pydoc import locate

import yaml
from jsonargparse import get_loader, set_loader, set_parsing_settings

from pipeline.presets import former_names
from tasks.base import Task
from tasks.dataset import DataSet

set_parsing_settings(subclasses_enabled=[DataSet, Task])  # a YAML names the kind of task, a dataclass
_load_yaml = get_loader("yaml")
set_loader("yaml", lambda text: former_names.current(_load_yaml(text)), exceptions=(yaml.YAMLError,))

NO_TEXT = (  # of a mapping of texts, as the names of labels
    r"Parser key \"(?P<key>[\w.]+)\":\s+Does not validate.*dict\[str, str\].*"
    r"Expected a <class 'str'>\. Got value: (?P<value>[^\n]+)"
)


def first_sentence(message: str) -> str:
    message = message[max(0, message.rfind("Parser key")) :]  # what is before it speaks of types in Python
    if found := re.search(NO_TEXT, message, flags=re.DOTALL):
        return f"{found['key']} has {found['value']} where a text is needed: put it in quotes."
    message = re.sub(r"Expected an instantiatable class, but (\S+) is abstract", _lacking, message)
    message = re.sub(r"\s*Got value: Namespace\(.*", "", message, flags=re.DOTALL)  # the value itself is before it
    lines = [line.strip(" -") for line in message.replace("error: ", "").splitlines() if line.strip()]
    return " ".join(lines)[:400].rstrip(".") + "."


def _lacking(found: re.Match[str]) -> str:
    """The methods that a class needs to be one, and has not."""
    names = sorted(getattr(locate(found[1]), "__abstractmethods__", ()))
    return f"{found[1]} has no {', '.join(names) or 'methods'} yet"
