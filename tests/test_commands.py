"""Commands: each is one file that the parser finds, its requests are typed, and --help lists its settings."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tqdm import tqdm

import pipeline
from pipeline.__main__ import main
from pipeline.cli import commands
from pipeline.cli.config import finetuning, pretraining
from pipeline.cli.parser import command_modules, parser
from pipeline.cli.short_names import KEYS, overrides
from pipeline.errors import UserError
from pipeline.presets.files import REPOSITORY
from pipeline.training.requests import (
    CorpusRequest,
    FineTuneRequest,
    PretrainRequest,
    ZeroShotRequest,
    by_setting,
    settings_in,
)
from tests.conftest import SMALL, command, run

NEW = '''
"""`greet`: says hello."""

HELP = "say hello"


def add_arguments(parser):
    parser.add_argument("--name", default="world")


def run(options):
    print(f"hello {options.name}")
'''


def test_a_new_command_is_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "greet_all.py").write_text(NEW)
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pipeline.cli.commands.greet_all", raising=False)
    assert "say hello" in parser().format_help()
    run("greet-all", "--name", "you")
    assert capsys.readouterr().out == "hello you\n"


def test_every_command_has_a_target_or_is_named_in_make_help() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    [others] = re.findall(r"Also: .*pipeline ([a-z, -]+), each with --help", makefile)
    assert set(command_modules()) == (targets & set(command_modules())) | set(others.split(", "))


def test_what_windows_has_not_is_not_needed() -> None:
    """Signals that only Unix has: nothing asks for them when it is imported, and a command begins without them."""
    code = (
        "import signal, sys; [delattr(signal, name) for name in ('SIGUSR1', 'SIGKILL')]; "
        "import pipeline.experiments.pretraining_run, pipeline.training.checkpoints as c, pipeline.__main__ as m; "
        "sys.argv[1:] = ['audit', '--model', 'none']; sys.exit(m.main() + len(c.Latest.SIGNALS))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 2 + len(("SIGINT", "SIGTERM"))


def test_no_command_imports_torch_before_it_runs() -> None:
    code = "import sys; from pipeline.cli.parser import parser; parser(); sys.exit('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


@pytest.mark.parametrize(
    ("stage", "settings"),
    [
        ("pretrain", ["--data.batch_size=32", "--model.encoder=", "--trainer.max_steps=3000", "--validate_every="]),
        ("finetune", ["--data.epochs=30", "--model.warmup_share=0.1", "--validations=10", "--data.task="]),
    ],
)
def test_help_lists_the_settings_with_their_defaults(stage: str, settings: list[str]) -> None:
    done = command(stage, "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for setting in settings:
        assert re.search(rf"^ +{re.escape(setting)}", done.stdout, re.MULTILINE), setting
    assert max(map(len, done.stdout.splitlines())) <= 120
    assert ("--model.encoder" in done.stdout) == (stage == "pretrain")  # FROM= has it in fine-tuning


def test_help_lists_the_settings_of_the_model_that_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("pretrain", "--help", "--model", "gpt")
    shown = capsys.readouterr().out
    assert "--model gpt --corpus sample" in shown
    assert "--model.encoder=pipeline.models.gpt.Gpt" in shown
    assert re.search(r"--steps STEPS +--trainer.max_steps", shown)
    assert re.search(r"--model MODEL [^\[]*\[bert, or that of --from\]", shown)


def test_short_names_are_the_keys_of_the_configuration() -> None:
    for stage, names in KEYS.items():
        options = parser().parse_args([stage, *(f"--{name}=8" for name in names)])
        keys = [key for _, key, _ in options.settings]
        assert keys == [f"--{key}" for key in names.values()]
        request = (PretrainRequest if stage == "pretrain" else FineTuneRequest)(
            overrides=overrides(
                [setting for setting in options.settings if setting[0] not in ("--accelerator", "--warmup-share")], []
            )
        )
        assert (pretraining if stage == "pretrain" else finetuning)(request)
    with pytest.raises(UserError, match=r"--steps and --trainer\.max_steps are the same"):
        run("pretrain", "--steps", "5", "--trainer.max_steps=6")


def test_flags_override_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("{trainer: {max_steps: 700}, model: {seed: 3}, data: {seed: 3}}")
    options, flags = parser().parse_known_args(["pretrain", "--config", "mine.yaml", "--steps", "100"])
    request = PretrainRequest(overrides=overrides(options.settings, flags))
    with pytest.raises(UserError, match=r"model.seed is 3, and --seed 5 says otherwise: leave one of them out"):
        pretraining(replace(request, seed=5))
    assert pretraining(request).settings.trainer.max_steps == 100


@pytest.mark.parametrize("flags", [["-c", "mine.yaml"], ["-cmine.yaml"], ["-c=mine.yaml"], ["--config=mine.yaml"]])
def test_a_file_of_settings_by_any_name_is_none_of_many_runs(flags: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("model: {seed: 7}")
    with pytest.raises(UserError, match=r"Each of these runs uses one process: remove .* and --config"):
        run("compare", *flags)


@pytest.mark.parametrize("name", ["audit", "data"])
def test_commands_that_take_no_step_have_no_short_name_for_steps(name: str) -> None:
    with pytest.raises(UserError, match=r"no setting or flag --steps"):
        run(name, "--steps", "5", "--length", "16")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["pretrian"], "no command pretrian; there are .* Did you mean pretrain?"),
        (["sync", "--foldr", "x"], "does not know the flag --foldr. Did you mean --folder?"),
        (["finetune", "--arm", "ful"], "--arm is ful; it must be one of .* Did you mean full?"),
        (["pretrain", "--quiet", "--verbose"], "say the opposite"),
        (["pretrain", "--model", "brt"], "no model 'brt'; there are .*Did you mean bert?"),
        (["finetune", "--task", "sentimnt"], "no task 'sentimnt'.*Did you mean sentiment?"),
        (
            ["pretrain", "--trainer.max_step=3"],
            "no setting or flag --trainer.max_step. Did you mean --trainer.max_steps?",
        ),
        (["pretrain", "--learning_rate=3"], "Did you mean --learning-rate?"),
        (["pretrain", "--epochs=3"], "no setting or flag --epochs. It is one of finetune."),
        (["pretrain", "--arm=scratch"], "no setting or flag --arm. It is one of finetune."),
        (["recipes", "--batch-size=16", "--dry-run"], "Did you mean --data.batch_size?"),
        (["finetune", "--validate-every=10"], "no setting or flag --validate-every. It is one of pretrain."),
        (["pretrain", "--lr=3"], "Did you mean --learning-rate?"),
        (["pretrain", "--model.encoder.init_args.sizee=3"], "Did you mean model.encoder.init_args.size?"),
        (["pretrain", "--precision=half"], "precision is half; it must be one of auto, "),
        (["pretrain", "--trainer.deterministic=maybe"], "is maybe; it must be true or false or warn."),
        (
            ["pretrain", "--model.objective=pipeline.objectives.masked_lm.Msked"],
            "which cannot be loaded: .*no attribute",
        ),
    ],
)
def test_what_was_meant(args: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?").replace(".*", "(.|\n)*")):
        run(*args)


def test_a_shell_completes_commands_and_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run("completion", "bash")
    (tmp_path / "complete.bash").write_text(capsys.readouterr().out)
    for words, place in (("pretrain-finetune pretrain --st", 2), ("pretrain-finetune pretr", 1)):
        code = (
            f'. ./complete.bash; COMP_WORDS=({words}); COMP_CWORD={place}; _shtab_pretrain_finetune; echo "$COMPREPLY"'
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == ("--steps" if place == 2 else "pretrain")


def test_a_request_is_the_arguments_of_its_command(tmp_path: Path) -> None:
    request = FineTuneRequest(arm="frozen", encoder=tmp_path, out=tmp_path / "run", resume=True).override(
        {"data.epochs": 2}
    )
    options, flags = parser().parse_known_args(["finetune", *request.arguments()])
    again = FineTuneRequest(
        arm=options.arm, encoder=options.encoder, out=options.out, resume=options.resume, overrides=tuple(flags)
    )
    assert again == request
    assert "--resume" not in PretrainRequest().arguments()
    prompted = ZeroShotRequest(encoder=tmp_path, shots=(0, 4), limit=2, log_text=True)
    options, rest = parser().parse_known_args(["zeroshot", *prompted.arguments()])
    assert (options.shots, options.limit, options.log_text, rest) == ("0,4", 2, True, [])


def test_settings_are_read_once_from_what_users_type() -> None:
    typed = ("--precision", "32-true", "--data.length=8", "--trainer.devices", "2")
    assert by_setting(typed) == [
        ("precision", ("--precision", "32-true")),
        ("data.length", ("--data.length=8",)),
        ("trainer.devices", ("--trainer.devices", "2")),
    ]
    assert settings_in(typed) == {"precision", "data.length", "trainer.devices"}
    assert settings_in(["--model={seed: 7, optimization: {eps: 1}}"]) == {
        "model",
        "model.seed",
        "model.optimization.eps",
    }
    request = CorpusRequest(overrides=("--data.length=8",))
    assert request.override({"seed": 1}).overrides == ("--data.length=8", "--seed=1")
    assert request.override({"data.length": 4}, first=True).overrides == ("--data.length=4", "--data.length=8")


def test_a_refused_run_leaves_no_new_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for out in ("new/run", "mine"):
        with pytest.raises(UserError, match="only 48 positions"):
            run("pretrain", "--out", out, *SMALL, "--data.length=64")
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "mine").is_dir()


def test_the_version_and_what_a_command_without_words_says() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout.strip()) == (0, pipeline.__version__)
    done = command()
    assert done.returncode == 2
    assert "COMMAND" in done.stdout


def test_the_last_message_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(args: list[str]) -> None:
        tqdm(total=2, desc="tokenize").update()
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.cli.parser.main", fails)
    monkeypatch.setattr("sys.argv", ["pipeline", "audit"])
    assert main() == 130
    assert capsys.readouterr().err.endswith("\nInterrupted.\n")


@pytest.mark.parametrize("name", sorted(command_modules()))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(name, "--help")
    assert ended.value.code == 0
    assert f" {name} " in capsys.readouterr().out


def test_a_kind_of_task_that_lacks_methods_is_refused_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "from dataclasses import dataclass\nfrom tasks.base import Task\n\n@dataclass\nclass Half(Task):\n    pass\n"
    )
    (tmp_path / "half.yaml").write_text("data: {task: {class_path: half.Half, init_args: {columns: {text: text}}}}\n")
    with pytest.raises(UserError, match=r"half\.Half has no baselines, check_labels, .*label, .* yet"):
        run("finetune", "--model", "ngram", "--task", str(tmp_path / "half.yaml"), "--data", str(tmp_path))
