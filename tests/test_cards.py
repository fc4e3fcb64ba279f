"""Model cards: the hub accepts them, they say what is true, and their lines of Python run as they stand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from base64 import b64decode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from huggingface_hub import ModelCard

from pipeline import encoders
from pipeline.cards import sections
from pipeline.cards.encoder import beginning
from pipeline.cards.publish import published_card
from pipeline.errors import UserError
from tests.conftest import figures, run, several, surroundings

pytestmark = pytest.mark.slow

ENCODERS = {"bert": "transformers", "gpt": "transformers", "elmo": "pretrain-finetune"}
TUNED = {"bert": ("tagging", "transformers"), "gpt": ("entailment", "transformers"), "elmo": ("sentiment", None)}


def run_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the card's lines of Python have defined, run beside the folder."""
    monkeypatch.chdir(folder.parent)
    [code] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.S)
    assert len(code.splitlines()) == 3
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.mark.parametrize("model", ENCODERS)
def test_the_card_of_an_encoder(
    model: str, toys: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = toys(model)
    folder, metrics = out / "encoder", figures(out)
    card = ModelCard.load(folder / "README.md")
    data, content = card.data, card.content
    assert (data.library_name, data.language) == (ENCODERS[model], "en")
    assert data.get("license") is None  # nobody has chosen one
    assert {model, "synthetic-data"} <= set(data.tags)
    assert data.eval_results[0].metric_value in [round(v, 6) for v in metrics.values() if isinstance(v, float)]
    assert f"{metrics['parameters']:,} parameters" in content
    assert f"{metrics['steps']:,} steps of 16 rows" in content
    assert f"{metrics['baseline/unigram']:.4g} for guessing each token by its frequency" in content
    assert ("bytes of words" in content) == (model == "elmo")
    assert ("transformers unchanged" in content) == (model != "elmo")
    assert content.count("next_sentence") == (model == "bert")  # as the objective has it, not the model's own default
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", content):
        assert (folder / picture).is_file()
    names = run_lines(folder, monkeypatch)
    assert names["layers"] if model == "elmo" else names["model"].config.model_type.startswith(model)


@pytest.mark.parametrize("model", TUNED)
def test_the_card_of_a_fine_tuned_model(
    model: str, toys: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, library = TUNED[model]
    out = tmp_path / "run"
    tiny = ["--data.epochs=1", "--data.train_rows=32", "--validations=1", "--precision=32-true"]
    run("finetune", "--from", str(toys(model) / "encoder"), "--task", task, "--model", model, "--out", str(out), *tiny)
    card, metrics = ModelCard.load(out / "model/README.md"), figures(out)
    [result] = card.data.eval_results
    assert result.metric_value == round(metrics[f"test/{result.metric_type}"], 6)
    assert (result.dataset_name, result.dataset_split) == (task, "test")
    assert card.data.library_name == (library or "pretrain-finetune")
    assert card.data.pipeline_tag == ("token-classification" if task == "tagging" else "text-classification")
    assert all(f"baseline: {name}" in card.content for name in ("training spans" if task == "tagging" else "majority",))
    assert "synthetic: it knows a small made-up world" in card.content
    assert run_lines(out / "model", monkeypatch)["model"]
    assert metrics["encoder"] in (out / "lineage.json").read_text()
    assert {"device", "seed", "version", "date"} <= metrics.keys()


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as one commit of small files needs."""

    requests: ClassVar[list[tuple[str, Any, str | None]]] = []

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        lines = [json.loads(line) for line in body.splitlines() if line.strip()]
        self.requests.append((self.path, lines, self.headers["Authorization"]))
        address = f"http://127.0.0.1:{self.server.server_address[1]}/anna/bert-sample"  # type: ignore[attr-defined]
        answer: dict[str, Any] = {"url": address, "name": "anna/bert-sample"}
        if "preupload" in self.path:
            names = [file["path"] for file in lines[0]["files"]]
            answer = {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
        elif "commit" in self.path:
            answer = {"commitUrl": f"{address}/commit/1", "commitOid": "1" * 40, "hookOutput": ""}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def test_push_lists_what_it_would_upload_and_wants_a_token(
    pretrained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    folder = pretrained / "encoder"
    flags = ["push", "--from", str(folder), "--repo", "anna/bert-sample"]
    run(*flags, "--dry-run")
    said = capsys.readouterr().out
    for path in folder.iterdir():
        assert path.name in said
    assert f"{(folder / 'model.safetensors').stat().st_size:,}  model.safetensors" in said
    assert "(private if it is new); nothing was uploaded" in said
    run(*flags, "--dry-run", "--public")
    assert "(public if it is new); nothing was uploaded" in capsys.readouterr().out
    with pytest.raises(UserError, match="set HF_TOKEN"):
        run(*flags)
    with pytest.raises(UserError, match="USER/NAME"):
        run("push", "--from", str(folder), "--repo", "bert-sample")
    for flag, value in (("--license", "MIT License"), ("--language", "English")):
        with pytest.raises(UserError, match=f"{flag} is {value}; the hub takes codes"):
            run(*flags, "--dry-run", flag, value)
    for license, language in (("openrail++", "zh-Hans"), ("cc-by-4.0", "multilingual"), ("llama3.1", "code")):
        run(*flags, "--dry-run", "--license", license, "--language", language)


def test_a_card_says_how_the_weights_began_and_what_is_known(pretrained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(pretrained / "encoder", tmp_path / "encoder")
    content = (folder / "README.md").read_text()
    assert beginning(sections.TrainingRecord("x", {}, {"model": {"embeddings": "random"}}, [])) == "from random weights"
    counted = sections.TrainingRecord("x", {}, {"model": {"embeddings": "cooccurrence"}}, [])
    assert beginning(counted) == "from random weights and embeddings that were counted in its text"
    assert "On the validation text (at most 64 of its rows), losses in nats" in content
    (folder / "README.md").write_text(content.replace("language: en\n", "") + f"- {sections.NO_LANGUAGE}\n")
    assert sections.NO_LANGUAGE in published_card(folder, "anna/x", {"language": None})
    assert sections.NO_LANGUAGE not in published_card(folder, "anna/x", {"language": "de"})


def test_push_uploads_a_folder_that_is_whole(pretrained: Path, tmp_path: Path) -> None:
    """In a process of its own: huggingface_hub reads the address of the hub when it is imported."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Hub.requests.clear()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    flags = ["push", "--from", str(pretrained / "encoder"), "--repo", "anna/bert-sample", "--license", "mit"]
    flags += ["--language", "de", "--base-model", "anna/base"]
    hub = {"HF_ENDPOINT": address, "HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path)}
    both = several(flags, [*flags, "--public"])
    done = subprocess.run(both, capture_output=True, text=True, env=surroundings(**hub), timeout=300)
    server.shutdown()
    assert done.returncode == 0, done.stderr
    assert f"{address}/anna/bert-sample" in done.stdout
    assert all(token == "Bearer hf_secret" for _, _, token in Hub.requests)
    made = [lines[0] for path, lines, _ in Hub.requests if path.endswith("/repos/create")]
    assert [one["name"] for one in made] == ["bert-sample"] * 2
    assert [one.get("private") is True or one.get("visibility") == "private" for one in made] == [True, False]
    commit = [lines for path, lines, _ in Hub.requests if "/commit/" in path][-1]
    sent = {line["value"]["path"]: b64decode(line["value"]["content"]) for line in commit if line["key"] == "file"}
    assert sent.keys() == {path.name for path in (pretrained / "encoder").iterdir()}
    for name, content in sent.items():
        (tmp_path / "down").mkdir(exist_ok=True)
        (tmp_path / "down" / name).write_bytes(content)
    encoders.load(tmp_path / "down")  # its checksums are right
    card = ModelCard.load(tmp_path / "down/README.md")
    assert card.data.license == "mit"
    assert card.data.language == "de"
    assert card.data.base_model == "anna/base"
    assert 'from_pretrained("anna/bert-sample")' in card.content
    assert "No license" not in card.content


def test_a_published_card_has_the_runs_from_scratch_beside_it(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = ["--steps=2", "--validations=1", "--precision=32-true"]
    flags = ["finetune", "--from", str(pretrained / "encoder"), *tiny]
    run(*flags, "--out", str(tmp_path / "full"))
    run(*flags, "--out", str(tmp_path / "scratch"), "--arm", "scratch")
    run(*flags, "--out", str(tmp_path / "other"), "--arm", "scratch", "--data.train_rows=24")
    score = figures(tmp_path / "scratch")["test/accuracy"]
    card = published_card(tmp_path / "full/model", "anna/x", {})
    assert f"| the same network without pretraining | {score:.4f} (one run) |" in card
    for seed in ("1", "2"):  # a rate that was chosen has more seeds than the one that was tried
        chosen = ["--arm", "scratch", "--seed", seed, "--learning-rate=1e-2"]
        run(*flags, *chosen, "--out", str(tmp_path / f"chosen-{seed}"))
    card = published_card(tmp_path / "full/model", "anna/x", {})
    assert "(standard deviation of 2 runs)" in card
    monkeypatch.chdir(tmp_path / "full")
    assert published_card(Path("model"), "anna/x", {}) == card  # relative to where one is
    full, fresh = ((tmp_path / arm / "model/README.md").read_text() for arm in ("full", "scratch"))
    assert "No run of the same network" in full
    titles = [re.findall(r"^# (.*)", text, flags=re.M) for text in (full, fresh)]
    assert titles == [["bert-sample-sentiment"], ["bert-sample-sentiment-scratch"]]
    assert "not pretrained" in fresh
    assert "Its pretraining text" not in fresh
