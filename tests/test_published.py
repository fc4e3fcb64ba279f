"""What leaves the machine: no secrets, folders or private texts in W&B, cards, pages and uploads; no code of others."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.cards.publish import files_of
from pipeline.data import hub, row_sources
from pipeline.errors import UserError
from pipeline.tracking.public import public, without_secrets
from pipeline.tracking.tables import cells_of, escaped, markdown_line
from tasks.classification import Classification
from tasks.plots import confusion
from tests.conftest import command, run

COLUMNS = {"text": "text", "label": "label"}
TINY = ["--data.train_rows=32", "--data.epochs=1", "--validations=1", "--data.max_length=24"]


def test_a_page_of_a_run_of_others_runs_no_code(pretrained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(pretrained, tmp_path / "shared")
    config = (folder / "config.yaml").read_text()
    assert "class_path: pipeline.objectives.masked_lm.MaskedLM" in config
    (folder / "config.yaml").write_text(config.replace("pipeline.objectives.masked_lm.MaskedLM", "shared.evil.Evil"))
    (folder / "evil.py").write_text("open('owned', 'w').close()\nclass Evil: pass\n")
    done = command("report", "--from", "shared")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "owned").exists()


def test_which_data_sets_of_the_hub_are_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    (tmp_path / "org" / "set").mkdir(parents=True)
    for address, name in (
        ({"path": "stanfordnlp/sst2"}, "stanfordnlp/sst2"),
        ({"path": "imdb", "name": "plain_text"}, "imdb"),
        ({"path": "wikimedia/wikipedia", "data_files": "de/*.parquet"}, "wikimedia/wikipedia"),
        ({"path": "stanfordnlp/sst2", "token": "hf_x"}, None),
        ({"path": "org/set"}, None),  # a folder
        ({"path": str(tmp_path / "org")}, None),
        ({"path": "csv", "data_files": "mine.csv"}, None),
    ):
        assert hub.public_name(address) == name
    assert not row_sources.is_public(Classification(COLUMNS, hub={"path": "org/set"}), None)
    assert not row_sources.is_public(Classification(COLUMNS, sample="sentiment"), "mine.csv")
    assert row_sources.is_public(Classification(COLUMNS, sample="sentiment"), None)


def test_the_hub_is_asked_where_the_user_is_logged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        def __init__(self, *, token: bool) -> None:
            assert not token  # as anybody else

        def dataset_info(self, path: str, timeout: float) -> Any:
            if path == "me/secret":
                raise OSError("404")
            return SimpleNamespace(private=False)

    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    hub._is_open.cache_clear()
    assert hub.public_name({"path": "me/open"}) == "me/open"
    assert hub.public_name({"path": "me/secret"}) is None
    hub._is_open.cache_clear()


def test_private_texts_under_hub_stay_here(pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(
        f"patient smith {n} is {'well' if n % 2 else 'ill'},{'good' if n % 2 else 'bad'}\n" for n in range(40)
    )
    (tmp_path / "private").mkdir()
    for part in ("train", "validation", "test"):
        (tmp_path / f"private/{part}.csv").write_text("text,label\n" + rows)
    address = f"{{path: {tmp_path}/private, token: hf_SESAME}}"
    init = f"{{columns: {{text: text, label: label}}, hub: {address}, hub_splits: {{valid: validation}}}}"
    task = f"data: {{task: {{class_path: tasks.sentiment.Sentiment, init_args: {init}}}}}\n"
    (tmp_path / "mine.yaml").write_text(task)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    out = tmp_path / "out"
    run("finetune", "--from", str(pretrained / "encoder"), "--task", "mine.yaml", "--out", str(out), *TINY)
    sent = [file.read_bytes() for file in (out / "wandb").rglob("*") if file.is_file()]
    assert sent
    assert not any(b"smith" in content or b"SESAME" in content for content in sent)
    made = (out / "model/README.md").read_text() + (out / "model/lineage.json").read_text()
    assert str(tmp_path) not in made
    run("report", "--from", str(out))
    page = (out / "report.html").read_text()
    assert "SESAME" not in page
    assert "data.task.init_args.hub.path" in page


def test_secrets_of_settings_and_commands() -> None:
    settings = {"tracking_uri": "https://me:SESAME@host/x", "passwd": "SESAME", "api_keys": ["SESAME"], "max_tokens": 3}
    assert public(settings) == {"tracking_uri": "https://host/x", "max_tokens": 3}
    kept = "python -m pipeline finetune --data.tokenizer.file=t.json --model.max_tokens 3 --data.text_column=key"
    given = " --data.task.init_args.hub.token=SESAME --api-key 'SES AME' --trainer.logger.uri=https://me:SESAME@host"
    hidden = " --data.task.init_args.hub.token=... --api-key ... --trainer.logger.uri=https://host"
    assert without_secrets(kept + given) == kept + hidden
    mapping = '\'--data.hub={path: org/set, token: %s, "api_key": "%s"}\' --data.text_column={key}'
    assert without_secrets(mapping % ("SESAME", "SE SAME")) == mapping.replace('"%s"', "%s") % ("...", "...")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a `b` <i>", "a `b` \\<i>"),
        ("x ` <img src=y>", "x \\` \\<img src=y>"),
        ("`<b>` stays", "`<b>` stays"),
        ("![t](http://x)", "\\![t](http://x)"),
        ("a < b", "a < b"),
    ],
)
def test_markdown_shows_texts_as_they_are(text: str, shown: str) -> None:
    assert escaped(text) == shown


@pytest.mark.parametrize(
    "text", ["x ` <img src=y>", "`` ` <img>", "\\`<img>` ` <b>", "<!-- x", "`a` ``<b>`` `", "![x](y)", "a | `b | c`"]
)
def test_no_text_becomes_a_tag(text: str) -> None:
    markdown_it = pytest.importorskip("markdown_it")
    line = markdown_line([text, "b"])
    html = markdown_it.MarkdownIt("commonmark").enable("table").render(f"| a | b |\n| --- | --- |\n{line}")
    assert "<img" not in html
    assert "<b>" not in html
    assert "<!--" not in html
    assert html.count("<td>") == 2


def test_cells_are_read_as_they_were_written() -> None:
    cells = ["A taxi <mask> | x", "a `b` c", "![x]"]
    assert cells_of(markdown_line(cells)) == cells


def test_a_confusion_matrix_of_long_labels_has_room() -> None:
    names = ["Consumer Loan: vehicle loan or lease, of any kind", "x" * 120, "Credit reporting"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = confusion([0, 1, 2, 2], [0, 1, 1, 2], names)["confusion"]
        figure.canvas.draw()
    place = figure.axes[0].get_position()
    assert place.width > 0.25
    assert place.height > 0.25


def test_only_files_of_the_folder_are_uploaded(pretrained: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--a--b"
    (cache / "blobs").mkdir(parents=True)
    folder = cache / "snapshots/main"
    folder.mkdir(parents=True)
    for number, file in enumerate(sorted((pretrained / "encoder").iterdir())):  # as the hub's cache keeps files
        shutil.copyfile(file, cache / f"blobs/{number}")
        (folder / file.name).symlink_to(os.path.relpath(cache / f"blobs/{number}", folder))
    assert "model.safetensors" in files_of(folder, "anna/x", {})
    (tmp_path / "secret.txt").write_text("sesame")
    (folder / "vocab.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(UserError, match=r"vocab\.txt is a link to .*secret\.txt"):
        files_of(folder, "anna/x", {})


def test_labels_stand_in_a_card_as_they_are(pretrained: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for part in ("train", "dev", "test"):
        lines = [
            json.dumps({"text": f"a {n}", "label": ["<NEG>", "<script>alert(1)</script>"][n % 2]}) for n in range(20)
        ]
        (tmp_path / f"data/{part}.jsonl").write_text("\n".join(lines) + "\n")
    out = tmp_path / "out"
    flags = [
        "--task",
        "sentiment",
        "--data.task.init_args.labels=null",
        "--data",
        str(tmp_path / "data"),
        "--out",
        str(out),
    ]
    run("finetune", "--from", str(pretrained / "encoder"), *flags, *TINY)
    card = (out / "model/README.md").read_text()
    assert "labels \\<NEG>, \\<script>alert(1)\\</script>" in card
