"""What is asked for -> the configuration of a run: which YAML files and flags it has, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.cli.continued import TEACHER, check_class, check_kept, kept_settings, kept_tokenizer, student_settings
from pipeline.cli.encoder_folders import (
    begins_anew,
    encoder_folder,
    encoder_settings,
    made_in,
    tokenizer_settings,
)
from pipeline.cli.lightning_cli import classes_of, files_in, parse
from pipeline.cli.validate import check_asked
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.experiments.feasible import is_counting
from pipeline.presets.arms import FROZEN
from pipeline.presets.files import (
    content_of,
    flat,
    known,
    model_file,
    named_config,
    pretraining_files,
    unknown,
)
from pipeline.presets.tasks import FINETUNE, FINETUNE_COUNTING, FINETUNE_FROZEN, task_file, trained_task
from pipeline.training.configuration import Configuration
from pipeline.training.corpus_data import OF_TASK, CorpusData
from pipeline.training.counting import Counting
from pipeline.training.finetuning import FineTuning
from pipeline.training.from_scratch import FromScratch
from pipeline.training.naive_bayes import NaiveBayes
from pipeline.training.pretraining import Pretraining
from pipeline.training.requests import (
    OF_STEPS,
    OF_UPDATES,
    CorpusRequest,
    FineTuneRequest,
    PretrainRequest,
    by_setting,
    overrides_of,
    settings_in,
)
from pipeline.training.task_data import TaskData
from tasks.discovery import located

# What a run is named by: MODEL and CORPUS, or TASK, which is told by its kind and by where its rows are from.
OF_PRETRAINING = ("model.encoder.class_path", "data.files", "data.hub", "data.sample_documents", "data.task")
OF_FINETUNING = ("data.task.class_path", "data.task.init_args.sample", "data.task.init_args.hub")


def corpus_flags(corpus: str, data: str | None, model: str) -> list[str]:
    """CORPUS= and DATA= as flags, beside the file of the corpus, if it has one.

    Raises:
        UserError: no preset and no path, or two paths.
    """
    if corpus.startswith(OF_TASK):
        task = corpus.removeprefix(OF_TASK)
        task_file(task, kind="translation" if reads_translations(model) else None, data=data)
        return [f"--data.task={task}", *([] if data is None else ["--data.files", data])]
    preset = named_config("corpora", corpus)
    if preset is None and not _is_path(corpus):
        raise UserError(f"{unknown('corpus', corpus, 'corpora')} A path would do too, or task:NAME.")
    if preset is None and data is not None:
        raise UserError(
            f"{typed.flag('corpus', corpus)} and {typed.flag('data', data)} both say where the text is: leave one out. "
            f"{typed.flag('data')} takes the place "
            f"of the hub's text of a preset ({', '.join(known('corpora'))})."
        )
    location = data if data is not None else None if preset else corpus
    return [] if location is None else ["--data.files", location, "--data.hub=null", "--data.sample_documents=null"]


def seed_flags(seed: int) -> list[str]:
    return [f"--model.seed={seed}", f"--data.seed={seed}"]


def check_seed(configuration: Configuration, seed: int) -> None:
    """Raises: UserError, a flag or file sets another seed than the one that is asked for."""
    for part in ("model", "data"):
        if seed and (own := configuration.resolved[part]["seed"]) != seed:
            other = typed.flag("seed", seed)
            raise UserError(f"{part}.seed is {own}, and {other} says otherwise: leave one of them out.")


def reads_translations(model: str) -> bool:
    """Whether MODEL, a preset, is pretrained on texts and their translations."""
    file = named_config("pretrain", model)
    objective = None if file is None else located(classes_of([content_of(file)], []).get("model.objective", ""))
    return getattr(objective, "parallel", False)


def _is_path(corpus: str) -> bool:
    path = Path(corpus)
    return bool(corpus) and ("/" in corpus or any(c in corpus for c in "*?[") or path.exists() or bool(path.suffix))


def files_first(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files of `--config` among flags, and the other flags, which are stronger wherever they stand."""
    parts: tuple[list[str], list[str]] = ([], [])
    for name, words in by_setting(overrides):
        parts[name != "config"].extend(words)
    return parts


def check_files(
    configs: Sequence[str], made: Configuration, plain: Callable[[], Configuration], named: str, of: tuple[str, ...]
) -> None:
    """Whether a run with files of `--config` has the model, the corpus and the task that it is named by.

    Args:
        configs: the words with the files.
        made: the configuration.
        plain: makes that without the files.
        named: MODEL= and CORPUS=, or TASK=.
        of: settings that these stand for.

    Raises:
        UserError: the files set others.
    """
    keys = {key for file in files_in([*configs]) for key in flat(content_of(file)) if key.startswith(of)}
    if keys:
        ours, theirs = (flat(one.resolved) for one in (made, plain()))
        # Of the sample another part has the same name.
        same = {key for key in keys if key == "data.sample_documents" and None not in (ours.get(key), theirs.get(key))}
        if other := sorted(key for key in keys - same if ours.get(key) != theirs.get(key)):
            raise UserError(f"A file of --config sets {other[0]} otherwise than {named}, which the run is named by.")


def pretraining(request: CorpusRequest) -> Configuration:
    """A model's way of pretraining on a corpus; nothing is built or read yet.

    Raises:
        UserError: there is no such model or corpus, or a setting is not valid.
    """
    model_file(request.model)  # refuses unknown ones
    of_corpus = corpus_flags(request.corpus, request.data, request.model)
    files = pretraining_files(request.model, request.corpus)
    configs, others = files_first(request.overrides)
    flags = [*seed_flags(request.seed), *configs, *of_corpus, *others]
    module = module_for(files, flags)
    if not isinstance(request, PretrainRequest) or (request.encoder is None and request.teacher is None):
        configuration = checked(parse(module, CorpusData, files, flags), request)
        named = f"{typed.flag('model', request.model)} and {typed.flag('corpus', request.corpus)}"
        check_files(
            configs,
            configuration,
            lambda: parse(module, CorpusData, files, [*of_corpus, *others]),
            named,
            OF_PRETRAINING,
        )
        return configuration
    if module.is_counting:
        begun = " and ".join(map(typed.flag, ("from", "teacher")))
        raise UserError(f"{request.model} counts its text anew: leave {begun} out.")
    taught = {} if request.teacher is None else {TEACHER: made_in(request.teacher)}
    configuration = parse(module, CorpusData, files, [*overrides_of(taught), *flags])
    if request.encoder is not None:
        folder = encoder_folder(request.model, request.encoder)
        check_class(configuration, folder)
        taken = fixed = kept_settings(folder, configuration.module.objective)
        why = f"a run that goes on from {folder} keeps its tokenizer and sizes"
    else:
        folder = taught[TEACHER]
        taken, fixed = student_settings(folder, configuration, request.overrides), kept_tokenizer(folder)
        why = f"a student of {folder} keeps its tokenizer"
    flags = [*overrides_of({**taught, **taken}), *flags]
    configuration = checked(parse(module, CorpusData, files, flags), request)
    check_kept(configuration, fixed, request.overrides, folder, why)
    if taught and configuration.module.distillation is None:
        teacher = typed.flag("teacher", folder)
        raise UserError(f"model.distillation is null, and {teacher} sets it: leave one of them out.")
    return configuration


def checked(configuration: Configuration, request: CorpusRequest) -> Configuration:
    """Raises: UserError, the objective asks for what the encoder lacks, or another seed is set."""
    check_asked(configuration)
    check_seed(configuration, request.seed)
    return configuration


def module_for(files: Sequence[Path], flags: Sequence[str]) -> type[Pretraining]:
    """Training, or counting, as the encoder learns that files and flags name."""
    named = classes_of([content_of(file) for file in [*files, *files_in([*flags])]], [*flags])
    encoder: Any = located(named.get("model.encoder", ""))
    return Counting if getattr(encoder, "learning", None) == "counting" else Pretraining


def check_updates(request: CorpusRequest) -> None:
    """Raises: UserError, a setting of updates is typed for a model that counts."""
    typed_here = settings_in(request.overrides)
    if is_counting(request.model) and (useless := [name for name in OF_UPDATES if name in typed_here]):
        raise UserError(f"{useless[0]} has no effect: {request.model} counts the corpus once. Leave it out.")


def check_steps(request: CorpusRequest) -> None:
    """Raises: UserError, the model has no steps."""
    if pretraining(request).module.is_counting:
        raise UserError(f"{request.model} counts: it has no steps that could be resumed or profiled.")


def finetuning(request: FineTuneRequest) -> Configuration:
    """Fine-tuning on a task; nothing is built or read yet.

    Raises:
        UserError: there is no such task, or a setting is not valid.
    """
    file = task_file(request.task)
    trained_task(request.task)
    counted, fresh = is_counting(request.model), begins_anew(request.model, request.encoder, request.arm)
    if TEACHER in settings_in(request.overrides) and (fresh or counted):
        raise UserError(
            "A student needs the tokenizer of its teacher, and is trained in steps: leave the teacher out, or set "
            f"{typed.flag('from')} to an encoder with that tokenizer."
        )
    files = [FINETUNE, file, *([FINETUNE_FROZEN] if request.arm in FROZEN else [])]
    module: type[FineTuning] = FineTuning
    settings: dict[str, Any] = {}
    if counted:
        check_counting(request)
        module, files = NaiveBayes, [FINETUNE_COUNTING, file]
        settings = encoder_settings(request.model, request.encoder)
    elif fresh:
        own = named_config(f"tasks/{file.stem}", request.model)
        module, settings = FromScratch, encoder_settings(request.model, None) | tokenizer_settings(request.model)
        settings |= {} if own is None else flat(content_of(own))
    of_data, arm = [] if request.data is None else ["--data.files", request.data], f"--model.arm={request.arm}"
    configs, others = files_first(request.overrides)
    first = [*overrides_of(settings), *seed_flags(request.seed), arm]
    given = [*of_data, *([arm] if request.arm != "full" else []), *others]
    configuration = parse(module, TaskData, files, [*first, *configs, *given])
    named = typed.flag("task", request.task)
    check_files(configs, configuration, lambda: parse(module, TaskData, files, [*first, *given]), named, OF_FINETUNING)
    check_seed(configuration, request.seed)
    return configuration


def check_counting(request: FineTuneRequest) -> None:
    """Raises: UserError, the arm or a setting means nothing to a model that counts."""
    if request.arm != "full":
        raise UserError(
            f"{request.model} counts the texts of the task, and neither weights nor vectors of pretraining: there is "
            f"nothing that {typed.flag('arm', request.arm)} could leave out or freeze."
        )
    if useless := sorted(name for name in settings_in(request.overrides) if name.startswith(OF_STEPS)):
        raise UserError(f"{useless[0]} has no effect: {request.model} counts the texts once, on the processor.")
