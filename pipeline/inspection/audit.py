"""`make audit`: is what a model is asked, and what it sees, as it should be? On real batches of the loader.

Most faults of pretraining are silent: a mask on padding, a shifted label, a look at the future. The loss still
falls. Each check here is one that such a fault does not pass.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.data.rows import PackedBlocks, SentenceWindows
from pipeline.models.base import Encoder
from pipeline.models.elmo import Elmo
from pipeline.models.generation import KeyValues
from pipeline.models.gpt import Gpt
from pipeline.models.inputs import Batch
from pipeline.objectives.base import Objective
from pipeline.objectives.batches import CausalBlocks, MaskedPairs, Steps, WordRows
from pipeline.objectives.masking import Pair, pair_count, sentence_pairs
from pipeline.tokenization.base import Tokenizer
from pipeline.training.corpus_data import CorpusData

BATCHES = 40  # batches that shares are counted on
SIGMAS = 4.5  # width of the intervals: one false alarm in 150,000 checks
CLOSE = 1e-4  # float32, two orders of the same sums


@dataclass
class Check:
    """One line of the report."""

    name: str
    passed: bool
    detail: str

    def __str__(self) -> str:
        return f"{'pass' if self.passed else 'FAIL'}  {self.name}: {self.detail}"


def share(name: str, count: float, total: float, expected: float) -> Check:
    """A share of `total` draws, with the interval that chance leaves around `expected`."""
    width = SIGMAS * math.sqrt(expected * (1 - expected) / max(1, total))
    found = count / max(1, total)
    detail = f"{found:.4f} of {total:,.0f}, expected {expected:.4f} ± {width:.4f}"
    return Check(name, abs(found - expected) <= width, detail)


def none(name: str, count: float, of: str) -> Check:
    return Check(name, count == 0, f"{count:,.0f} {of}")


def equal(name: str, difference: float) -> Check:
    return Check(name, difference <= CLOSE, f"largest difference {difference:.2g}")


def audit(encoder: Encoder, objective: Objective, data: CorpusData, *, uniform: float) -> Iterator[Check]:
    """All checks that belong to this encoder and these batches.

    Args:
        encoder: a fresh one.
        uniform: nats of guessing evenly.
    """
    steps = Steps(
        data.maker, data.train, data.tokenizer, length=data.length, batch_size=data.batch_size, seed=data.seed
    )
    batches = [steps(step) for step in range(min(BATCHES, steps.steps))]
    encoder.eval()
    with torch.no_grad():
        yield fresh_loss(encoder, objective, batches[0], uniform)
        yield from invariance(encoder, data)
    if isinstance(data.maker, MaskedPairs):
        yield from masked(batches, steps, data.maker)
    if isinstance(data.maker, CausalBlocks):
        yield none("labels are the next tokens", shifted(batches, "input_ids", "labels", 1), "are not")
    if isinstance(data.maker, WordRows):
        yield none("forward labels are the next words", shifted(batches, "input_ids", "next", 1), "are not")
        yield none("backward labels are the words before", shifted(batches, "input_ids", "previous", -1), "are not")
    if isinstance(encoder, Gpt):
        yield from no_leak("later tokens", encoder, batches[0], slice(None), ahead=True)
        with torch.no_grad():
            yield cached(encoder, batches[0])
            yield packed(encoder, steps)
    if isinstance(encoder, Elmo):
        half = encoder.projection
        yield from no_leak("later words", encoder, batches[0], slice(0, half), ahead=True)
        yield from no_leak("earlier words", encoder, batches[0], slice(half, None), ahead=False)


def fresh_loss(encoder: Encoder, objective: Objective, batch: Batch, uniform: float) -> Check:
    """Before it has learned anything a model guesses evenly: another loss means labels or logits are wrong."""
    if isinstance(encoder, Elmo):  # the adaptive softmax guesses evenly in each of its parts, not over all words
        top = torch.zeros(1, encoder.size)
        expected = -float(encoder.logits(top)[0, 0][batch["next"].flatten()].mean())
    else:
        expected = uniform
    if isinstance(encoder, Elmo):
        encoder.reset()
    loss = next(iter(objective(encoder, batch).values()))
    found = float(loss.sum / loss.count)
    return Check("a fresh model's loss", abs(found - expected) < 0.4, f"{found:.3f}, guessing evenly {expected:.3f}")


def invariance(encoder: Encoder, data: CorpusData) -> Iterator[Check]:
    """What a text becomes depends on neither its company in the batch nor its padding nor its place."""
    if isinstance(encoder, Elmo) and encoder.state == "carry":
        return  # there it depends on the batch before, on purpose
    texts = ["one two three", "a", "this text is a good deal longer than the others , so that they are padded"]
    together, turned = encoder.encode(texts), encoder.encode(texts[::-1])
    worst = [0.0, 0.0]
    for row, text in enumerate(texts):
        alone = encoder.encode([text])
        length = int(alone.mask.sum())
        for layer in range(len(alone.layers)):
            here = together.layers[layer][row, :length]
            worst[0] = max(worst[0], float((here - alone.layers[layer][0]).abs().max()))
            worst[1] = max(worst[1], float((here - turned.layers[layer][-1 - row, :length]).abs().max()))
    yield equal("padding does not matter", worst[0])
    batch = encoder.collate(encoder.tokenize(texts))
    order = torch.tensor([2, 0, 1])
    turned_batch = {name: value if name == "characters" else value[order] for name, value in batch.items()}
    one, two = (encoder(each).layers[-1] for each in (batch, turned_batch))
    difference = (one[order] - two)[turned_batch["mask"]].abs().max()
    yield equal("the order in a batch does not matter", max(worst[1], float(difference)))


def masked(batches: list[Batch], steps: Steps, maker: MaskedPairs) -> Iterator[Check]:
    """Masks and pairs as the paper has them (Devlin et al. 2018, 3.1 and A.1)."""
    tokenizer = steps.tokenizer
    original = [_unmasked(batch) for batch in batches]
    ids = np.concatenate([batch["input_ids"].flatten()[batch["positions"]] for batch in batches])
    labels = np.concatenate([batch["labels"] for batch in batches])
    wanted = sum(float((batch["mask"].sum(1) * maker.mask_rate).round().clamp(min=1).sum()) for batch in batches)
    rows = sum(len(batch["mask"]) for batch in batches)
    short = wanted - len(labels)  # whole words may not fill a row's share to the last piece
    allowed = rows if maker.whole_word else 0
    detail = f"{len(labels):,} of {wanted:,.0f} wanted ({maker.mask_rate:.0%} of each row)"
    yield Check("masked positions", 0 <= short <= allowed, detail)
    v = len(tokenizer.ordinary_ids)
    yield share("replaced by [MASK]", (ids == tokenizer.id("mask")).sum(), len(ids), 0.8)
    yield share("left as they were", (ids == labels).sum(), len(ids), 0.1 + 0.1 / v)
    changed = ((ids != labels) & (ids != tokenizer.id("mask"))).sum()
    yield share("replaced at random", changed, len(ids), 0.1 * (1 - 1 / v))
    special = sum(
        int(np.isin(text.flatten()[b["positions"]], tokenizer.special_ids).sum())
        for text, b in zip(original, batches, strict=True)
    )
    yield none("special or padding tokens are masked", special, "of them")
    if maker.whole_word:
        broken = sum(_broken_words(text, batch, tokenizer) for text, batch in zip(original, batches, strict=True))
        yield none("words are masked in part", broken, "words")
    alone = replace(maker, next_sentence="off")  # the same texts twice: pairs would draw other partners
    windows = alone.windows(steps.store, tokenizer, steps.length, 0)
    first, second = (
        alone.make(windows, np.arange(min(8, len(windows))), tokenizer, seed=0, rng=np.random.default_rng((0, step)))
        for step in (0, steps.steps)
    )
    same = torch.equal(first["positions"], second["positions"])
    yield Check("two passes mask differently", not same, "the same positions" if same else "other positions")
    if maker.next_sentence == "nsp":
        yield from pairs(batches, steps)


def _unmasked(batch: Batch) -> Tensor:
    flat = batch["input_ids"].flatten().clone()
    flat[batch["positions"]] = batch["labels"]
    return flat.view(batch["input_ids"].shape)


def _broken_words(original: Tensor, batch: Batch, tokenizer: Tokenizer) -> int:
    """Word pieces of one word of which some are masked and some are not."""
    flat = original.flatten().numpy()
    chosen = np.zeros(flat.size, dtype=bool)
    chosen[batch["positions"]] = True
    goes_on = np.flatnonzero(tokenizer.continues_word[flat])
    goes_on = goes_on[~np.isin(flat[goes_on - 1], tokenizer.special_ids)]  # a text may begin inside a word
    return int((chosen[goes_on] != chosen[goes_on - 1]).sum())


def pairs(batches: list[Batch], steps: Steps) -> Iterator[Check]:
    labels = torch.cat([batch["pair_labels"] for batch in batches])
    yield share("random next sentences", int(labels.sum()), len(labels), 0.5)
    made: list[Pair] = []
    for phase in (0, steps.windows.length - 8):  # the cuts of the first epoch, and of a later one
        windows = SentenceWindows(steps.windows.store, steps.windows.length, phase)
        rows = np.arange(min(pair_count(windows), 4000))
        made += sentence_pairs(windows, rows, limit=windows.length, seed=0, rng=np.random.default_rng(0))
    inside = sum(pair.label == 1 and pair.documents[0] == pair.documents[1] for pair in made)
    yield none("random sentences come from the same document", inside, f"of {sum(p.label for p in made):,}")
    most = 0.53 + 4 * 0.5 / math.sqrt(max(1, len(made) // 2))  # four standard errors over a little
    for what, sign in SIGNS.items():
        told = told_by(sign, made)
        detail = f"right in {told:.1%} of rows, at most {most:.1%}"
        yield Check(f"{what} does not tell random sentences", told < most, detail)


SIGNS: dict[str, Callable[[Pair], Any]] = {  # by which a model must not know a random pair
    "the first token of the second text": lambda pair: pair.b[:1].tolist(),
    "the last token of the second text": lambda pair: pair.b[-1:].tolist(),
    "the length of both texts": lambda pair: [(len(pair.a) + len(pair.b)) // 8, len(pair.b) // 16],
}


def told_by(sign: Callable[[Pair], Any], made: list[Pair]) -> float:
    """How often the label of a pair is guessed by a sign: learned from half of the pairs, tried on the others."""
    made = random.Random(0).sample(made, len(made))  # the places of a triple are each of their own kind
    known: dict[str, Counter[int]] = {}
    for pair in made[::2]:
        known.setdefault(str(sign(pair)), Counter())[pair.label] += 1
    right = []
    for pair in made[1::2]:
        seen = known.get(str(sign(pair)))
        right.append(float(seen.most_common(1)[0][0] == pair.label) if seen else 0.5)
    return sum(right) / max(1, len(right))


def shifted(batches: list[Batch], inputs: str, labels: str, shift: int) -> int:
    """How many labels are not the input `shift` places on."""
    wrong = 0
    for batch in batches:
        ids, asked = batch[inputs], batch[labels]
        here, there = (asked[:, :-1], ids[:, 1:]) if shift > 0 else (asked[:, 1:], ids[:, :-1])
        wrong += int(((here != there) & (here >= 0)).sum())
    return wrong


def no_leak(what: str, encoder: Gpt | Elmo, batch: Batch, part: slice, *, ahead: bool) -> Iterator[Check]:
    """Changes the tokens on one side, and follows the gradient: the outputs on the other side do not move.

    Args:
        part: which of the features of the top layer are looked at.
        ahead: whether it is the later tokens that must not be seen.
    """
    field = "words" if isinstance(encoder, Elmo) else "input_ids"
    few = {name: value if name == "characters" else value[:4] for name, value in batch.items() if value.dim() > 0}
    middle = few[field].shape[1] // 2
    hidden, others = (slice(middle, None), slice(0, middle)) if ahead else (slice(0, middle), slice(middle, None))
    changed = few[field].clone()
    changed[:, hidden] = changed[:, hidden].flip(1).roll(1, 0)
    with torch.no_grad():
        difference = (top_layer(encoder, few) - top_layer(encoder, {**few, field: changed}))[..., part].abs()
    moved, own = float(difference[:, others].max()), float(difference[:, hidden].max())
    detail = f"moved by {moved:.2g}, their own outputs by {own:.2g}"
    yield Check(f"changing {what} moves no other output", moved == 0 and own > 0, detail)

    seen: list[Tensor] = []
    embed = encoder.embed
    encoder.embed = lambda batch: seen.append(embed(batch).detach().requires_grad_()) or seen[-1]  # type: ignore
    try:
        top_layer(encoder, few)[:, others, part].square().sum().backward()
    finally:
        del encoder.embed
    gradient = seen[0].grad
    assert gradient is not None
    leaked, rest = float(gradient[:, hidden].abs().max()), float(gradient[:, others].abs().max())
    detail = f"largest {leaked:.2g}, elsewhere {rest:.2g}"
    yield Check(f"no gradient reaches {what}", leaked == 0 and rest > 0, detail)
    encoder.zero_grad()


def top_layer(encoder: Encoder, batch: Batch) -> Tensor:
    if isinstance(encoder, Elmo):
        encoder.reset()
    return encoder(batch).layers[-1]


def cached(encoder: Gpt, batch: Batch) -> Check:
    """Token by token with the cache of keys and values, and all at once."""
    ids = batch["input_ids"][:2, :24]
    mask = torch.ones_like(ids, dtype=torch.bool)
    past = [KeyValues() for _ in encoder.blocks]
    parts = [encoder({"input_ids": ids[:, [t]], "mask": mask[:, [t]]}, past).layers[-1] for t in range(ids.shape[1])]
    whole = encoder({"input_ids": ids, "mask": mask}).layers[-1]
    return equal("the cache of generation changes nothing", float((torch.cat(parts, 1) - whole).abs().max()))


def packed(encoder: Gpt, steps: Steps) -> Check:
    """Documents packed into blocks with `packing: document`, and each in a row of its own."""
    maker, worst, count = CausalBlocks(packing="document"), 0.0, 0
    blocks: PackedBlocks = steps.windows
    rows = np.unique((blocks.starts[1:-1][:16] - blocks.offset) // blocks.length)  # blocks that hold a boundary
    rows = rows[(rows >= 0) & (rows < steps.rows)]
    if not len(rows):
        return Check("packed documents equal one per row", True, "the corpus has no boundary to look at")
    batch = maker.make(steps.windows, rows, steps.tokenizer, seed=0, rng=np.random.default_rng(0))
    hidden = encoder(batch).layers[-1]
    ends = batch["input_ids"] == steps.tokenizer.id("eos")
    for row in range(len(rows)):
        bounds = [0, *[int(i) for i in ends[row].nonzero() if i > 0], ends.shape[1]]
        for low, high in itertools.pairwise(bounds):
            ids = batch["input_ids"][row : row + 1, low:high]
            alone = encoder({"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}).layers[-1][0]
            here = hidden[row, low:high][batch["mask"][row, low:high]]
            worst = max(worst, float((here - alone[: len(here)]).abs().max())) if len(here) else worst
            count += 1
    check = equal("packed documents equal one per row", worst)
    return Check(check.name, check.passed, f"{check.detail}, {count} documents in {len(rows)} rows")
