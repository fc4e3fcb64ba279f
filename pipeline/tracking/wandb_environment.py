"""The environment of Weights & Biases: mode, key, id of the run; and a run of it that an error left open."""

from __future__ import annotations

import contextlib
import netrc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.errors import UserError
from tasks.dataset import shortened


def wandb_mode() -> str:
    """$WANDB_MODE, else `online` if a key is configured, else `offline`.

    Raises:
        UserError: $WANDB_MODE is none of W&B's.
    """
    mode = os.environ.get("WANDB_MODE") or ("online" if has_key() else "offline")
    if mode not in ("online", "offline", "disabled"):
        raise UserError(f"WANDB_MODE is {mode}; it may be online, offline or disabled.")
    return mode


HOSTS = ("api.forge.coreweave.com", "api.wandb.ai")  # of the public server: `wandb login` of newer and older versions
RUN_ID = re.compile(r"(?!\s)[^:;,#?/'\\\0-\x1f]{1,128}(?<!\s)")
PROJECT = re.compile(r"[^/\\#?%:]{1,128}")


def wandb_project() -> str:
    """The project that runs go to: that of the environment, or that of this library."""
    return os.environ.get("WANDB_PROJECT") or "pretrain-finetune"


def check_environment() -> None:
    """Refuses environment variables of Weights & Biases with which a run would fail after its start.

    Raises:
        UserError: an unknown mode, `online` without a key, or an impossible run id or project.
    """
    mode, name = wandb_mode(), os.environ.get("WANDB_RUN_ID")
    if mode == "online" and not has_key():
        raise UserError("WANDB_MODE is online, but there is no key: set WANDB_API_KEY, or leave WANDB_MODE out.")
    if mode != "disabled" and name and not RUN_ID.fullmatch(name):
        raise UserError(
            f"WANDB_RUN_ID is {shortened(name)!r}; it may have up to 128 characters, and none of :;,#?/'\\."
        )
    project = os.environ.get("WANDB_PROJECT")
    if mode != "disabled" and project and not PROJECT.fullmatch(project):
        raise UserError(
            f"WANDB_PROJECT is {shortened(project)!r}; it may have up to 128 characters, and none of /\\#?%: "
            "(WANDB_ENTITY names the team)."
        )
    if mode != "disabled":
        check_types()


def check_types() -> None:
    """Raises: UserError, a variable of Weights & Biases has a value that it cannot read, as a word for a number."""
    if not any(name.startswith("WANDB_") for name in os.environ):
        return
    import wandb
    from pydantic import ValidationError

    try:
        wandb.Settings().update_from_env_vars(dict(os.environ))
    except ValidationError as error:
        first = error.errors()[0]
        name = f"WANDB_{str(first['loc'][0]).upper()}" if first["loc"] else "A variable of Weights & Biases"
        raise UserError(f"{name} is {first['input']!r}, which Weights & Biases cannot read.") from None


def has_key() -> bool:
    """Whether a key of W&B is configured, in the environment or by `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    places = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    file = next((path for place in places if (path := Path(place).expanduser()).is_file()), None)
    if file is None:
        return False
    try:
        known = netrc.netrc(str(file)).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    server = os.environ.get("WANDB_BASE_URL")
    return any(host in known for host in ((urlsplit(server).netloc,) if server else HOSTS))


def end_open_run() -> None:
    """Ends a W&B run that is still open: the next run of this process would be logged into it."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        with tolerated():
            wandb.finish(exit_code=int(sys.exc_info()[0] is not None))


@contextlib.contextmanager
def tolerated() -> Iterator[None]:
    """Turns errors of Weights & Biases into a warning, where the run is complete without it."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] != "wandb":
            raise
        print(
            f"Warning: Weights & Biases did not receive all of this run: {' '.join(str(error).split())}",
            file=sys.stderr,
        )
