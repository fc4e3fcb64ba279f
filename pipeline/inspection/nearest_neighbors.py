"""The words of a corpus whose vectors are nearest to a word's, in two of its contexts."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.models.base import Encoder

SHOWN = 5  # neighbors of a word
POOL = 2_000  # sentences whose words are compared
SEARCHED = 20 * POOL  # sentences in which the word is looked for
AROUND = 6  # words of context to either side
REPEATS = 2  # of one word in a list, or it would fill it


def nearest_neighbors(encoder: Encoder, word: str, store: TokenStore) -> str:
    """The nearest other words, layer by layer, to a word in two of its contexts in the corpus (validation part).

    Raises:
        UserError: a word that the corpus does not have twice.
    """
    sentences = _sentences(encoder, store)
    having = [number for number, sentence in enumerate(sentences) if word in sentence]
    if len(having) < 2:
        raise UserError(
            f"'{word}' is in {len(having)} sentences of the corpus's validation part; at least two are needed."
        )
    pool = sorted({*range(min(POOL, len(sentences))), having[0], having[-1]})
    texts = [sentences[number] for number in pool]
    out = encoder.encode(texts)
    assert out.words is not None
    place = out.words >= 0
    owner = torch.arange(len(texts))[:, None].expand_as(place)[place].tolist()
    places = list(zip(owner, out.words[place].tolist(), strict=True))  # of each vector: its text, and the word there
    words = [texts[text][index] for text, index in places]
    lines = []
    for context in (having[0], having[-1]):
        row = pool.index(context)
        chosen = next(i for i, (text, _) in enumerate(places) if text == row and words[i] == word)
        lines += ["", _in_context(texts[row], places[chosen][1])]
        for number, layer in enumerate(out.layers):
            lines.append(f"  layer {number}")
            for i, cosine in nearest(layer[place], chosen, words):
                text, index = places[i]
                lines.append(f"    {cosine:.3f}  {_in_context(texts[text], index)}")
    return "\n".join(lines[1:])


def _sentences(encoder: Encoder, store: TokenStore) -> list[list[str]]:
    """Sentences in words, as long as the encoder reads."""
    bounds, room = store.sentences, encoder.max_length - encoder.special.count()
    spelled = [store.tokens[bounds[i] : bounds[i + 1]].tolist() for i in range(min(len(bounds) - 1, SEARCHED))]
    return [[encoder.unit_text(word) for word in encoder.units(tokens)[:room]] for tokens in spelled]


def nearest(vectors: Tensor, chosen: int, words: list[str]) -> list[tuple[int, float]]:
    """Indices and cosines of the nearest vectors of other words to a chosen one of (N, D), words (N,)."""
    scores = torch.nn.functional.cosine_similarity(vectors, vectors[chosen][None])
    result: list[tuple[int, float]] = []
    taken: dict[str, int] = {}
    for index in scores.argsort(descending=True).tolist():
        if words[index] == words[chosen] or taken.get(words[index], 0) >= REPEATS:
            continue
        taken[words[index]] = taken.get(words[index], 0) + 1
        result.append((index, float(scores[index])))
        if len(result) == SHOWN:
            break
    return result


def _in_context(sentence: list[str], place: int) -> str:
    before, after = sentence[max(0, place - AROUND) : place], sentence[place + 1 : place + 1 + AROUND]
    return " ".join([*before, f"[{sentence[place]}]", *after])
