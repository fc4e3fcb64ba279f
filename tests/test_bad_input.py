"""What a user can get wrong: one plain sentence, exit status 2, nothing damaged."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
from wandb.errors import CommError

from pipeline.__main__ import main
from pipeline.errors import UserError
from pipeline.presets.files import REPOSITORY
from tests.conftest import SMALL, command, run

SHARDED = ["--trainer.strategy=lightning.pytorch.strategies.FSDPStrategy"]
SHARDED += ["--trainer.strategy.init_args.state_dict_type=sharded"]
PRETRAIN = ["--out", "out", *SMALL, "--trainer.max_steps=2"]


def files(folder: Path) -> dict[str, bytes]:
    everything = {"empty.txt": b"", "blank.txt": b"\n \n\n", "binary.txt": b"\0\1\2" * 100, "latin.txt": b"caf\xe9\n"}
    everything["one.txt"] = b"Only one document.\nWith two lines.\n"
    everything["body.jsonl"] = b'{"body": "text"}\n'
    everything["deep.jsonl"] = b"[" * 100_000 + b"\n"
    packed = gzip.compress(random.Random(0).randbytes(3000).hex().encode())
    everything["damaged.txt.gz"] = packed[:500] + b"??" + packed[502:]
    pyarrow.parquet.write_table(pyarrow.table({"text": [1, 2]}), folder / "numbers.parquet")
    for name, content in everything.items():
        (folder / name).write_bytes(content)
    return everything


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--corpus", "missing.txt"], "no corpus at missing.txt"),
        (["--corpus", "~nosuchuser/x.txt"], "no corpus at ~nosuchuser/x.txt"),
        (["--form", "runs/bert"], "no setting or flag --form. Did you mean --from"),
        (["--config", "latin.txt"], "latin.txt is not UTF-8"),
        (["--model.encoder.init_args.vocab_size=100"], "vocab_size is 100, but the tokenizer has 500 tokens"),
        (["--trainer.gradient_clip_algorithm=value"], "gradient_clip_algorithm is not used here"),
        (["--trainer.logger=false"], "logger is not used here; set WANDB_MODE"),
        (["--trainer.logger=WandbLogger"], "each run has its own already: set WANDB_MODE"),
        (["--trainer.logger=CSVLoger"], "trainer.logger is CSVLoger; it must be the name of a class"),
        (["--trainer.logger=CSVLogger", "--trainer.logger.nam=x"], r"Did you mean trainer\.logger\.init_args\.name"),
        (["--trainer.logger=CometLogger"], "loggers.CometLogger needs a package: .*comet"),
        (["--corpus", "wikitextt"], "no corpus 'wikitextt'.*sample.*wikitext2"),
        (["--corpus", "empty.txt"], "The corpus holds no text.$"),
        (["--corpus", "blank.txt"], "holds no text"),
        (["--corpus", "binary.txt"], "binary"),
        (["--corpus", "latin.txt"], "UTF-8"),
        (["--corpus", "one.txt"], "too few|at least 2 documents"),
        (["--corpus", "body.jsonl"], "text_column"),
        (["--corpus", "wikitext2"], "cannot be reached.*--corpus PATH"),
        (["--model", "nonesuch"], "no model 'nonesuch'.*bert"),
        (["--model.encoder.init_args.sizes=3"], "sizes"),
        (["--trainer.max_stepz=3"], "max_stepz"),
        (["--data.batch_size=many"], "batch_size"),
        (["--data.batch_size=0"], "too small"),
        (["--data.workers=-1"], "too small"),
        (["--data.validation_every=0"], "too small"),
        (["--data.document_start=("], "not a valid regular expression"),
        (["--trainer.max_steps=0"], "max_steps is 0"),
        (["--trainer.max_steps=-1"], "max_steps is -1"),
        (["--trainer.min_epochs=1"], "min_epochs is not used here"),
        (SHARDED, "set state_dict_type of the strategy to full"),
        (["--validate_every=0"], "validate_every is 0"),
        (["--trainer.log_every_n_steps=0"], "log_every_n_steps is 0"),
        (["--trainer.accumulate_grad_batches=0"], "accumulate_grad_batches is 0"),
        (["--trainer.accelerator=tpu"], "trainer cannot be made"),
        (["--corpus", "deep.jsonl"], "deep.jsonl, line 1 is (nested too deeply|.*not JSON)"),
        (["--corpus", "damaged.txt.gz"], "does not decompress"),
        (["--corpus", "numbers.parquet"], "holds int64, not text"),
        (["--precision=64"], "precision"),
        (["--data.length=64"], "only 48 positions"),
        (["--model.encoder.init_args.heads=5"], "multiple of the number of heads"),
        (["--model.objective.init_args.mask_rate=1.5"], "between 0 and 1"),
        (["--data.tokenizer.file=nothing.json"], "no tokenizer at nothing.json"),
        (["--corpus", ""], "--corpus is empty"),
        (["--resume", "--overwrite"], "set one of them"),
        (["--trainer.limit_train_batches=0"], "limit_train_batches is not used here; set trainer.max_steps"),
        (["--trainer.max_epochs=1"], "max_epochs is not used here"),
        (["--trainer.precision=16"], "Set precision"),
        (["--trainer.gradient_clip_val=-1"], r"gradient_clip_val is -1(\.0)?; it must be at least 0"),
        (["--trainer.devices=abc"], "trainer cannot be made"),
        (["--trainer.strategy=foo"], "trainer cannot be made"),
        (["--data.tokenizer.vocab_size=-5"], "vocab_size is -5"),
        (["--model.encoder.init_args.size=0"], "size is 0; it must be at least 1"),
        (["--model", "t5", "--model.encoder.init_args.buckets=0"], "buckets is 0; it must be at least 1"),
        (["--data.sample_documents=0"], "sample_documents is 0; it must be at least 1"),
        (["--data.sample_documents=-5"], "sample_documents is -5; it must be at least 1"),
        (["--model.optimization.learning_rate=-1"], "learning_rate is -1.0; it must be above 0"),
        (["--model.optimization.betas=[2,3]"], "betas is"),
        (["--model.objective=pipeline.objectives.CausalLM"], "CausalLM needs a model that can do causal; Bert does"),
        (
            ["--data.batches=pipeline.batches.WordRows", "--data.batches.carry=false"],
            "BidirectionalLM needs a model that can do bidirectional",
        ),
        (["--model.encoder.init_args.next_sentence=false"], "set model.objective.init_args.next_sentence"),
        (["--model.encoder.init_args.max_length=-1"], "max_length is -1; it must be at least 1"),
        (["--trainer.default_root_dir=x"], "default_root_dir is not used here; leave it out: it is the run folder"),
        (["--data.sample_documents=null", "--data.hub={name: x}"], "data.hub needs a `path`"),
        (["--model.optimization.learning_rate=1e30", "--validate_every=1"], "not finite at step 1"),
    ],
)
def test_pretraining_refuses(tmp_path: Path, args: list[str], message: str) -> None:
    files(tmp_path)
    flags = [flag for flag in SMALL if "sample_documents" not in flag] if "--corpus" in args else SMALL
    if "wikitext2" in args:
        flags = [*flags, "--data.sample_documents=null"]
    with pytest.raises(UserError, match=f"(?s){message}") as caught:
        run("pretrain", "--out", "out", "--trainer.max_steps=2", *flags, *args)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out/metrics.json").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model.encoder.init_args.heads=5"], "multiple of the number of heads"),
        (["--data.length=64"], "only 48 positions"),
        (["--model.encoder.init_args.size=4000000", "--model.encoder.init_args.heads=1"], "weights alone would need"),
    ],
)
def test_sizes_are_refused_before_the_text_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str
) -> None:
    files(tmp_path)
    monkeypatch.setattr("pipeline.data.store_builder.build", lambda *args, **settings: pytest.fail("reads the text"))
    with pytest.raises(UserError, match=message):
        run("pretrain", "--out", "out", "--trainer.max_steps=2", *SMALL, *args)


@pytest.mark.parametrize(("highways", "bound"), [(-1, "at least 0"), (100_000, "at most 1,000")])
def test_highways_are_bounded(highways: int, bound: str) -> None:
    few = ["--data.sample_documents=100", "--data.tokenizer.vocab_size=500"]
    with pytest.raises(UserError, match=f"highways is .* must be {bound}"):
        run("pretrain", "--out", "out", "--model", "elmo", f"--model.encoder.init_args.highways={highways}", *few)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--task", "sentimnt"], "no task 'sentimnt'.*sst2"),
        (
            ["--from", "nowhere"],
            r"no encoder in nowhere: pretrain one, download one from the hub, or name another \(--from\)",
        ),
        (["--model", "foo"], "no model 'foo'; there are .*bert, bert-base"),
        (["--patience=-1"], "patience is -1"),
        (["--model.warmup_share=3"], "warmup_share is 3.0; it is a share"),
        (["--model.optimization.layer_decay=0"], "layer_decay is 0.0; it must be above 0"),
        (["--task", "sst2"], "cannot be (reached|read from the hub).*--data FOLDER"),
        (["--task", "sst2", "--data", "nowhere"], "no task data at nowhere"),
        (["--data.max_length=64"], "only 48 positions"),
        (["--data.task.init_args.labels={good: good}"], "at least two labels are needed"),
        (["--data.batch_size=0"], "data.batch_size is 0"),
        (["--data.train_rows=-5"], "data.train_rows is -5"),
        (["--data.workers=-1"], "data.workers is -1"),
        (["--data.max_length=0"], "data.max_length is 0"),
        (["--model.recipe.mix_dropout=7"], "mix_dropout is 7.0; it is a rate"),
        (["--model.recipe.words=mean"], "words are for tagging"),
        (["--model.recipe.mix_dropout=0.5"], "this head sees the top one"),
        (["--task", "tagging", "--data.cut=tail"], "read in windows, whole"),
        (["--trainer.max_steps=0"], "max_steps is 0"),
        (["--data.task.init_args.columns=null"], "columns"),
        (["--data.task.init_args.labels={yes: positive, no: negative}"], "quotes"),
        (["--task", "tagging", "--data.task.init_args.conll={words: 1}"], "two columns, words and tags"),
        (["--arm", "frozen", "--model.recipe.unfreeze_share=0.5"], "the arm 'frozen' does not train it"),
        (["--arm", "random", "--model.optimization.layer_decay=0.5"], "the arm 'random' does not train it"),
        (["--arm", "frozen", "--model.optimization.encoder_rate=0.1"], "the arm 'frozen' does not train it"),
        (["--model.optimization.encoder_rate=0"], "encoder_rate is 0.0; it must be above 0"),
        (["--validations=0"], "validations is 0"),
        (["--model.recipe.label_smoothing=2"], "label_smoothing is 2.0; it is a share"),
        (["--model.recipe.lstm=-1"], "lstm is -1"),
        (["--model.arm=scratch"], "Set --arm scratch, not model.arm"),
        (["--model.arm=scrach"], "model.arm is scrach; it must be one of full"),
        (["--model.optimization.warmup_steps=9"], "not used in fine-tuning; set model.warmup_share"),
        (["--data.task.init_args.sample=rumours"], "no sample 'rumours'; there are sentiment"),
        (["--data.task.init_args.sample=null", "--data.task.init_args.hub={name: x}"], "hub has no path"),
        (["--data.task.init_args.labels={good: good, bad: bad}"], "label '(positive|negative)'; the task knows good"),
    ],
)
def test_fine_tuning_refuses(pretrained: Path, args: list[str], message: str) -> None:
    origin = [] if "--from" in args else ["--from", str(pretrained / "encoder")]
    with pytest.raises(UserError, match=message):
        run("finetune", "--out", "out", *origin, *args)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{text} We", "{text} We {", "is not valid"),
        ("{text} We", "{} We", "a field without a name"),
        ("[MASK]", "[MASKED]", "has no .MASK."),
        ("{negative: angry, positive: happy}", "{positive: happy}", "no candidate for the label negative"),
        ("{negative: angry, positive: happy}", "[angry, happy]\n          gold: 2", "right answer is 2 of 2"),
        (
            "{negative: angry, positive: happy}",
            "[angry, happy]\n          gold: text",
            "cannot be filled into the prompt: .*no number of a candidate",
        ),
    ],
)
def test_prompts_are_refused(pretrained: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (REPOSITORY / "configs/tasks/sentiment.yaml").read_text()
    text = text.replace(
        '- {shape: cloze, text: "{text} So we were [MASK].", candidates: {negative: angry, positive: happy}}',
        '- shape: cloze\n          text: "{text} So we were [MASK]."\n'
        "          candidates: {negative: angry, positive: happy}",
    )
    assert old in text
    (tmp_path / "mine.yaml").write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        run("zeroshot", "--task", str(tmp_path / "mine.yaml"), "--from", str(pretrained / "encoder"), "--limit", "2")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "labels: {negative: negative",
            "labels: {negative: 0",
            "labels has 0 where a text is needed: put it in quotes",
        ),
        (
            "  epochs: 30\n",
            "",
            r"^data.epochs is set nowhere: give it a value in a YAML file, or as --data.epochs=VALUE\.$",
        ),
    ],
)
def test_a_task_that_is_not_whole_is_refused(
    pretrained: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = (REPOSITORY / "configs/tasks/sentiment.yaml").read_text()
    assert old in text
    (tmp_path / "mine.yaml").write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        run("finetune", "--task", str(tmp_path / "mine.yaml"), "--from", str(pretrained / "encoder"), "--steps", "2")


def test_another_kind_of_model_or_no_fitting_tensor(pretrained: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file
    from torch import ones

    folder = tmp_path / "encoder"
    shutil.copytree(pretrained / "encoder", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "SHA256SUMS").unlink()  # changed on purpose
    save_file({"something.else": ones(2)}, folder / "model.safetensors")
    with pytest.raises(UserError, match="No tensor"):
        run("finetune", "--from", str(folder))
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "nonesuch"}))
    with pytest.raises(UserError, match="is nonesuch, not bert; there are"):
        run("finetune", "--from", str(folder))
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 7}))
    with pytest.raises(UserError, match="do not belong together"):
        run("finetune", "--from", str(folder))


@pytest.mark.parametrize(
    "wrong",
    [
        ["--trainer.accelerator=tpu"],
        ["--trainer.devices=abc"],
        ["--trainer.enable_checkpointing=false"],
        ["--model.objective=pipeline.objectives.CausalLM"],
        ["--data.length=64"],
    ],
)
def test_what_is_refused_clears_nothing(tmp_path: Path, wrong: list[str]) -> None:
    (tmp_path / "run/encoder").mkdir(parents=True)
    for name in ("lineage.json", "metrics.json", "encoder/model.safetensors"):
        (tmp_path / "run" / name).write_text("[]")
    with pytest.raises(UserError):
        run("pretrain", *SMALL, "--out", "run", "--overwrite", *wrong)
    assert (tmp_path / "run/encoder/model.safetensors").read_text() == "[]"
    assert (tmp_path / "run/metrics.json").exists()


def test_no_run_goes_into_the_folder_of_an_encoder(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (pretrained / "encoder/lineage.json").read_bytes()
    for stage in (["pretrain", *SMALL], ["finetune", "--from", str(pretrained / "encoder")]):
        with pytest.raises(UserError, match="is the folder of an encoder or model, which this would break"):
            run(*stage, "--out", str(pretrained / "encoder"), "--overwrite")
    assert (pretrained / "encoder/lineage.json").read_bytes() == before
    monkeypatch.setenv("WANDB_MODE", "off")
    with pytest.raises(UserError, match="WANDB_MODE is off; it may be online, offline or disabled"):
        run("pretrain", *SMALL, "--out", "out")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "sometimes")
    with pytest.raises(UserError, match="WANDB_SILENT is 'sometimes', which Weights & Biases cannot read"):
        run("pretrain", *SMALL, "--out", "out")


def test_what_weights_and_biases_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A key, and no network."""

    def refuses(args: list[str]) -> None:
        raise CommError("Run initialization has timed out")

    monkeypatch.setattr("pipeline.cli.parser.main", refuses)
    monkeypatch.setattr("sys.argv", ["pipeline", "pretrain"])
    assert main() == 2
    assert "WANDB_MODE=offline" in capsys.readouterr().err


def make(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    installed = [f"-o.venv/bin/.installed-{extra}" for extra in ("core", "dev", "bench", "lm-eval")]
    environment = {**os.environ, **environment}
    return subprocess.run(["make", *installed, *args], cwd=REPOSITORY, capture_output=True, text=True, env=environment)


@pytest.mark.slow  # processes of make
def test_a_target_uses_a_variable_or_refuses_it() -> None:
    """None is passed over: its value is in the command that make shows, or make names it and ends."""
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)) - {"help"}
    variables = {*re.findall(r"\b([A-Z]+)--[a-z]", makefile), "ROWS", "LOCK"}
    values = {variable: f"value-of-{variable}" for variable in variables}
    values |= {"RESUME": "1", "OVERWRITE": "1", "LOCK": "default"}
    used: dict[str, set[str]] = {}
    for target in sorted(targets):
        done = make("-n", target, *(f"{variable}={value}" for variable, value in values.items()))
        [named] = re.findall(rf"make {target} does not use ([A-Z= ]+); see make help", done.stderr)
        assert done.returncode == 2
        used[target] = variables - set(named.replace("=", "").split())
        done = make("-n", target, *(f"{variable}={values[variable]}" for variable in used[target]))
        assert done.returncode == 0, (target, done.stderr)
        for variable in used[target]:
            shown = f"--{variable.lower()}" if values[variable] == "1" else values[variable]
            assert shown in done.stdout, (target, variable)
    assert used["install"] == {"LOCK"}
    assert used["clean"] == set()
    shared = {"FROM", "TEACHER", "MODEL", "SEED", "DATA", "OUT", "RESUME", "OVERWRITE", "ARGS"}
    assert used["pretrain"] == {"CORPUS", *shared}


def test_unwritable_run_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot be written"):
        run("pretrain", *PRETRAIN, "--out", "file/run")


def test_help_and_wrong_names_do_not_wait_for_torch() -> None:
    code = "import sys; from pipeline.cli.parser import parser; parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


@pytest.mark.slow  # processes of their own
@pytest.mark.parametrize(
    ("args", "status", "program"),
    [
        (["pretrain", "--corpus", "missing.txt"], 2, sys.executable),  # as users start it
        (["pretrain", "--trainer.max_stepz=3"], 2, None),
        (["finetune", "--arm", "half"], 2, None),
        (["dance"], 2, None),
        ([], 2, None),
        (["--help"], 0, sys.executable),
        (["pretrain", "--help"], 0, None),
    ],
)
def test_the_command_itself(args: list[str], status: int, program: str | None) -> None:
    done = command(*args, program=program)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    if status:
        assert done.stderr.strip().splitlines()[-1].startswith("Error: ")
    else:
        assert "pretrain" in done.stdout
