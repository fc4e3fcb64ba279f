"""Sanity checks of masks, labels, padding and causality on real batches.

Most faults of pretraining are silent: a mask on padding, a shifted label, a look at the future. The loss still
falls. Each check here is one that such a fault does not pass. The leak checks follow from what a model declares of its
outputs (`Encoder.context`), the checks of masks and labels come from its objective.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch

from pipeline.data.token_store import TokenStore
from pipeline.inspection.decoder_checks import decoder_checks
from pipeline.models.base import Encoder
from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.objectives.base import Objective
from pipeline.objectives.batch import Batch
from pipeline.objectives.checks import Check, equal, watched_embedding
from pipeline.training.corpus_data import CorpusData

BATCHES = 40  # batches that shares are counted on
ROWS, STEPWISE_ROWS, STEPWISE_LENGTH = 4, 2, 24  # of a batch, for leaks and for reading token by token
HIDDEN_SIDE = {"left": "later", "right": "earlier"}  # what an output must not depend on, by what it sees


def audit(encoder: Encoder, data: CorpusData, *, uniform: float) -> Iterator[Check]:
    """All checks of an encoder and its objective.

    Args:
        encoder: an untrained one.
        uniform: nats of a uniform guess.
    """
    steps, objective = data.batches(data.train, batch_size=data.batch_size, seed=data.seed), data.objective
    batches = [steps(step) for step in range(min(BATCHES, steps.steps))]
    encoder.eval()
    longest = max(batch.inputs[encoder.token_input].shape[1] for batch in batches)
    yield Check("rows have data.length positions at most", longest <= data.length, f"{longest} of {data.length}")
    with torch.no_grad():
        yield fresh_loss(encoder, objective, batches[0], uniform)
        give_effect(encoder)
        yield from invariance(encoder)
    yield from objective.checks(encoder, steps, batches)
    yield from leaks(encoder, batches[0])
    with torch.no_grad():
        yield from stepwise(encoder, batches[0])
        if encoder.learning == "counting":
            yield from distributions(encoder, data.valid, batches[0])
    if encoder.scoring == "seq2seq":
        yield from decoder_checks(cast(EncoderDecoder, encoder), batches[0].inputs)


def give_effect(encoder: Encoder) -> None:
    """Gives random values to matrices that start at zero: blocks without effect would hide every leak."""
    for parameter in encoder.parameters():
        if parameter.dim() == 2 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)


def fresh_loss(encoder: Encoder, objective: Objective, batch: Batch, uniform: float) -> Check:
    """An untrained model guesses evenly: another loss means that labels or logits are wrong."""
    expected = objective.fresh_loss(encoder, batch, uniform)
    loss = objective(encoder, batch)[objective.main]
    mean = float(loss.sum / loss.count)
    near = abs(mean - expected) < min(0.4, 0.25 * expected)  # nats
    return Check("a fresh model's loss", near, f"{mean:.3f}, guessing evenly {expected:.3f}")


def invariance(encoder: Encoder) -> Iterator[Check]:
    """The vectors of a text depend neither on the other texts of the batch, nor on its padding, nor on its row."""
    texts = ["one two three", "a", "this text is a good deal longer than the others , so that they are padded"]
    together, reversed_order = encoder.encode(texts), encoder.encode(texts[::-1])
    worst = [0.0, 0.0]
    for row, text in enumerate(texts):
        alone = encoder.encode([text])
        length = int(alone.mask.sum())
        for layer in range(len(alone.layers)):
            here = together.layers[layer][row, :length]
            worst[0] = max(worst[0], float((here - alone.layers[layer][0]).abs().max()))
            worst[1] = max(worst[1], float((here - reversed_order.layers[layer][-1 - row, :length]).abs().max()))
    yield equal("padding does not matter", worst[0])
    inputs = encoder.collate(encoder.tokenize(texts))
    order = torch.tensor([2, 0, 1])
    reordered = {name: value if name in encoder.shared_inputs else value[order] for name, value in inputs.items()}
    one, two = (encoder(each).layers[-1] for each in (inputs, reordered))
    difference = (one[order] - two)[reordered["mask"]].abs().max()
    yield equal("the order in a batch does not matter", max(worst[1], float(difference)))


def leaks(encoder: Encoder, batch: Batch) -> Iterator[Check]:
    """Each part of the output depends on what the model declares, by value and by gradient."""
    context = getattr(encoder, "context", ())
    if not context or any(side not in (*HIDDEN_SIDE, "full") for side in context):
        detail = "context must name left, right or full for each part of the output, so that leaks can be looked for"
        yield Check("the model declares what its outputs depend on", False, detail)
        return
    size, length = encoder.size // len(context), batch.inputs[encoder.token_input].shape[1]
    unit = "words" if encoder.tokenizer.spells else "tokens"
    first, second = slice(0, length // 2), slice(length // 2, None)
    for number, side in enumerate(context):
        if side != "full" and encoder.reach != 0:
            part = slice(number * size, (number + 1) * size)
            hidden, others = (second, first) if side == "left" else (first, second)
            yield from no_leak(f"{HIDDEN_SIDE[side]} {unit}", encoder, batch, part, hidden=hidden, others=others)
    if (reach := encoder.reach) is not None and 0 < reach < length:
        begin = max(reach, length // 2)
        far, others = slice(0, begin - reach + 1), slice(begin, None)
        yield from no_leak(f"{unit} beyond the last {reach}", encoder, batch, slice(None), hidden=far, others=others)


def no_leak(what: str, encoder: Encoder, batch: Batch, part: slice, *, hidden: slice, others: slice) -> Iterator[Check]:
    """Changes tokens, and follows the gradient: the outputs that must not depend on them do not move.

    Args:
        what: the tokens that are changed, in words.
        part: the features of the top layer that are looked at.
        hidden: positions of the tokens that are changed; their own outputs move.
        others: positions of the outputs that must not see them.
    """
    few = batch.select(slice(0, ROWS))
    inputs = few.inputs | few.shared
    field = encoder.token_input
    changed = inputs[field].clone()
    changed[:, hidden] = changed[:, hidden].flip(1).roll(1, 0)
    with torch.no_grad():
        both = [encoder(each).layers[-1] for each in (inputs, {**inputs, field: changed})]
    difference = (both[0] - both[1])[..., part].abs()
    moved, own = float(difference[:, others].max()), float(difference[:, hidden].max())
    detail = f"moved by {moved:.2g}, their own outputs by {own:.2g}"
    yield Check(f"changing {what} moves no other output", moved == 0 and own > 0, detail)
    if encoder.learning == "counting":  # it has no gradient
        return
    with watched_embedding(encoder) as seen:
        encoder(inputs).layers[-1][:, others, part].square().sum().backward()
    gradient = seen[0].grad if seen else None
    if gradient is None:
        yield Check(f"no gradient reaches {what}", False, "the model does not read its tokens by `embed`")
        return
    leaked, rest = float(gradient[:, hidden].abs().max()), float(gradient[:, others].abs().max())
    detail = f"largest {leaked:.2g}, elsewhere {rest:.2g}"
    yield Check(f"no gradient reaches {what}", leaked == 0 and rest > 0, detail)
    encoder.zero_grad()


def distributions(encoder: Encoder, store: TokenStore, batch: Batch) -> Iterator[Check]:
    """Of what counts: each distribution sums to 1, single tokens have what it gives them, and any text can end.

    Args:
        store: a text to count; `batch` is of another one, so that some histories are unseen.
    """
    encoder.fit(store.tokens, store.document_starts)
    few = batch.select(slice(0, ROWS))
    p = encoder.logits(encoder(few.inputs).layers[-1]).double().exp()
    yield equal("each distribution sums to 1", float((p.sum(-1) - 1).abs().max()))
    looked_up = encoder.log_probs(few.inputs)[:, 1:].exp()
    own = p[:, :-1].gather(-1, few.inputs["input_ids"][:, 1:, None])[..., 0]
    yield equal("a token has the probability that its distribution gives it", float((own - looked_up).abs().max()))
    least = float(p[..., encoder.tokenizer.id("eos")].min())
    yield Check("a text can end anywhere", least > 0, f"least probability {least:.2g}")


def stepwise(encoder: Encoder, batch: Batch) -> Iterator[Check]:
    """Token by token with the state of a causal model, compared with all tokens in one pass."""
    if encoder.scoring != "causal":
        return
    ids = batch.inputs["input_ids"][:STEPWISE_ROWS, :STEPWISE_LENGTH]
    mask, parts, state = torch.ones_like(ids, dtype=torch.bool), [], encoder.new_state()
    for t in range(ids.shape[1]):
        encoded = encoder({"input_ids": ids[:, [t]], "mask": mask[:, [t]]}, state)
        if (state := encoded.state) is None:
            return
        parts.append(encoded.layers[-1])
    whole = encoder({"input_ids": ids, "mask": mask}).layers[-1]
    yield equal("the state of generation changes nothing", float((torch.cat(parts, 1) - whole).abs().max()))
