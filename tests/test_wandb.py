"""Weights & Biases: keys, ids of runs, and what happens where it cannot be reached."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loggers import WandbLogger
from wandb.sdk.lib.wbauth.wbnetrc import write_netrc_auth

from pipeline.cli.commands.sync import sync
from pipeline.errors import UserError
from pipeline.tracking import wandb as tracking
from pipeline.tracking.history import History
from pipeline.tracking.wandb import ResumableWandb
from pipeline.tracking.wandb_environment import has_key, wandb_mode


@pytest.fixture(autouse=True)
def a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Someone without a key, and with a home of their own."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_RUN_ID", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tracking, "TAKEN", set())
    return tmp_path


def test_a_run_that_goes_on_online_sends_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step that W&B has may lack a part of its row, as that of a validation: it is sent again."""
    history, sent = History(tmp_path), []
    for step in (4, 5, 6):
        history.log_metrics({"train/loss": 1.0}, step)
    logger = ResumableWandb(folder=tmp_path, mode="online")
    monkeypatch.setattr(
        ResumableWandb,
        "experiment",
        SimpleNamespace(summary={"trainer/global_step": 5}, define_metric=lambda *_, **__: 0),
    )
    monkeypatch.setattr(WandbLogger, "log_metrics", lambda self, metrics, step: sent.append(step))
    logger.send_missing(history)
    assert sent == [5, 6]


@pytest.mark.parametrize("file", [".netrc", "_netrc", "elsewhere"])
def test_the_key_of_wandb_login_is_found(a_user: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (has_key(), wandb_mode()) == (False, "offline")
    monkeypatch.setenv("NETRC", f"~/{file}")
    (a_user / file).touch(mode=0o644)
    import wandb

    write_netrc_auth(host=wandb.Settings().base_url, api_key="k" * 40)
    if file != "elsewhere":
        monkeypatch.delenv("NETRC")
    (a_user / file).chmod(0o644)
    assert (has_key(), wandb_mode()) == (True, "online")


@pytest.mark.parametrize(
    ("machine", "known"), [("api.wandb.ai", True), ("github.com", False), ("wandb.mine.org", False), ("wandb {", False)]
)
def test_keys_of_other_machines_are_none(a_user: Path, machine: str, known: bool) -> None:
    (a_user / ".netrc").write_text(f"machine {machine} login user password {'k' * 40}\n")
    assert has_key() == known


def test_a_server_of_ones_own_has_its_own_key(a_user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.mine.org")
    (a_user / ".netrc").write_text(f"machine api.wandb.ai login user password {'k' * 40}\n")
    assert not has_key()
    (a_user / ".netrc").write_text(f"machine wandb.mine.org login user password {'k' * 40}\n")
    assert has_key()


def test_a_run_that_cannot_be_opened_is_a_warning(a_user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Unreachable:
        closed = a_user / "wandb" / "closed.json"

        @property
        def experiment(self) -> Any:
            raise OSError("no route to host")

    logged: list[Any] = []
    tracking.end_run(Unreachable(), logged.append)  # type: ignore[arg-type]
    assert logged == []
    assert "Warning: Weights & Biases did not receive all of this run: no route to host" in capsys.readouterr().err


def test_an_id_of_the_environment_is_that_of_one_run(a_user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    about: dict[str, Any] = {"job_type": "finetune", "group": "g", "tags": ["bert"], "config": {}}
    for name in ("a", "b", "a"):
        tracking.wandb_logger(a_user / name, **about)
    ids = [(a_user / name / "wandb/run-id").read_text() for name in "ab"]
    assert ids[0] == "mine" != ids[1]


def test_what_was_uploaded_is_not_counted(a_user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("20260101_000000-one", "20260101_000001-one", "20260101_000002-two"):
        folder = a_user / "runs/a/wandb" / f"offline-run-{name}"
        folder.mkdir(parents=True)
        (folder / f"run-{name[-3:]}.wandb").touch()
    with pytest.raises(UserError, match=r"2 offline runs under .* wait for a key"):
        sync([a_user])
    for file in a_user.rglob("*.wandb"):
        file.with_name(f"{file.name}.synced").touch()
    assert sync([a_user]) == 0
