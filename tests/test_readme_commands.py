"""Every command of the README and of docs/, as written, on toy sizes: in a fresh folder, with a clean environment.

`make` is real, and so are the shell and the command line; in place of `.venv/bin/python` stands a program that notes
what it is called with. All that it notes is then run in one process, one command after the other, which has only HOME
and PATH from outside: so what one run leaves behind in the process meets the next.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.presets import files as presets
from pipeline.presets.files import REPOSITORY
from pipeline.presets.tasks import task_file, task_of
from tests.conftest import PAGES
from tests.test_elmo_published import write_published

pytestmark = pytest.mark.slow

# What is not run here, and why.
ELSEWHERE = {
    r"make (install|test|lint|docs|bench|bench-lm-eval|verify-resume|scaling)\b": "a test of its own, or this one",
    r"make wikipedia-sample": "the hub; a test of its own",
    r"make ladder\b": "a test of its own",
    r"(\.venv/bin/torchrun|sbatch) ": "several machines",
    r"make pretrain ARGS=\"--trainer.devices=2": "test_processes",
    r"\.venv/bin/pip ": "the package registry",
    r".*\blm-eval\b": "an extra",
}
# What ends with status 2 here, and the sentence in which it does.
REFUSED = {
    r"make pretrain CORPUS=wikitext103": "cannot be reached",
    r"make finetune TASK=trec FROM=runs/mine/encoder$": "cannot be reached",
    r"make pretrain MODEL=gpt2?-small": "cannot be reached",
    r"make try MODEL=elmo WORD=": "two are needed",  # in so small a text
    r"make (sync|sweep)": "set WANDB_API_KEY",
}
NOTES = """\
#!{python} -IS
import json, os, sys
piped = "predict" in sys.argv and not any(word.startswith("--data") for word in sys.argv)
text = sys.stdin.read() if piped else ""
with open({file!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ), text]) + "\\n")
"""
REPLAY = """\
import contextlib, io, json, os, sys, time, traceback
from pipeline.__main__ import main
import pytest
from tests.conftest import draw_less
draw_less(pytest.MonkeyPatch())  # for time: tests of their own draw all
# What libraries set once for a process, whatever runs in it.
PROCESS = ("WANDB_SERVICE", "TOKENIZERS_PARALLELISM", "GOMP_SPINCOUNT", "KMP_", "PYTORCH_", "TORCHINDUCTOR_")
file, results = sys.argv[1:3]
for line in open(file):
    args, environment, text = json.loads(line)
    before, begin = dict(os.environ), time.process_time()
    os.environ.update(environment)
    given = dict(os.environ)
    sys.argv = ["pipeline", *args]
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = exec(text, {}) if args == ["python"] else main()
    except SystemExit as error:
        status = error.code
    except BaseException:
        status = traceback.format_exc()
    used = time.process_time() - begin
    left = {k: v for k, v in os.environ.items() if given.get(k) != v and not k.startswith(PROCESS)}
    with open(results, "a") as target:
        found = {"status": status, "out": out.getvalue(), "err": err.getvalue(), "left": left, "cpu": used}
        target.write(json.dumps(found) + "\\n")
    os.environ.clear()
    os.environ.update(before)
"""


def blocks(language: str, *pages: Path) -> list[str]:
    """The code of pages, of all if none is named, in a language; with few steps, seeds and labels."""
    text = "\n".join(page.read_text() for page in pages or PAGES)
    text = re.sub(r"(max_steps=|--steps )\d+", r"\g<1>8", text)
    text = re.sub(r"\bSEEDS=[3-9]", "SEEDS=2", text)
    text = re.sub(
        r"--labels [\d,]+,(\d+|all)", lambda found: f"--labels 10,{found[1] if found[1] == 'all' else 24}", text
    )
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.S | re.M)


def commands() -> list[str]:
    """The lines of the pages' shell blocks, each once, without comments; the README's first."""
    lines: list[str] = []
    for block in blocks("bash"):
        variables = ""  # that a block sets for its further lines
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"(^|\s+)#.*", "", line).strip()
            if re.match(r"[A-Z]+=", line):
                variables += f"{line}; "
            elif line:
                lines.append(f"{variables if '$' in line else ''}{line}")
    lines = sorted(dict.fromkeys(lines), key=lambda line: not line.startswith("make pretrain"))  # encoders come first
    return [line for line in lines if not any(re.match(pattern, line) for pattern in ELSEWHERE)]


def change(file: Path, **values: Any) -> None:
    """Sets dotted keys of a YAML file, written with __ for the dots."""
    content = yaml.safe_load(file.read_text()) or {}
    for name, value in values.items():
        *path, last = name.split("__")
        place = content
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    file.write_text(yaml.safe_dump(content, sort_keys=False))


def toy_configurations(configs: Path) -> None:
    """The same files with sizes at which a command takes a second or two."""
    change(configs / "base.yaml", validate_every=4, data__validation_rows=32, trainer__log_every_n_steps=2)
    change(configs / "corpora/sample.yaml", data__sample_documents=300, data__length=32, data__validation_rows=32)
    change(configs / "corpora/sample.yaml", validate_every=4)
    sizes = {"size": 32, "layers": 2, "heads": 2, "inner_size": 64, "max_length": 48}
    for model in ("bert", "gpt", "elmo", "bart", "t5"):
        (configs / f"corpora/sample/{model}.yaml").unlink()
        file = configs / f"pretrain/{model}.yaml"
        change(file, data__length=32, data__batch_size=8, data__tokenizer__vocab_size=600, trainer__max_steps=8)
        change(file, model__optimization__warmup_steps=2)
        if model == "elmo":
            filters = [[1, 8], [2, 8]]
            small = {"filters": filters, "projection": 16, "cell": 16, "cutoffs": [100], "max_length": 48}
        else:
            small = sizes
        change(file, **{f"model__encoder__init_args__{name}": value for name, value in small.items()})
    for file in (configs / "corpora/sample").glob("*.yaml"):
        if file.stem != "ngram":  # which has no steps
            change(file, model__optimization__warmup_steps=2, trainer__max_steps=8, data__batch_size=8)
    file = configs / "corpora/sample/xlm.yaml"  # has its text too
    change(file, **{f"model__encoder__init_args__{name}": value for name, value in sizes.items()})
    change(configs / "pretrain/ngram.yaml", data__length=32, data__tokenizer__vocab_size=600)
    change(configs / "finetune.yaml", validations=2, data__train_rows=24, data__max_length=32)
    for file in (configs / "tasks").glob("*.yaml"):
        change(file, data__epochs=1)
    small = {f"model__encoder__init_args__{name}": value for name, value in sizes.items()}
    change(configs / "tasks/translation/transformer.yaml", **small)
    change(configs / "tasks/translation.yaml", data__task__init_args__beam=1)
    for file in (configs / "recipes").glob("*.yaml"):
        content = yaml.safe_load(file.read_text())
        few = {"ingredients": dict([*content["ingredients"].items()][:2]), "together": [], "tokens": 512, "seeds": 1}
        file.write_text(yaml.safe_dump({**content, **few}))
    for file in (configs / "compare").glob("*.yaml"):
        toy_grid(file, commands())


def toy_grid(file: Path, lines: list[str]) -> None:
    """One seed and one rate; of models and tasks the first, the last and those that a command for the grid names.

    The grid of the sample has two arms, so that there are gains, the others have one.
    """
    content, sample = yaml.safe_load(file.read_text()), file.stem == "sample"
    commands = [line for line in lines if re.match(r"(make|.*pipeline) compare\b", line)]
    named = " ".join(line for line in commands if (f"NAME={file.stem}" in line) or (sample and "NAME=" not in line))
    for part in ("models", "tasks"):
        names = list(content[part])
        kept = [name for name in names if name in (names[0], names[-1]) or re.search(rf"[ ='\"]{name}\b", named)]
        content[part] = kept if isinstance(content[part], list) else {name: content[part][name] for name in kept}
    content["arms"] = {name: {"seeds": 1} for name in [*content["arms"]][: 1 + sample]}
    file.write_text(yaml.safe_dump(content))


def toy_constants(folder: Path) -> None:
    """What of a long command no configuration sets: the sizes and steps of `worth`, and the rows of the sample."""
    worth, sample = "experiments/worth", "data/synthetic/tasks"
    rows = '{"train": 48, "valid": 24, "test": 48}'
    for name, constant, value in (
        (f"{worth}/prompt", "MOST", "24"),
        (f"{worth}/few_rows", "STEPS", "2"),
        (sample, "SPLIT_ROWS", rows),
        (sample, "PARALLEL_ROWS", rows),
    ):
        file = folder / f"pipeline/{name}.py"
        changed = re.sub(rf"^{constant} = [^#\n]+", f"{constant} = {value}", file.read_text(), flags=re.M)
        assert changed != file.read_text()
        file.write_text(changed)


def toy_data(home: Path, folder: Path) -> None:
    """The texts and data sets that the pages take for the user's."""
    prose = "".join(f"The {word} one came home. It was a {word} day.\n\n" for word in ("old", "new", "red", "big") * 30)
    (home / "texts").mkdir(parents=True)
    for file in (home / "texts/a.txt", home / "texts/valid.txt", home / "other.txt", folder / "valid.txt"):
        file.write_text(prose)
    (folder / "texts.txt").write_text("Ann lives in York.\nBob met her there.\n")
    for corpus in ("train-0", "valid"):
        place = folder / f"wikipedia-en/{corpus}.jsonl"
        place.parent.mkdir(exist_ok=True)
        place.write_text("".join(json.dumps({"text": text}) + "\n" for text in prose.split("\n\n") if text))
    grids = [
        yaml.safe_load((presets.CONFIGS / f"compare/{name}.yaml").read_text())["tasks"] for name in ("real", "pairs")
    ]
    tasks = {name: place for grid in grids for name, place in grid.items()}
    places = {name: [home / "data" / place, folder / "data" / place] for name, place in tasks.items()}
    places["sst2"].append(home / "sst2")
    places["sick"].append(home / "sick")
    places["mnli-7k"].append(home / "mnli-7k")
    places["ud-pos"].append(folder / "ud-ewt")
    places["squad"] = [home / "squad"]
    for name, copies in places.items():
        task = task_of(task_file(name))
        for begin in task.splits.values():
            for copy in copies:
                file = copy / f"{begin.replace('*', 'x')}.jsonl"
                file.parent.mkdir(parents=True, exist_ok=True)
                rows = [task.made_up(number) for number in range(36)]
                file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "blimp").mkdir()
    pair = {"sentence_good": "The cats sleep.", "sentence_bad": "The cats sleeps.", "field": "morphology", "UID": "x"}
    pair |= {"linguistics_term": "agreement", "phenomenon": "agreement"}
    (home / "blimp/x.jsonl").write_text((json.dumps(pair) + "\n") * 4)
    rows = "".join(f"a {word} film,{label}\n" for word, label in (("good", 5), ("bad", 1)) for _ in range(100))
    (folder / "reviews.csv").write_text("review,stars\n" + rows)
    (folder / "questions.csv").write_text("question,context\nWhere is it?,The house is by the sea.\n")
    write_published(folder)
    write_foreign(home / "models/bert-base-uncased")


def write_foreign(folder: Path) -> None:
    """A small BERT as transformers saves it."""
    from transformers import BertConfig, BertForPreTraining, BertTokenizer

    folder.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "text", "row"]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    BertForPreTraining(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)


def test_every_command_of_the_pages(tmp_path: Path) -> None:
    folder, home = tmp_path / "repository", tmp_path / "home"
    ignored = shutil.ignore_patterns(".*", "runs", "build", "__pycache__", "*.egg-info", "wandb")
    shutil.copytree(REPOSITORY, folder, ignore=ignored)
    toy_configurations(folder / "configs")
    toy_constants(folder)
    toy_data(home, folder)
    noted, answers, program = tmp_path / "noted.jsonl", tmp_path / "answers.jsonl", folder / ".venv/bin/python"
    program.parent.mkdir(parents=True)
    program.write_text(NOTES.format(python=sys.executable, file=str(noted)))
    program.chmod(0o755)
    for stamp in (".venv-made", ".installed-core", ".installed-dev"):
        (program.parent / stamp).touch()
    clean = {"HOME": str(home), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}  # a thread is faster for toys
    asked: list[str] = []
    for line in commands():
        before = len(noted.read_text().splitlines()) if noted.exists() else 0
        done = subprocess.run(["bash", "-c", line], cwd=folder, env=clean, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        asked += [line] * (len(noted.read_text().splitlines()) - before)
    calls = [json.loads(line) for line in noted.read_text().splitlines()]
    assert len(calls) == len(asked) > 30
    lines = []
    for args, environment, text in calls:
        assert args[:2] == ["-m", "pipeline"], args
        lines.append(json.dumps([args[2:], {k: v for k, v in environment.items() if k not in SHELL}, text]) + "\n")
    for page in PAGES:
        if code := "\n".join(blocks("python", page)):
            asked.append(f"Python of {page.name}")
            lines.append(json.dumps([["python"], {}, code]) + "\n")
    noted.write_text("".join(lines))
    replay = [sys.executable, "-c", REPLAY, str(noted), str(answers)]
    done = subprocess.run(replay, cwd=folder, env=clean, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(found) == len(asked)
    wrong = []
    for line, answer in zip(asked, found, strict=True):
        said = next((said for pattern, said in REFUSED.items() if re.match(pattern, line)), "")
        right = answer["status"] == 2 and said in answer["err"] if said else answer["status"] in (0, None)
        if not right or answer["left"]:
            wrong.append(f"{line}\n  {answer['status']} {answer['err'][-600:]} {answer['left']}")
    assert not wrong, "\n".join(wrong)


SHELL = {"PWD", "OLDPWD", "SHLVL", "_", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKE_TERMOUT", "MAKE_TERMERR", "LC_CTYPE"}
