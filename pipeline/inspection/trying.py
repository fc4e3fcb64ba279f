"""`make try`: what an encoder knows, to look at: text that goes on, masks filled, neighbours of a word."""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor

from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.bert import Bert
from pipeline.models.elmo import Elmo
from pipeline.models.gpt import Gpt
from pipeline.prompting.scoring import at_masks
from pipeline.tokenization.spelled_words import split_words

SHOWN = 5  # candidates of a mask, neighbours of a word
POOL = 2_000  # sentences whose words are compared


def show(encoder: Encoder, options: argparse.Namespace) -> str:
    """What GPT goes on with after PROMPT, or what BERT puts at its masks; with --score what each token costs.

    Raises:
        UserError: no prompt, an empty one, or one that the encoder can do nothing with.
    """
    if options.word is not None and not isinstance(encoder, Elmo):
        raise UserError('WORD= is for elmo; set PROMPT="..." for the others.')
    if isinstance(encoder, Elmo) and not options.score:
        raise UserError(
            "ELMo neither goes on with a prompt nor fills masks; set WORD= to see a word's neighbours, or "
            "ARGS=--score to see what each word of PROMPT costs."
        )
    if options.prompt is None or not options.prompt.strip():
        raise UserError('Set PROMPT="..." to a text that is not empty.')
    try:
        options.prompt.encode()
    except UnicodeEncodeError:  # a shell hands on any bytes
        raise UserError(f"PROMPT is not UTF-8 text: {options.prompt!a}") from None
    if options.score:
        return token_nats(encoder, options.prompt)
    if isinstance(encoder, Bert):
        return fill(encoder, options.prompt)
    assert isinstance(encoder, Gpt)
    return go_on(encoder, options)


@torch.no_grad()
def token_nats(encoder: Encoder, text: str) -> str:
    """Log-probability of each token of a text: GPT given those before, BERT given all others, ELMo both ways."""
    [ids] = encoder.tokenize([text])
    batch = encoder.collate([ids])
    count, ids = len(ids), ids[: int(batch["mask"].sum()) - 2]
    if isinstance(encoder, Bert):  # a copy for each token, with a mask in its place
        mask = encoder.tokenizer.id("mask")
        copies = [[*ids[:place], mask, *ids[place + 1 :]] for place in range(len(ids))]
        found = sorted(at_masks(encoder, copies, list(enumerate(ids, start=1))))
        heads, columns = ["nats, given all others"], [[nats for _, nats, _ in found]]
    else:
        scores = encoder.log_probs(batch)[0, 1 : len(ids) + 1]
        heads = ["nats, given those before"] + (["given those after"] if isinstance(encoder, Elmo) else [])
        columns = [column.tolist() for column in (scores.T if isinstance(encoder, Elmo) else scores[None])]
    names = [token.decode(errors="replace") if isinstance(token, bytes) else _shown(encoder, token) for token in ids]
    width = max(5, *map(len, names)) if names else 5
    lines = [f"{'token':<{width}}  " + "  ".join(heads)]
    for name, *values in zip(names, *columns, strict=True):
        lines.append(f"{name:<{width}}  " + "  ".join(f"{v:>{len(h)}.3f}" for v, h in zip(values, heads, strict=True)))
    sums = "  ".join(f"{sum(column):>{len(head)}.3f}" for column, head in zip(columns, heads, strict=True))
    note = (
        [f"(The text has {count} tokens; only the first {len(ids)} fit and are counted.)"] if len(ids) < count else []
    )
    return "\n".join([*lines, f"{'sum':<{width}}  {sums}", *note])


def _shown(encoder: Encoder, token: int) -> str:
    """A token as text, with the space that a GPT's may begin with; a BERT's with its ## for the rest of a word."""
    if isinstance(encoder, Gpt):
        return encoder.tokenizer.decode([token])
    return str(encoder.tokenizer.backend.id_to_token(token))


def go_on(gpt: Gpt, options: argparse.Namespace) -> str:
    for name, low in (("tokens", 1), ("temperature", 0), ("top_k", 0)):
        if not low <= (value := getattr(options, name)) < math.inf:  # nan is neither
            raise UserError(f"{name.replace('_', '-')} must be a number of at least {low}, not {value}.")
    if not 0 < options.top_p <= 1:
        raise UserError(f"top-p is {options.top_p}; it is a share, above 0 and at most 1.")
    [ids] = gpt.tokenizer.encode_batch([options.prompt])
    ids = [gpt.tokenizer.id("bos"), *ids]
    room = gpt.max_length - min(options.tokens, gpt.max_length // 2)
    notes = []
    if len(ids) > room:
        notes.append(f"(The prompt has {len(ids)} tokens; the first {len(ids) - room} are cut, to leave room.)")
        ids = ids[-room:]
    settings = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    new = gpt.generate(ids, tokens=options.tokens, seed=options.seed, **settings)
    if len(new) == gpt.max_length - len(ids) < options.tokens:
        notes.append(f"(Stopped at the last of {gpt.max_length} positions.)")
    return "\n".join([options.prompt + gpt.tokenizer.decode(new), *notes])


@torch.no_grad()
def fill(bert: Bert, prompt: str) -> str:
    mask = bert.tokenizer.special["mask"]
    if mask not in prompt:
        raise UserError(f'PROMPT has no {mask}; write it where a word is wanted, as in "The {mask} sat on the mat."')
    out = bert.encode([prompt], logits=True)
    places = (out.input_ids[0] == bert.tokenizer.id("mask")).nonzero()[:, 0].tolist()
    if len(places) < prompt.count(mask):
        raise UserError(f"The prompt is longer than the encoder's {bert.max_length} positions, and a mask is cut off.")
    assert out.logits is not None
    lines = []
    for number, place in enumerate(places, 1):
        best = out.logits[0, place].float().softmax(-1).topk(SHOWN)
        words = [bert.tokenizer.backend.id_to_token(index) for index in best.indices.tolist()]
        found = "  ".join(f"{word} {p:.3f}" for word, p in zip(words, best.values.tolist(), strict=True))
        lines.append(f"{mask} {number}: {found}")
    return "\n".join([prompt, *lines])


def neighbours(encoder: Elmo, word: str, store: TokenStore) -> str:
    """The nearest other words, layer by layer, to a word in two of its contexts in the corpus (validation part).

    Raises:
        UserError: a word that the corpus does not have twice.
    """
    sentences, spelled = _sentences(store), word.encode()
    sentences = [sentence[: encoder.max_length - 2] for sentence in sentences]
    having = [number for number, sentence in enumerate(sentences) if spelled in sentence]
    if len(having) < 2:
        raise UserError(f"'{word}' stands in {len(having)} sentences of the corpus's validation part; two are needed.")
    pool = sorted({*range(min(POOL, len(sentences))), having[0], having[-1]})
    texts = [[w.decode(errors="replace") for w in sentences[number]] for number in pool]
    out = encoder.encode(texts)  # type: ignore[arg-type]
    assert out.words is not None
    place = out.words >= 0
    owner = torch.arange(len(texts))[:, None].expand_as(place)[place].tolist()
    names = out.words[place].tolist()
    lines = []
    for context in (having[0], having[-1]):
        row = pool.index(context)
        asked = next(i for i, (r, w) in enumerate(zip(owner, names, strict=True)) if r == row and texts[r][w] == word)
        lines += ["", _in_context(texts[row], names[asked])]
        for number, layer in enumerate(out.layers):
            found = _nearest(layer[place], asked, [texts[r][w] for r, w in zip(owner, names, strict=True)])
            lines.append(f"  layer {number}")
            lines += [f"    {score:.3f}  {_in_context(texts[owner[i]], names[i])}" for i, score in found]
    return "\n".join(lines[1:])


def _sentences(store: TokenStore) -> list[list[bytes]]:
    bounds = store.sentences
    return [split_words(store.tokens[bounds[i] : bounds[i + 1]]) for i in range(min(len(bounds) - 1, 20 * POOL))]


def _nearest(vectors: Tensor, asked: int, words: list[str]) -> list[tuple[int, float]]:
    """Indices and cosines of the nearest vectors of other words, at most two of each."""
    scores = torch.nn.functional.cosine_similarity(vectors, vectors[asked][None])
    result: list[tuple[int, float]] = []
    taken: dict[str, int] = {}
    for index in scores.argsort(descending=True).tolist():
        if words[index] == words[asked] or taken.get(words[index], 0) >= 2:  # else one word fills the list
            continue
        taken[words[index]] = taken.get(words[index], 0) + 1
        result.append((index, float(scores[index])))
        if len(result) == SHOWN:
            break
    return result


def _in_context(sentence: list[str], place: int) -> str:
    before, after = sentence[max(0, place - 6) : place], sentence[place + 1 : place + 7]
    return " ".join([*before, f"[{sentence[place]}]", *after])
