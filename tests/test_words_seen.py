"""Encoders saved at numbers of words seen: which words count, which folders there are, whatever happens to a run."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pipeline import encoders
from pipeline.cli.config import pretraining
from pipeline.errors import UserError
from pipeline.experiments.words.saved import runs_at
from pipeline.storage.checksums import sha256
from pipeline.tracking.words_seen import babylm, name_of, points_between, saved_in
from pipeline.training.requests import CorpusRequest
from pipeline.training.saved_encoders import SavedEncoders
from tests import conformance
from tests.conftest import figures, run

SHORT = conformance.flags("gpt", "trainer.max_steps=12", "validate_every=5")  # about 290 words a step


def folders(out: Path) -> dict[str, str]:
    """Name -> hash of the weights, of all that was saved on the way."""
    return {saved.folder.name: sha256(saved.folder / "model.safetensors") for saved in saved_in(out / "encoders")}


def test_the_points_of_the_babylm_challenge() -> None:
    million = [point // 1_000_000 for point in islice(babylm(), 21)]
    assert million == [*range(1, 10), *range(10, 100, 10), 100, 200, 300]
    assert points_between("babylm", 999_999.9, 2_000_000) == [1_000_000, 2_000_000]
    assert points_between("babylm", 2_000_000, 2_999_999.5) == []
    assert points_between([300, 100, 200, 200], 100, 300.5) == [200, 300]
    assert points_between(None, 0, 1e9) == []
    assert [name_of(words) for words in (1_000_000, 1_500_000, 1_234)] == ["1M-words", "1500k-words", "1234-words"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert", "gpt", "elmo", "bart", "mbart"])
def test_words_are_those_of_the_text_for_any_tokenizer(model: str) -> None:
    """A pass over the text shows as many words as it has tokens of the text, times words per token."""
    toy = "bart" if model == "mbart" else model
    request = CorpusRequest(
        model="mbart" if model == "mbart" else conformance.preset(model), overrides=tuple(conformance.flags(toy)[2:])
    )
    configuration = pretraining(request)
    data, module = configuration.data, configuration.module
    data.prepare()
    module.build(data)
    batches = list(data.batches(data.train, batch_size=16, seed=0).first_epoch())
    tokens, rows = sum(int(batch.tokens) for batch in batches), sum(map(len, batches))
    meta, words = data.train.meta, tokens * module.words_per_token
    if model in ("gpt", "elmo"):  # each token once
        assert words == pytest.approx(meta["words"], rel=0.01)
    else:
        text = tokens - rows * {"bert": 3, "bart": 2, "mbart": 1}[model]
        assert words == pytest.approx(text * meta["words"] / meta["tokens"], rel=0.01)


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_no_folder_twice_and_none_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = "--save-at-words=300,1k,2k,3k,100M"
    run("pretrain", "--out", "whole", *SHORT, points)
    wanted = folders(Path("whole"))
    assert list(wanted) == ["300-words", "1k-words", "2k-words", "3k-words"]
    assert len(set(wanted.values())) == 4
    for folder in wanted:
        stages = json.loads((Path("whole/encoders") / folder / "lineage.json").read_text())
        assert name_of(stages[-1]["words"]) == folder
    card = Path("whole/encoder/README.md").read_text()
    assert all(f"`{folder}`" in card for folder in wanted)
    assert "`chck_2k`" in card
    assert stages[-1]["step"] * figures(Path("whole"))["words"] / 12 == pytest.approx(3000, rel=0.1)

    saved = SavedEncoders._save

    def killed(self: SavedEncoders, trainer: Any, module: Any, words: int) -> None:
        saved(self, trainer, module, words)
        if words == 2000:  # step 7: after the checkpoint of step 5, before that of step 10
            raise ZeroDivisionError  # no error that a run could expect

    with monkeypatch.context() as patch:
        patch.setattr(SavedEncoders, "_save", killed)
        with pytest.raises(ZeroDivisionError):
            run("pretrain", "--out", "killed", *SHORT, points)
    assert list(folders(Path("killed"))) == ["300-words", "1k-words", "2k-words"]
    with pytest.raises(UserError, match="save_at_words"):  # of these points some may be past
        run("pretrain", "--out", "killed", "--resume", *SHORT, "--save-at-words=300")
    shutil.copytree("killed", "shorter", ignore=shutil.ignore_patterns("wandb"))  # it may still be writing
    run("pretrain", "--out", "shorter", "--resume", *SHORT, points, "--trainer.max_steps=6")
    assert list(folders(Path("shorter"))) == ["300-words", "1k-words"]  # none of a step that it never takes
    run("pretrain", "--out", "killed", "--resume", *SHORT, points)
    assert folders(Path("killed")) == wanted
    run("pretrain", "--out", "killed", "--overwrite", *SHORT)
    assert not Path("killed/encoders").exists()
    same = [sha256(Path(out) / "encoder/model.safetensors") for out in ("whole", "killed")]
    assert same[0] == same[1]  # it changes nothing


def test_a_run_that_reaches_no_number_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    run("pretrain", "--out", "short", *SHORT, "--save-at-words=100M")
    assert "fewer than the first number of save_at_words" in capsys.readouterr().out


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    for wrong in ("--save-at-words=0", "--save-at-words=some", "--save-at-words=1k,", "--save_at_words=[0]"):
        with pytest.raises(UserError, match=r"save.at.words"):
            run("pretrain", "--out", "none", *SHORT, wrong)
    with pytest.raises(UserError, match="save_at_words has no effect: ngram counts"):
        run("pretrain", "--model", "ngram", "--save-at-words=babylm")
    with pytest.raises(UserError, match="save_at_words needs whole weights"):
        run("pretrain", "--out", "none", *SHORT, "--save-at-words=babylm", "--trainer.strategy=fsdp")


@pytest.mark.slow
def test_folders_open_and_are_pushed_as_branches(capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoTokenizer, GPT2LMHeadModel

    run("pretrain", "--out", "run", *SHORT, "--save-at-words=300,2k")
    model, info = GPT2LMHeadModel.from_pretrained("run/encoders/2k-words", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained("run/encoders/2k-words"))
    assert encoders.load(Path("run/encoders/300-words")).tokenizer
    [curve] = runs_at(Path("run/encoders"))
    assert [saved.words for saved in curve.saved] == [300, 2000, figures(Path("run"))["words"]]  # and the last one
    capsys.readouterr()
    run("push", "--from", "run/encoder", "--repo", "anna/gpt-sample", "--dry-run")
    said = capsys.readouterr().out
    assert said.index("branch chck_300:") < said.index("branch chck_2k:")
    sizes = [path.stat().st_size for path in Path("run").glob("encoder*/**/model.safetensors")]
    assert said.count("model.safetensors") == len(sizes) == 3
