"""Pairs of texts: joined, compared or attended; what is chosen, what is refused, and what a folder says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

import pipeline
from pipeline.errors import UserError
from pipeline.experiments.comparison import grid as grids
from pipeline.experiments.feasible import effective
from pipeline.finetuning.heads.decomposable_attention import DecomposableAttention
from tests.conftest import REPOSITORY, run

TINY = ["--validations=1", "--precision=32-true", "--data.max_length=24", "--data.train_rows=32", "--data.epochs=1"]


def test_the_attention_is_the_papers() -> None:
    """Token by token, as the equations have it, for texts of different lengths in one batch."""
    torch.manual_seed(0)
    head = DecomposableAttention(6, dropout=0.0).double()
    texts = [(torch.randn(3, 6).double(), torch.randn(5, 6).double()), (torch.randn(4, 6), torch.randn(1, 6))]
    texts = [(a.double(), b.double()) for a, b in texts]
    padded = [torch.nn.utils.rnn.pad_sequence(list(side), batch_first=True) for side in zip(*texts, strict=True)]
    masks = [side.abs().sum(-1) > 0 for side in padded]
    padded = [side.masked_fill(~mask[..., None], 7.0) for side, mask in zip(padded, masks, strict=True)]
    found = head(*padded, *masks)
    for row, (a, b) in enumerate(texts):
        assert torch.allclose(found[row], of_one_pair(head, a, b))


def of_one_pair(head: DecomposableAttention, a: Tensor, b: Tensor) -> Tensor:
    a, b = head.norm(a), head.norm(b)
    scores = torch.tensor([[(x @ y).item() / 6**0.5 for y in b] for x in a], dtype=torch.float64)
    like_a = [sum(share * y for share, y in zip(row.softmax(0), b, strict=True)) for row in scores]
    like_b = [sum(share * x for share, x in zip(row.softmax(0), a, strict=True)) for row in scores.T]
    sums = [
        sum(head.compare(torch.cat([x, y, (x - y).abs(), x * y])) for x, y in zip(text, like, strict=True))
        for text, like in ((a, like_a), (b, like_b))
    ]
    return head.aggregate(torch.cat(sums))  # type: ignore[arg-type]


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """A data set of pairs with numbers."""
    rows = [f"a robin {n}\tit sings {n % 3}\t{n % 5}" for n in range(40)]
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("task", "pair", "arm", "answer"),
    [
        ("entailment", "compared", "full", "label"),
        (
            "entailment",
            "compared",
            "scratch",
            "label",
        ),  # with a pooler that is trained and has no weights of its folder
        ("sts-b", "attended", "frozen", "score"),
    ],
)
def test_a_pair_is_read_as_it_was_trained(
    pretrained: Path, scored: Path, task: str, pair: str, arm: str, answer: str
) -> None:
    """Of labels and of numbers; card and load report say what opens the folder."""
    out, where = scored / "run", ["--from", str(pretrained / "encoder"), "--out", str(scored / "run")]
    where += [] if task == "entailment" else ["--data", str(scored)]
    run("finetune", "--task", task, "--arm", arm, f"--model.recipe.pair={pair}", *where, *TINY)
    assert f"pairs are {pair}" in (out / "load_report.txt").read_text()
    card = (out / "model/README.md").read_text()
    assert "library_name: pretrain-finetune" in card
    assert "transformers has no such head for pairs" in card
    row = json.loads((out / "predictions.jsonl").read_text().splitlines()[0])
    [found] = pipeline.load(out / "model").predict([tuple(row["text"])])
    if answer == "label":
        assert found["probabilities"] == pytest.approx(row["probabilities"], abs=1e-4)
    assert found[answer] == (pytest.approx(row[answer], abs=1e-4) if answer == "score" else row[answer])


def test_what_reads_no_pairs_refuses_the_setting(pretrained: Path, tmp_path: Path) -> None:
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "run"), "--model.recipe.pair=compared"]
    for flags in ([], ["--task", "tagging"]):
        with pytest.raises(UserError, match="pair is for pairs of texts, and this task has none"):
            run("finetune", *where, *TINY, *flags)
        with pytest.raises(UserError, match="no task here has pairs of texts"):
            run("finetune", *where, *TINY, *flags, "--seeds", "2")
    assert not (tmp_path / "run").exists()


def test_a_comparison_chooses_it_for_tasks_with_pairs(tmp_path: Path) -> None:
    tried = ("--model.recipe.pair=attended", "--data.epochs=2")
    assert effective(tried, "gradient", "sick", "full") == tried
    assert effective(tried, "gradient", "sst2", "full") == ("--data.epochs=2",)
    assert effective(tried, "gradient", "ud-pos", "full") == ("--data.epochs=2",)
    assert effective(("--model.recipe.pair=compared",), "gradient", "squad", "full") == ()  # answers are among tokens
    assert effective(("--model.recipe.pair=joined",), "gradient", "squad", "full") != ()
    assert effective(tried, "counting", "sick", "full") == ()
    content = yaml.safe_load((REPOSITORY / "configs/compare/real.yaml").read_text())
    content["arms"]["full"]["choose"]["model.recipe.pair"] = ["joined", "compared", "attended"]
    (tmp_path / "both.yaml").write_text(yaml.safe_dump(content | {"tasks": content["tasks"] | {"sick": "sick"}}))
    both = grids.load(tmp_path / "both.yaml")
    assert [len(both.settings((task, "bert", "full"))) for task in ("sick", "ud-pos")] == [6, 2]
    tags = grids.load(tmp_path / "both.yaml", tasks=["ud-pos", "wnut17"], models=["bert"])
    grids.check_grid_settings(tags)  # a part of a file that has pairs in the other
    assert len(tags.settings(("ud-pos", "bert", "full"))) == 2  # rates
    (tmp_path / "tags.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match="no task here has pairs of texts"):
        grids.load(tmp_path / "tags.yaml")
