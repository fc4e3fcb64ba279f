"""What others do to folders of encoders and models (see test_hostile.py): tables of cases.

Each ends in one plain sentence and exit status 2, with nothing lost, or works rightly. No case sets more of the
environment than a user would.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import pipeline
from pipeline import prompting
from pipeline.errors import UserError
from pipeline.finetuning.model import FineTunedModel
from pipeline.inspection.nearest_neighbors import nearest
from pipeline.inspection.show import show
from pipeline.models.bert import Bert
from pipeline.models.elmo import Elmo
from pipeline.models.generation import Search
from pipeline.models.gpt import Gpt
from pipeline.tokenization.registry import train
from tests.conftest import run
from tests.test_tuned import options

TEXTS = ["a small text for a small tokenizer", "words and words, the film is good and the other is bad"] * 20
SIZES: dict[str, Any] = {"size": 16, "layers": 2, "heads": 2, "inner_size": 64, "max_length": 32}
SIZES |= {"dropout": 0.0, "attention_dropout": 0.0}
TAGS = {"name": "token", "columns": {"words": "words", "tags": "tags"}}


@pytest.fixture(scope="module")
def encoder_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Encoders `bert`, `masked` (without NSP), `gpt`, `elmo`, `minilm` (of BertModel), the model `tuned`."""
    root = tmp_path_factory.mktemp("folders")
    pieces = train("wordpiece", TEXTS, vocab_size=200, lowercase=True)
    bert = Bert(pieces, **SIZES)
    bert.save(root / "bert")
    Bert(pieces, **SIZES, next_sentence=False).save(root / "masked")
    Gpt(train("bpe", TEXTS, vocab_size=300, lowercase=False), **SIZES).save(root / "gpt")
    words = train("words", TEXTS, vocab_size=300, lowercase=True)
    characters: dict[str, Any] = {"character_size": 4, "filters": [[1, 4], [2, 8]], "highways": 1, "projection": 8}
    Elmo(words, **characters, cell=16, layers=2, max_length=32, dropout=0.0, cutoffs=[5]).save(root / "elmo")
    config = transformers.BertConfig.from_pretrained(root / "bert")
    transformers.BertModel(config).save_pretrained(root / "minilm")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(root / "bert" / name, root / "minilm" / name)
    FineTunedModel(bert, labels=["no", "yes"], options=options(mix=True, lstm=8)).save(root / "tuned", card="")
    return root


def changed(folder: Path, to: Path, change: Callable[[Path], None]) -> Path:
    shutil.copytree(folder, to)
    change(to)
    return to


def edited(name: str, **values: Any) -> Callable[[Path], None]:
    """Sets keys of a JSON file; a value of `...` deletes one, and `__` goes down into a mapping."""

    def edit(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        for key, value in values.items():
            part, *path = key.split("__")
            inside = content
            for step in path:
                inside, part = inside[part], step
            if value is ...:
                del inside[part]
            else:
                inside[part] = value
        (folder / name).write_text(json.dumps(content))

    return edit


def config(**values: Any) -> Callable[[Path], None]:
    return edited("config.json", **values)


def weights(**values: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    """Replaces the tensors whose names end as is said."""

    def edit(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        for name in state:
            for end, change in values.items():
                if name.endswith(end.replace("__", ".")):
                    state[name] = change(state[name]).contiguous()
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    return edit


def wrote(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).write_text(text)][:0] and None


HUGE = 10**12
ENCODERS: list[tuple[str, Callable[[Path], None], str]] = [
    ("bert", config(hidden_size="64"), "config.json: hidden_size is '64'; "),
    ("bert", config(hidden_size=0), "config.json: hidden_size is 0; "),
    ("bert", config(hidden_size=-64), "config.json: hidden_size is -64; "),
    ("bert", config(hidden_size=16.5), "config.json: hidden_size is 16.5; "),
    ("bert", config(hidden_size=None), "config.json: hidden_size is None; "),
    ("bert", config(hidden_size=[16]), r"config.json: hidden_size is \[16\]; "),
    ("bert", config(hidden_size=HUGE), "model.safetensors: .*word_embeddings.weight has shape .* asks for"),
    ("bert", config(num_hidden_layers=HUGE), "has no bert.encoder.layer.999999999999.* asks for"),
    ("bert", config(intermediate_size=HUGE), "has shape .* asks for"),
    ("bert", config(max_position_embeddings=HUGE), "has shape .* asks for"),
    ("bert", config(vocab_size="76"), "config.json: vocab_size is '76'; "),
    ("bert", config(vocab_size=None), "config.json: vocab_size is None; "),
    ("bert", config(vocab_size=HUGE), "has shape .* asks for"),
    ("bert", config(vocab_size=...), "config.json has no vocab_size"),
    ("bert", config(num_attention_heads=3), "config.json: .* multiple of the number of heads"),
    ("bert", config(hidden_dropout_prob="0.1"), "config.json: hidden_dropout_prob is '0.1'; "),
    ("bert", config(hidden_dropout_prob=float("nan")), "config.json: hidden_dropout_prob is nan; "),
    ("bert", config(model_type=["bert"]), r"config.json: model_type is \['bert'\]; "),
    ("bert", config(model_type="base"), "no encoder 'base'"),
    ("bert", config(architectures=5), "config.json: architectures is 5; "),
    ("bert", config(initialization="x"), "config.json: initialization is 'x'; "),
    ("bert", wrote("config.json", "[" * 100_000), "config.json is nested too deeply"),
    ("bert", wrote("config.json", "[]"), r"config.json: its content is \[\]; "),
    ("gpt", config(n_embd="16"), "config.json: n_embd is '16'; "),
    ("gpt", config(n_positions=HUGE), "has shape .* asks for"),
    ("gpt", config(n_layer=HUGE), "has no transformer.h.999999999999.* asks for"),
    ("gpt", config(n_inner=HUGE), "has shape .* asks for"),
    ("elmo", config(filters=[[1, "4"]]), "config.json: filters.0.1 is '4'; "),
    ("elmo", config(filters=[[1]]), "config.json has no filters.0.1"),
    ("elmo", config(filters=[[1, HUGE]]), "has shape .* asks for"),
    ("elmo", config(cell=HUGE), "has shape .* asks for"),
    ("elmo", config(highways=HUGE), "has no characters.highways.999999999999"),
    ("elmo", config(state="keep"), "config.json: state is 'keep'; "),
    ("elmo", config(cell_clip=-1.0), "config.json: cell_clip is -1.0; "),
    ("bert", wrote("tokenizer_config.json", "[]"), r"tokenizer_config.json: its content is \[\]; "),
    ("bert", edited("tokenizer_config.json", mask_token=5), "tokenizer_config.json: mask_token is 5; "),
    ("bert", edited("tokenizer_config.json", mask_token={"a": 1}), "tokenizer_config.json: mask_token is {'a': 1}; "),
    ("bert", edited("tokenizer_config.json", do_lower_case="no"), "tokenizer_config.json: do_lower_case is 'no'; "),
    ("bert", edited("tokenizer_config.json", mask_token="<x>"), "tokenizer.json lacks the special token <x>"),
    ("bert", edited("tokenizer.json", model__vocab__good=5000), "5,001 tokens, the encoder's embedding only"),
    ("bert", weights(query__weight=lambda x: x[:, :8]), r"query.weight has shape \(16, 8\), but config.json asks for"),
    ("bert", weights(query__bias=lambda x: x[None]), r"query.bias has shape \(1, 16\), but config.json asks for"),
    ("gpt", weights(c_attn__weight=lambda x: x[None]), r"c_attn.weight has shape \(1, 16, 48\), but config.json asks"),
    (
        "bert",
        weights(pooler__dense__bias=lambda x: x / 0),
        "model.safetensors: bert.pooler.dense.bias holds numbers th",
    ),
    (
        "gpt",
        weights(wpe__weight=lambda x: x.index_fill(0, torch.tensor(3), -torch.inf)),
        "wpe.weight holds numbers that",
    ),
    ("bert", weights(key__weight=lambda x: x.double() + 1e200), "key.weight holds numbers that are not finite"),
    ("bert", weights(key__weight=lambda x: x.to(torch.int8)), "key.weight is of type int8; weights are float32"),
    ("elmo", weights(project__weight=lambda x: x > 0), "project.weight is of type bool; weights are float32"),
]


@pytest.mark.parametrize(("name", "change", "message"), ENCODERS)
def test_an_encoder_folder_is_checked_when_it_is_opened(
    encoder_folders: Path, tmp_path: Path, name: str, change: Callable[[Path], None], message: str
) -> None:
    folder = changed(encoder_folders / name, tmp_path / "folder", change)
    with pytest.raises(UserError, match=message) as caught:
        pipeline.encoders.load(folder)
    assert "\n" not in str(caught.value)
    assert "folder" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (config(id2label=["no", "yes"]), r"config.json: id2label is \['no', 'yes'\]; "),
        (
            config(id2label={"0": "no", "2": "yes"}),
            "config.json: id2label is {'0': 'no', '2': 'yes'}; its keys must be",
        ),
        (config(id2label={"0": "no", "1": 1}), "config.json: id2label.1 is 1; "),
        (config(id2label={}), "config.json: id2label is {}; "),
        (config(head=[]), r"config.json: head is \[\]; "),
        (config(head__max_length="32"), "config.json: head.max_length is '32'; "),
        (config(head__max_length=1), "config.json: head.max_length is 1; "),
        (config(head__max_length=33), "config.json: head.max_length is 33, but the encoder has only 32 positions"),
        (config(head__cut="evil"), "config.json: head.cut is 'evil'; "),
        (config(head__cut=...), "config.json has no head.cut"),
        (config(head__evil=1), "config.json has an unknown key: head.evil"),
        (config(head__columns=5), "config.json: head.columns is 5; "),
        (
            config(head__lstm=HUGE),
            "config.json: head.lstm is 1,000,000,000,000, but model.safetensors has no LSTM of th",
        ),
        (config(head__dropout=1.5), "config.json: head.dropout is 1.5; "),
        (config(id2label={"0": "no"}), "saved by another version"),
        (weights(classifier__bias=lambda x: x / 0), "head.classifier.bias holds numbers that are not finite"),
        (config(vocab_size=10), "they do not belong together"),
    ],
)
def test_a_model_folder_is_checked_when_it_is_opened(
    encoder_folders: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        pipeline.load(changed(encoder_folders / "tuned", tmp_path / "folder", change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("bert", ["hidden_dropout_prob", "attention_probs_dropout_prob", "architectures", "initialization"]),
        ("gpt", ["n_inner", "resid_pdrop", "attn_pdrop", "architectures", "activation_function", "layer_norm_epsilon"]),
    ],
)
def test_folders_of_others_may_leave_out_what_has_a_default(
    encoder_folders: Path, tmp_path: Path, name: str, left_out: list[str]
) -> None:
    change = config(**dict.fromkeys(left_out, ...), extra={"a": [1]}, id2label={"5": "x"})
    opened, report = pipeline.encoders.load_with_report(changed(encoder_folders / name, tmp_path / "folder", change))
    assert not report.new
    assert (
        opened.encode(["a film"]).layers[-1]
        == pipeline.encoders.load(encoder_folders / name).encode(["a film"]).layers[-1]
    ).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_types_are_taken_over(encoder_folders: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    opened = pipeline.encoders.load(
        changed(encoder_folders / "bert", tmp_path / "x", weights(weight=lambda x: x.to(dtype)))
    )
    assert all(value.dtype == torch.float32 for value in opened.parameters())


# What is random is not saved: (encoder folder, weights of it, head, the class that config.json then names).
RANDOM = [
    ("bert", True, {"mix": True}, "BertForPreTraining"),
    ("masked", True, {"mix": True}, "BertForMaskedLM"),
    ("minilm", True, {"mix": True}, "BertModel"),
    ("minilm", True, {"crf": True, **TAGS}, "BertModel"),
    ("minilm", True, {}, "BertForSequenceClassification"),
    ("minilm", True, TAGS, "BertForTokenClassification"),
    ("bert", False, {"mix": True}, None),
    ("bert", False, {}, "BertForSequenceClassification"),
    ("masked", False, {}, None),
    ("masked", False, {"pairs": True, "pair": "compared"}, None),
    ("gpt", False, {"mix": True}, "GPT2LMHeadModel"),
    ("elmo", False, {"mix": True}, "Elmo"),
    ("elmo", True, {"mix": True}, "Elmo"),
]


def test_a_published_bert_keeps_its_pooler(encoder_folders: Path, tmp_path: Path) -> None:
    """Its config names a class without one, and its weights have it."""
    folder = changed(encoder_folders / "bert", tmp_path / "bert", config(architectures=["BertForMaskedLM"]))
    encoder, report = pipeline.encoders.load_with_report(folder)
    assert not report.unused
    assert not report.new
    assert encoder.pooler is not None
    encoder.save(tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text())["architectures"] == ["BertForPreTraining"]


@pytest.mark.parametrize(("name", "taken", "head", "kind"), RANDOM)
def test_what_was_never_trained_is_not_saved(
    encoder_folders: Path, tmp_path: Path, name: str, taken: bool, head: dict[str, Any], kind: str | None
) -> None:
    encoder, report = pipeline.encoders.load_with_report(encoder_folders / name, weights=taken)
    labels = ["O", "B-x"] if head.get("name") else ["no", "yes"]
    model = FineTunedModel(encoder, labels=labels, options=options(**head))
    model.save(tmp_path / "model", card="")
    saved = load_file(tmp_path / "model/model.safetensors")
    fresh = {key for key in report.new if key.startswith(("cls.", "output."))}
    assert not fresh & saved.keys()
    assert set(model.unsaved()) == fresh | (
        {"bert.pooler.dense.weight", "bert.pooler.dense.bias"} & set(report.new) - saved.keys()
    )
    found = json.loads((tmp_path / "model/config.json").read_text())
    assert found.get("architectures", [None]) == [kind]
    if kind is not None and kind != "Elmo":
        loaded = getattr(transformers, kind).from_pretrained(tmp_path / "model", output_loading_info=True)[1]
        assert not loaded["missing_keys"]
    texts: list[Any] = [["a", "film"]] if head.get("name") else [("a", "film")] if head.get("pairs") else ["a film"]
    assert pipeline.load(tmp_path / "model").predict(texts) == model.predict(texts)

    # The next one in a chain has them random again, and saves them as little.
    again, report = pipeline.encoders.load_with_report(tmp_path / "model")
    again.save(tmp_path / "again")
    assert not load_file(tmp_path / "again/model.safetensors").keys() & set(report.new)
    if name != "gpt" and (not taken or name == "minilm"):
        with pytest.raises(UserError, match=r"no probabilities|without a language model|no output layer"):
            prompting.log_likelihoods(pipeline.encoders.load_with_heads(tmp_path / "model"), [("", "a film")])


def test_probabilities_of_an_encoder_without_lm_head_are_refused(encoder_folders: Path) -> None:
    minilm = pipeline.encoders.load(encoder_folders / "minilm")
    for ask in (
        lambda: minilm.encode(["a film"], logits=True),
        lambda: prompting.log_likelihoods(minilm, [("", "a film")]),
        lambda: pipeline.encoders.load_with_heads(encoder_folders / "minilm"),
    ):
        with pytest.raises(UserError, match=r"has no cls.*: it gives vectors, but no probabilities"):
            ask()


@pytest.mark.parametrize("pattern", ["(a|aa)+$", "(a+)+$", r"(\w+\s*)+$"])
def test_a_tokenizer_that_never_ends_is_a_sentence(encoder_folders: Path, tmp_path: Path, pattern: str) -> None:
    runaway = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    folder = changed(encoder_folders / "tuned", tmp_path / "folder", edited("tokenizer.json", pre_tokenizer=runaway))
    with pytest.raises(UserError, match=r"folder/tokenizer.json cannot tokenize this text: a regular expression"):
        pipeline.load(folder).predict(["a" * 60 + "!"])


@pytest.mark.parametrize("named", ["tokenizer_config.json", "special_tokens_map.json", "config.json"])
def test_the_end_of_text_of_a_gpt_has_any_name(encoder_folders: Path, tmp_path: Path, named: str) -> None:
    def rename(folder: Path) -> None:
        text = (folder / "tokenizer.json").read_text()
        (folder / "tokenizer.json").write_text(text.replace("<|endoftext|>", "</s>"))
        names = {"eos_token": {"content": "</s>", "lstrip": False}} if "map" in named else {"eos_token": "</s>"}
        (folder / "tokenizer_config.json").unlink()
        if named == "config.json":
            config(eos_token_id=0)(folder)
        else:
            (folder / named).write_text(json.dumps(names))

    gpt = pipeline.encoders.load(changed(encoder_folders / "gpt", tmp_path / "folder", rename))
    assert gpt.tokenizer.special == dict.fromkeys(("bos", "eos", "unk", "pad"), "</s>")
    assert (
        gpt.encode(["a film"]).layers[-1]
        == pipeline.encoders.load(encoder_folders / "gpt").encode(["a film"]).layers[-1]
    ).all()


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("accents", [None, True, False])
def test_capitals_are_kept_as_tokenizer_config_says(
    encoder_folders: Path, tmp_path: Path, lowercase: bool, accents: bool | None
) -> None:
    said = edited("tokenizer_config.json", do_lower_case=lowercase, strip_accents=accents, tokenize_chinese_chars=...)
    folder = changed(encoder_folders / "bert", tmp_path / "folder", said)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = pipeline.encoders.load(folder).tokenizer
    for text in ("A Film, words", "a fílm 好film", "ÀND and"):
        assert ours.encode_batch([text])[0] == theirs(text, add_special_tokens=False)["input_ids"]
    assert "[UNK]" not in ours.backend.encode("a Film", add_special_tokens=False).tokens or not lowercase


@pytest.mark.parametrize("name", ["bert", "gpt", "elmo"])
def test_what_is_asked_twice_is_a_tie(encoder_folders: Path, name: str) -> None:
    encoder = pipeline.encoders.load(encoder_folders / name)
    texts = [
        "words and words",
        "a film",
        "the other is bad and the film is good",
        *(f"{'a ' * n}film" for n in range(9)),
    ]
    done: list[int] = []

    def rounded(_: Any, __: Any, out: Any) -> None:  # as other kernels do at other places of a batch, only more
        out.layers[-1] = out.layers[-1] * (1 + 1e-3 * torch.arange(len(out.mask)))[:, None, None]

    encoder.register_forward_hook(rounded)
    asked = [prompting.Request("the film is good and", f" {text}") for text in [*texts, *texts[::-1], *texts]]
    found = [one.total for one in prompting.score(encoder, asked, progress=done.append)]
    assert found[: len(texts)] == found[len(texts) : 2 * len(texts)][::-1] == found[2 * len(texts) :]
    assert sum(done) == len(asked)


def test_an_elmo_that_carries_its_state_is_asked_text_by_text(
    encoder_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, carrying = encoder_folders / "elmo", tmp_path / "carrying"
    changed(plain, carrying, config(state="carry"))
    (tmp_path / "data").mkdir()
    names = {"UID": "one", "field": "syntax", "linguistics_term": "order"}
    pairs = [("a film", "film a"), ("the other is bad", "bad is the other"), ("words and words", "and words words")]
    rows = [
        {"sentence_good": good, "sentence_bad": bad, "pairID": str(i), **names} for i, (good, bad) in enumerate(pairs)
    ]
    (tmp_path / "data/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = ["--model", "elmo", "--task", "blimp", "--data", str(tmp_path / "data")]
    found = []
    for number, folder in enumerate((plain, carrying)):
        out = tmp_path / str(number)
        run("zeroshot", *where, "--from", str(folder), "--out", str(out))
        found.append((out / "predictions.jsonl").read_text())
        assert ("carries its state from batch to batch; here" in capsys.readouterr().out) == (folder == carrying)
    assert found[0] == found[1]
    assert json.loads((carrying / "config.json").read_text())["state"] == "carry"


def test_scores_that_are_not_finite_are_refused(encoder_folders: Path) -> None:
    gpt = pipeline.encoders.load(encoder_folders / "gpt")
    with torch.no_grad():
        gpt.get_parameter("word_embedding.weight").fill_(3e38)
    with pytest.raises(UserError, match="a score that is not finite"):
        prompting.log_likelihoods(gpt, [("a", " film")])


def shown(encoder: Any, *, prompt: str = "The film", score: bool = False, **changes: Any) -> str:
    settings = {"tokens": 3, "temperature": 0.8, "seed": 0, "top_k": 0, "top_p": 1.0}
    return show(encoder, prompt, score=score, how=Search(**{**settings, **changes}))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt", {"temperature": float("nan")}, "temperature must be a number of at least 0, not nan"),
        ("gpt", {"temperature": float("inf")}, "temperature must be a number of at least 0, not inf"),
        ("gpt", {"temperature": -1.0}, "temperature must be a number of at least 0, not -1.0"),
        ("gpt", {"prompt": "a \udcff"}, r"The prompt is not UTF-8 text: 'a \\udcff'"),
        ("gpt", {"prompt": "a \udcff", "score": True}, "The prompt is not UTF-8 text"),
        ("bert", {"prompt": "\udcff [MASK]"}, "The prompt is not UTF-8 text"),
        ("gpt", {"beam": 2, "length_penalty": 200.0}, "length-penalty is 200.0; it must be from -50 to 50"),
    ],
)
def test_what_cannot_be_tried(encoder_folders: Path, name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        shown(pipeline.encoders.load(encoder_folders / name), **changes)


def test_a_temperature_of_almost_nothing_is_none(encoder_folders: Path) -> None:
    gpt = pipeline.encoders.load(encoder_folders / "gpt")
    assert shown(gpt, temperature=1e-320) == shown(gpt, temperature=0.0)


def test_a_word_is_not_its_own_neighbor(encoder_folders: Path) -> None:
    elmo = pipeline.encoders.load(encoder_folders / "elmo")
    vectors = elmo.encode([["good", "good", "bad", "film"]]).layers[0][0, 1:5]
    words = ["good", "good", "bad", "film"]
    assert {words[index] for index, _ in nearest(vectors, 0, words)} == {"bad", "film"}
    with pytest.raises(UserError, match="is not valid UTF-8"):
        run("try", "--model", "elmo", "--from", str(encoder_folders / "elmo"), "--word", "\udcff")
