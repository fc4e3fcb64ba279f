"""GPT and ELMo on the same road as BERT, through the public commands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from pipeline.errors import UserError
from pipeline.models.generation import Search
from tests.conformance import flags
from tests.conftest import figures, run

pytestmark = pytest.mark.slow

MODELS = ["elmo", "gpt"]
SAMPLE = "--data.sample_documents=300"  # of which the toys are


@pytest.fixture(scope="module")
def encoders(toys: Callable[[str], Path]) -> dict[str, Path]:
    """Model -> its run folder."""
    return {model: toys(model) for model in MODELS}


@pytest.mark.parametrize("model", MODELS)
def test_learning_happens(encoders: dict[str, Path], model: str) -> None:
    end = figures(encoders[model])
    names = ["lm"] if model == "gpt" else ["forward", "backward"]
    for name in names:
        assert end[f"val/{name}_loss"] < end["baseline/unigram"] - 0.3 < end["baseline/uniform"]
    assert 0.3 < end["val/bits_per_byte"] < 4
    assert end["val/loss"] == pytest.approx(sum(end[f"val/{name}_loss"] for name in names))
    if model == "elmo":
        assert end["val/forward_perplexity"] > 1
        assert end["val/backward_spelling"] > 0
    assert (encoders[model] / "curves.png").exists()


def test_accumulated_parts_of_a_fine_tune_give_the_same_weights(encoders: dict[str, Path], tmp_path: Path) -> None:
    for parts in (1, 4):
        more = ["--out", str(tmp_path / f"tuned{parts}"), f"--trainer.accumulate_grad_batches={parts}"]
        more += ["--data.epochs=1", "--model.recipe.dropout=0", "--precision=32-true", "--task", "tagging"]
        run("finetune", "--model", "elmo", "--from", str(encoders["elmo"] / "encoder"), *more, "--data.train_rows=200")
    one, four = (load_file(tmp_path / f"tuned{parts}/model/model.safetensors") for parts in (1, 4))
    gaps = torch.cat([(one[name] - four[name]).abs().flatten() for name in one])
    assert gaps.mean() < 1e-6  # parts have other numbers of words


def test_a_validation_changes_nothing_of_the_training(tmp_path: Path) -> None:
    """The state of the text before goes on, whenever a validation has read other text."""
    settings = ["trainer.max_steps=6", "model.objective.init_args.stateful=true"]
    for every in (2, 6):
        out = ["--out", str(tmp_path / str(every))]
        run("pretrain", *out, *flags("recurrent", *settings, f"validate_every={every}"))
    often, once = (load_file(tmp_path / every / "encoder/model.safetensors") for every in ("2", "6"))
    assert all(torch.equal(often[name], once[name]) for name in once)


def test_a_carried_state_goes_without_accumulation(tmp_path: Path) -> None:
    more = ["trainer.accumulate_grad_batches=2", "model.objective.init_args.stateful=true"]
    with pytest.raises(UserError, match="without accumulation"):
        run("pretrain", "--out", str(tmp_path / "carry"), *flags("elmo", *more))


def test_evaluate_warns_where_unknown_words_are_an_easy_guess(
    encoders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--from", str(encoders["elmo"] / "encoder"), "--data.batch_size=16"]
    run("evaluate", "--model", "elmo", *args, SAMPLE, "--out", "figures.json")
    shown = capsys.readouterr().out
    assert "is an easy guess" in shown
    written = json.loads(Path("figures.json").read_text())
    assert f"{written['bits_per_byte']:.4f}\n" in shown
    for name in ("forward_loss", "baseline/unigram"):
        assert f"{written[name]:.4f} nats" in shown
    assert 0 < written["baseline/unigram"] < written["baseline/uniform"]
    for out in ("figures.json", "new/.."):
        with pytest.raises(UserError, match="is there already"):
            run("evaluate", "--model", "elmo", *args, SAMPLE, "--out", out)
    (tmp_path / "strange.txt").write_text("qxzv kwpf zzrt vvkq plgh mnbt.\n\n" * 400)
    run("evaluate", "--model", "elmo", *args, "--corpus", str(tmp_path / "strange.txt"), "--data.length=48")
    shown = capsys.readouterr().out
    assert "% of what is predicted is unknown to this encoder" in shown
    assert "this very text" not in shown


def test_evaluate_warns_where_the_text_is_that_of_pretraining(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (f"A line of number {number} and {number * 7}.\n\n" for number in range(300))
    (tmp_path / "mine.txt").write_text("".join(lines))
    small = [*flags("gpt"), "--corpus", "mine.txt"]
    run(
        "pretrain", *(flag for flag in small if "sample_documents" not in flag), "--out", "run", "--trainer.max_steps=2"
    )
    run("evaluate", "--model", "gpt", "--from", "run/encoder", "--corpus", "mine.txt")
    assert "Warning: the encoder was pretrained on this very text" in capsys.readouterr().out


def test_evaluate_refuses_what_is_of_training(encoders: dict[str, Path]) -> None:
    args = ["--from", str(encoders["gpt"] / "encoder"), "--data.batch_size=16", SAMPLE]
    with pytest.raises(UserError, match="only 48 positions"):
        run("evaluate", "--model", "gpt", *args, "--data.length=64")
    for flag in ("--data.validation_rows=8", "--model.encoder.init_args.dropout=0", "--trainer.max_steps=1"):
        with pytest.raises(UserError, match=f"leave out {flag}"):
            run("evaluate", "--model", "gpt", *args, flag)
    for flag in ("--precision=bf16-mixed", "--model.optimization.learning_rate=1"):
        with pytest.raises(UserError, match=f"{flag} has no effect, so leave it out"):
            run("evaluate", "--model", "gpt", *args, flag)


def test_evaluate_takes_rows_as_long_as_those_of_pretraining(
    encoders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As config.json says, or else the run that the folder lies in; longer rows are warned of."""

    def shown(folder: Path, *args: str) -> str:
        run(
            "evaluate",
            "--model",
            "gpt",
            "--from",
            str(folder),
            "--data.batch_size=16",
            "--data.sample_documents=300",
            *args,
        )
        return capsys.readouterr().out

    run_of_24 = tmp_path / "run"
    shutil.copytree(encoders["gpt"], run_of_24)
    folder = run_of_24 / "encoder"
    (folder / "SHA256SUMS").unlink()
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("training_length") == 48
    trained = shown(encoders["gpt"] / "encoder", "--data.length=24")
    assert "Warning" not in trained
    (folder / "config.json").write_text(json.dumps(config))  # a folder of 0.12
    (run_of_24 / "config.yaml").write_text("data:\n  length: 24\n")
    assert shown(folder) == trained
    (run_of_24 / "config.yaml").unlink()
    note, *figures_of_24 = shown(folder, "--data.length=24").splitlines()
    assert figures_of_24 == trained.splitlines()
    assert "does not say on which length" in note
    (folder / "config.json").write_text(json.dumps(config | {"training_length": 24}))
    assert transformers.AutoConfig.from_pretrained(folder).n_positions == 48
    assert shown(folder) == trained
    assert shown(folder, "--data.length=48").startswith(
        "Warning: rows have 48 tokens, but the encoder was trained on 24"
    )
    for wrong in ("24", 0, None):
        (folder / "config.json").write_text(json.dumps(config | {"training_length": wrong}))
        with pytest.raises(UserError, match=f"config.json: training_length is {wrong!r}"):
            shown(folder)


def test_a_prompt_for_a_last_word_has_no_baseline_of_words(encoders: dict[str, Path], tmp_path: Path) -> None:
    files = ["--data", str(tmp_path), "--unigram", str(tmp_path), "--out", str(tmp_path / "run")]
    with pytest.raises(UserError, match="a last_word prompt has only one"):
        run("zeroshot", "--task", "lambada", "--from", str(encoders["gpt"] / "encoder"), *files)
    assert not (tmp_path / "run").exists()


def test_try(
    encoders: dict[str, Path], pretrained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt = ["try", "--model", "gpt", "--from", str(encoders["gpt"] / "encoder")]
    with monkeypatch.context() as patch:
        seen: list[tuple[bool, Search]] = []
        patch.setattr("pipeline.inspection.show.show", lambda _, __, *, score, how: seen.append((score, how)) or "")
        how = "--tokens 7 --beam 3 --temperature 0.5 --top-k 4 --top-p 0.6 --seed 9"
        run(*gpt, "--prompt", "a", "--score", *how.split())
        assert seen == [(True, Search(tokens=7, beam=3, temperature=0.5, top_k=4, top_p=0.6, seed=9))]
    capsys.readouterr()
    run(*gpt, "--prompt", "The soup", "--tokens", "8")
    first = capsys.readouterr().out
    assert first.startswith("The soup")
    run(*gpt, "--prompt", "The soup", "--tokens", "8")
    assert capsys.readouterr().out == first
    run(*gpt, "--prompt", "The soup", "--tokens", "8", "--seed", "5")
    assert capsys.readouterr().out != first
    run(*gpt, "--prompt", "The soup was good. " * 30, "--tokens", "8")
    assert "are cut" in capsys.readouterr().out
    run("try", "--model", "bert", "--from", str(pretrained / "encoder"), "--prompt", "The [MASK] was [MASK].")
    shown = capsys.readouterr().out.splitlines()
    assert [line[:8] for line in shown[1:]] == ["[MASK] 1", "[MASK] 2"]
    run(
        "try",
        "--model",
        "elmo",
        "--from",
        str(encoders["elmo"] / "encoder"),
        "--word",
        "was",
        "--data.sample_documents=300",
    )
    shown = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("  layer") for line in shown) == 6
    assert sum("[was]" in line for line in shown) >= 2


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        ("gpt", ["--prompt", "  "], "--prompt is empty"),
        ("gpt", [], "a text that is not empty: --prompt TEXT"),
        ("gpt", ["--prompt", "a", "--temperature", "-1"], "at least 0"),
        ("gpt", ["--prompt", "a", "--temperature", "nan"], "at least 0"),
        ("gpt", ["--prompt", "a", "--top_k", "3"], "does not know the flag --top_k"),
        ("gpt", ["--word", "was"], "--word is for models"),
        ("bert", ["--prompt", "no mask"], r"no \[MASK\]"),
        ("bert", ["--prompt", "word " * 99 + "[MASK]"], "a mask is cut off"),
        ("elmo", ["--prompt", "a"], "set --word"),
        ("elmo", ["--word", "qwertz", SAMPLE], "is in 0 sentences"),
    ],
)
def test_try_refuses(encoders: dict[str, Path], pretrained: Path, model: str, args: list[str], message: str) -> None:
    folder = (encoders | {"bert": pretrained})[model] / "encoder"
    with pytest.raises(UserError, match=message) as caught:
        run("try", "--model", model, "--from", str(folder), *args)
    assert "\n" not in str(caught.value)


def test_the_tokenizer_must_be_of_the_right_scheme(encoders: dict[str, Path], tmp_path: Path) -> None:
    file = encoders["gpt"] / "encoder/tokenizer.json"
    with pytest.raises(UserError, match="is a bpe tokenizer; this model needs words"):
        run("pretrain", "--out", str(tmp_path / "run"), *flags("elmo", f"data.tokenizer.file={file}"))
    with pytest.raises(UserError, match="GPT needs a tokenizer of scheme bpe or whole-words"):
        run("pretrain", "--out", str(tmp_path / "run"), *flags("gpt", "data.tokenizer.scheme=wordpiece"))
    with pytest.raises(UserError, match="bart needs a tokenizer with a bos token"):
        run("pretrain", "--out", str(tmp_path / "run"), *flags("bart", "data.tokenizer.scheme=wordpiece"))
    for setting, message in (("filters=[[9,8]]", "from 1 to 7"), ("cutoffs=[200,100]", "must be positive and rise")):
        with pytest.raises(UserError, match=message):
            run("pretrain", "--out", str(tmp_path / "run"), *flags("elmo", f"model.encoder.init_args.{setting}"))
    with pytest.raises(UserError, match="is gpt, not elmo"):
        run("finetune", "--model", "elmo", "--from", str(encoders["gpt"] / "encoder"))
    with pytest.raises(UserError, match="lowercase does not go with bpe"):
        run("pretrain", "--out", str(tmp_path / "run"), *flags("gpt", "data.tokenizer.lowercase=true"))
