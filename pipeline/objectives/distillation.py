"""Distillation: a student learns what a trained model predicts, beside its own objective.

Sources: Hinton et al. 2015, https://arxiv.org/abs/1503.02531 (soft targets); Sanh et al. 2019 (DistilBERT),
https://arxiv.org/abs/1910.01108 (the three losses, and every second layer of the teacher as the start).

Shapes: B rows, T positions, N predicted positions, D model size, V vocabulary.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline import encoders
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.folder import read_config
from pipeline.models.losses import CHUNK, Loss, divergence
from pipeline.models.outputs import Encoded, LoadReport
from pipeline.objectives.base import Objective
from pipeline.objectives.batch import Batch, joined
from pipeline.objectives.frozen import Frozen

LAYER = re.compile(r"\.\d+\.")  # in the name of a parameter


@dataclass(frozen=True)
class SoftTargets:
    """What a student learns of its teacher: the loss L of its own training becomes L + w C^2 KL(p || q).

    p and q are the softmax of the logits of teacher and student over C.

    Args:
        teacher: its folder, with the student's tokenizer.
        temperature: C.
        teacher_weight: w.
    """

    teacher: str = ""
    temperature: float = 2.0
    teacher_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.teacher:
            raise UserError(f"model.distillation needs a teacher: set {typed.flag('teacher', 'its folder')}.")
        if not self.temperature > 0:
            raise UserError(f"model.distillation.temperature is {self.temperature}; it must be above 0.")
        for name, value in vars(self).items():
            if name.endswith("_weight") and not value >= 0:
                raise UserError(f"model.distillation.{name} is {value}; it must be at least 0.")


@dataclass(frozen=True)
class Distillation(SoftTargets):
    """What a student learns in pretraining: the loss is L + w C^2 KL(p || q) + h (1 - cos(t, s)).

    t and s are the top layers of teacher and student. Each is a mean over the positions that the objective predicts.
    The weights are those of DistilBERT, 2 : 5 : 1; there KL and cosine are over all positions.

    Args:
        teacher: an encoder folder, with the student's tokenizer.
        temperature, teacher_weight: see `SoftTargets`.
        hidden_weight: h; where the sizes of teacher and student differ, this loss is left out.
    """

    teacher_weight: float = 2.5
    hidden_weight: float = 0.5


class Teacher:
    """A trained model whose predictions a student learns. It is in no checkpoint, and never changes.

    Args:
        length: T, most positions of a row.

    Raises:
        UserError: no encoder folder, or a model that cannot teach this student.
    """

    def __init__(self, options: Distillation, student: Encoder, objective: Objective, *, length: int) -> None:
        folder = Path(options.teacher)
        self.options, self.folder = options, folder
        check_student(type(student), objective)
        with about_teacher():
            teacher_config(folder)
            model = encoders.load(folder)
            model.check_lm()
        if not student.tokenizer.reads_as(model.tokenizer):
            raise UserError(f"The teacher in {folder} has another tokenizer; set data.tokenizer.file to {folder}.")
        if lacking := sorted(objective.requires - model.capabilities()):
            raise UserError(f"The teacher in {folder} cannot do {', '.join(lacking)}, as the student's objective asks.")
        check_positions(length, model.max_length, folder)
        self.model, self.same_size = Frozen(model), model.size == student.size

    def __str__(self) -> str:
        weights = ", ".join(f"{name} {weight:g}" for name, weight in self.weights.items())
        return f"{self.folder}; temperature {self.options.temperature:g}, weights of its losses: {weights}"

    @property
    def weights(self) -> dict[str, float]:
        """Of the losses that a teacher adds."""
        weights = {"teacher": self.options.teacher_weight}
        return {**weights, "hidden": self.options.hidden_weight} if self.same_size else weights

    def losses(self, objective: Objective, student: Encoder, batch: Batch) -> dict[str, Loss]:
        """Those of the objective, and `teacher` and `hidden`, whose targets are added to the batch."""
        with calls_of(student) as calls:
            losses = objective(student, batch)
        times = len(calls)
        if times != 1 or not same_tensors(calls[0][0], batch.inputs):
            how = f"reads a batch {times} times" if times != 1 else "has the model read other tokens than a batch"
            raise UserError(
                f"{type(objective).__name__} {how}, and a teacher is for objectives that read it once, as it is: leave "
                "the teacher out."
            )
        [(_, output)] = calls
        target = joined([batch.targets[name] for name in objective.compared_losses() if name in batch.targets])
        positions = target.predicted
        inputs = self.model.model.asked(batch.inputs, positions)
        ours, theirs = (one.layers[-1].flatten(0, 1)[positions] for one in (output, self.model(inputs)))
        losses["teacher"] = self.divergence(student, ours, theirs)
        if self.same_size:
            cosine = F.cosine_similarity(ours.float(), theirs.float(), dim=-1)
            losses["hidden"] = Loss((1 - cosine).sum(), len(positions))
        batch.targets |= dict.fromkeys(self.weights, target)
        return losses

    def divergence(self, student: Encoder, ours: Tensor, theirs: Tensor) -> Loss:
        """Of top layers (N, D) of both, without all logits at once: a gradient computes those of a chunk again."""

        def of_chunk(hidden: Tensor, of_teacher: Tensor) -> tuple[Tensor, Tensor | None]:
            with torch.no_grad():
                truth = self.model.model.logits(of_teacher)
            part = divergence(student.logits(hidden), truth, temperature=self.options.temperature)
            return part.sum, part.correct

        pairs = zip(ours.split(CHUNK), theirs.split(CHUNK), strict=True)
        if len(ours) <= CHUNK:
            parts = [of_chunk(*pair) for pair in pairs]
        else:
            parts = [checkpoint(of_chunk, *pair, use_reentrant=False, preserve_rng_state=False) for pair in pairs]
        totals, same = [total for total, _ in parts], [correct for _, correct in parts if correct is not None]
        return Loss(torch.stack(totals).sum(), len(ours), torch.stack(same).sum() if same else None)


def same_tensors(read: Mapping[str, Any], inputs: Mapping[str, Any]) -> bool:
    """Whether what a model read has the same values as the inputs of a batch, as far as these go."""
    return all(
        read.get(name) is value or torch.equal(read[name], value) for name, value in inputs.items() if name in read
    )


@contextlib.contextmanager
def calls_of(model: Encoder) -> Iterator[list[tuple[dict[str, Any], Encoded]]]:
    """What the model is given and returns meanwhile, call by call: an objective does not say."""
    calls: list[tuple[dict[str, Any], Encoded]] = []

    def note(module: Any, args: tuple[Any, ...], named: dict[str, Any], output: Encoded) -> None:
        calls.append((args[0] if args else named["batch"], output))

    hook = model.register_forward_hook(note, with_kwargs=True)
    try:
        yield calls
    finally:
        hook.remove()


@contextlib.contextmanager
def about_teacher() -> Iterator[None]:
    """Errors say that they are about the teacher: a run has other folders too."""
    try:
        yield
    except UserError as error:
        raise UserError(f"The teacher cannot be used. {error}") from None


# ---------------------------------------------------------------------- what cannot be taught


def check_student(student: type[Encoder], objective: Objective) -> None:
    """Raises: UserError, a model or an objective that learns of no teacher."""
    if student.scoring not in ("causal", "masked") or objective.consecutive:
        raise UserError(
            "A teacher needs a student that predicts each token once, from those before it or from all others, and "
            "rows that do not continue each other: leave the teacher out."
        )


def teacher_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a teacher.

    Raises:
        UserError: no encoder folder, or that of a fine-tuned model, which need not predict tokens any more.
    """
    config = read_config(folder)
    if "head" in config:
        raise UserError(f"{folder} is a fine-tuned model; name the encoder of a pretraining.")
    return config


def check_positions(length: int, positions: int, folder: Path) -> None:
    """Raises: UserError, rows are longer than what a teacher reads."""
    if positions < length:
        raise UserError(
            f"data.length is {length}, but the teacher in {folder} has {positions} positions: lower data.length."
        )


# ---------------------------------------------------------------------- the start


def chosen_layers(count: int, of: int) -> list[int]:
    """Which layers of a teacher a student with fewer begins with, evenly from the first to the top: 2 of 4 -> [0, 3].

    Of 12, six are 0, 2, 4, 7, 9, 11, as in DistilBERT; one is the first.
    """
    return [round(number * (of - 1) / max(1, count - 1)) for number in range(count)]


@torch.no_grad()
def copy_layers(student: Encoder, teacher: Encoder) -> LoadReport:
    """Gives a student with fewer layers the embeddings, some layers and the output layer of a teacher of its class.

    What the teacher's folder did not have is not copied.

    Raises:
        UserError: they differ in more than their number of layers.
    """
    if type(student) is not type(teacher):
        raise UserError(f"A {student.model_type} cannot begin with layers of a {teacher.model_type}.")
    groups, of_teacher = student.layer_groups(), teacher.layer_groups()
    origins = {name: name for name, _ in student.named_parameters()}  # the name of each there
    for group, number in zip(groups[1:], chosen_layers(len(groups) - 1, len(of_teacher) - 1), strict=True):
        theirs = {_within(name): name for name in _names(teacher, of_teacher[1 + number])}
        origins |= {name: theirs[within] for name in _names(student, group) if (within := _within(name)) in theirs}
    trained = {value.untyped_storage().data_ptr() for value in teacher.trained_state().values()}
    known = {name: p for name, p in teacher.named_parameters() if p.untyped_storage().data_ptr() in trained}
    loaded, new = list[str](), list[str]()
    for name, parameter in student.named_parameters():
        if (value := known.get(origins[name])) is None:
            new.append(name)
            continue
        if parameter.shape != value.shape:
            raise UserError(
                f"Teacher and student differ in {name}: {tuple(value.shape)} and {tuple(parameter.shape)}. "
                "A student of another size begins with fresh weights: set model.start to null."
            )
        parameter.copy_(value)
        loaded.append(name)
    unused = [name for name in known if name not in origins.values()]
    return LoadReport(_in_folder(student, loaded), _in_folder(student, new), _in_folder(teacher, unused))


def _in_folder(model: Encoder, names: Iterable[str]) -> list[str]:
    """What parameters are called in a folder, where one may be several tensors."""
    own = dict(model.named_parameters())
    places = {own[name].untyped_storage().data_ptr() for name in names}
    return [name for name, value in model.export_state().items() if value.untyped_storage().data_ptr() in places]


def _within(name: str) -> str:
    """The name of a parameter in its layer: without the first number, that of the layer."""
    return LAYER.sub(".#.", name, count=1)


def _names(model: Encoder, group: Iterable[nn.Parameter]) -> list[str]:
    inside = {id(parameter) for parameter in group}
    return [name for name, parameter in model.named_parameters() if id(parameter) in inside]
