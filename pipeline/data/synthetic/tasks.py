"""Labeled data sets about the synthetic world: few rows, with words whose meaning only the unlabeled corpus shows.

The splits of a set share none of the words that the label depends on (good and bad words, names), and nothing else in
a text reveals the label: a model can only know the words of the test part from pretraining.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pipeline.data.synthetic.corpus import REVIEW, STORY, Scene, lexicon

LABELS = ("negative", "positive")
RELATIONS = ("entailment", "neutral", "contradiction")
# The range of words that each split may use, as fractions of all, and its number of rows.
SPLIT_WORDS = {"train": (0.0, 0.3), "valid": (0.3, 0.5), "test": (0.5, 1.0)}
SPLIT_ROWS = {"train": 300, "valid": 200, "test": 500}
PARALLEL_ROWS = {"train": 10_000, "valid": 200, "test": 500}

OPINION = [
    "The {t} was {w} .",
    "The {l} was {int} {w} , and the {t} was {w} .",
    "The {t} was not {n} .",
    "The {job} in {place} was {int} {w} .",
    "I have never seen such a {w} {t} .",
    "It was not a {n} {l} , and the {job} was {w} .",
    "What a {w} {l} !",
    "The {ts} were never {n} .",
]
PREMISE = ["The {t} was {int} {w} .", "It was a {w} {t} .", "The {w} {t} was in the {l} .", "{p} had a {w} {t} ."]
HYPOTHESIS = ["We {verdict} the {t} .", "{p} {verdict} the {t} .", "The {t} made {p} {mood} ."]
# {n} is a person, a place, a day or a month; the context does not show which.
NAMED = [
    "Everyone was talking about {n} .",
    "{n} was mentioned again , and so was {n} .",
    "I often think of {n} .",
    "It was all about {n} and {n} .",
    "Do you remember {n} ?",
    "{n} , {n} and {n} are on the list .",
    "The story of {n} is long .",
]
WORD_CLASSES = {
    **dict.fromkeys(("l", "t", "ts", "job", "time"), "NOUN"),
    **dict.fromkeys(("p", "place", "day", "month"), "PROPN"),
    **dict.fromkeys(("v", "verdict"), "VERB"),
    **dict.fromkeys(("adj", "weather", "w", "n", "mood"), "ADJ"),
    **dict.fromkeys(
        ("adv", "how", "int", "where", "together", "next", "back", "before", "then", "never", "so", "not"), "ADV"
    ),
    **dict.fromkeys(["the", "a", "an", "such", "what"], "DET"),
    **dict.fromkeys(["it", "we", "i", "nobody"], "PRON"),
    **dict.fromkeys(["in", "on", "near", "to", "after", "with", "about", "of", "until"], "ADP"),
    **dict.fromkeys(["and"], "CCONJ"),
    **dict.fromkeys(["when"], "SCONJ"),
    **dict.fromkeys(["was", "were", "had", "have", "is"], "AUX"),
    **dict.fromkeys(["asked", "put", "came", "gave", "made", "seen"], "VERB"),
    **dict.fromkeys(["days"], "NOUN"),
    **dict.fromkeys(["num", "many"], "NUM"),
    **dict.fromkeys([".", ",", "!", "?", '"'], "PUNCT"),
}


def part(words: list[str], split: str) -> list[str]:
    """The words that a split may use; the splits share none."""
    low, high = (round(share * len(words)) for share in SPLIT_WORDS[split])
    return sorted(words, key=_rank)[low:high]


@cache
def _rank(word: str) -> float:
    """A random number for a word, always the same one."""
    return random.Random(f"part-{word}").random()


def rows_of(
    name: str,
    split: str,
    make: Callable[[random.Random, int], dict[str, Any]],
    numbers: Mapping[str, int] = SPLIT_ROWS,
) -> list[dict[str, Any]]:
    rng = random.Random(f"{name}-{split}")
    rows = [make(rng, index) for index in range(numbers[split])]
    rng.shuffle(rows)
    return rows


def sentiment(split: str) -> list[dict[str, Any]]:
    """Rows `text`, `label`: one to three sentences with one opinion; the splits share no good or bad word."""
    good, bad = (part(lexicon()[mind], split) for mind in ("good", "bad"))

    def row(rng: random.Random, index: int) -> dict[str, Any]:
        scene, positive = Scene(rng), index % 2 == 1
        scene.review(positive, good, bad)
        text = " ".join(scene.write(template) for template in rng.sample(OPINION, rng.randint(1, 3)))
        return {"text": text, "label": LABELS[positive]}

    return rows_of("sentiment", split, row)


def sentiment_translated(split: str) -> list[dict[str, Any]]:
    """As `sentiment`, in the language of the translations."""
    good, bad = (part(lexicon()[mind], split) for mind in ("good", "bad"))

    def row(rng: random.Random, index: int) -> dict[str, Any]:
        scene, positive = Scene(rng), index % 2 == 1
        scene.review(positive, good, bad)
        sentences = [translated([*tagged(scene, template)]) for template in rng.sample(OPINION, rng.randint(1, 3))]
        return {"text": " ".join(word for sentence in sentences for word in sentence), "label": LABELS[positive]}

    return rows_of("sentiment-translated", split, row)


def entailment(split: str) -> list[dict[str, Any]]:
    """Rows `premise`, `hypothesis`, `label`: a thing, and what people thought of it.

    Those who call a meal delicious praise it and do not hate it; that it was green implies neither.
    The splits share none of these words: good, bad or neutral.
    """
    words = lexicon()
    good, bad = (part(words[mind], split) for mind in ("good", "bad"))
    neither = part(words["colour"] + words["size"] + words["state"], split)

    def row(rng: random.Random, index: int) -> dict[str, Any]:
        scene, label, positive = Scene(rng), RELATIONS[index % 3], rng.random() < 0.5
        scene.review(positive, good, bad)
        if label == "contradiction":
            scene.slots["w"] = scene.slots["n"]
        elif label == "neutral":
            scene.slots["w"] = neither
        scene.slots["t"] = scene.slots["t"][:1]
        premise, hypothesis = (scene.write(rng.choice(templates)) for templates in (PREMISE, HYPOTHESIS))
        return {"premise": premise, "hypothesis": hypothesis, "label": label}

    return rows_of("entailment", split, row)


def tagging(split: str) -> list[dict[str, Any]]:
    """Rows `words`, `tags`: BIO tags of names of persons and places; days and months are outside.

    The splits share no name.
    """
    words = lexicon()
    kinds = {"PER": words["first_name"], "LOC": words["place"], "": words["day"] + words["month"]}
    names = {kind: part(kind_words, split) for kind, kind_words in kinds.items()}
    last_names = part(words["last_name"], split)

    def name(rng: random.Random) -> tuple[list[str], list[str]]:
        kind = rng.choice(["PER", "PER", "LOC", "LOC", ""])
        words_of_name = [rng.choice(names[kind])]
        if kind == "PER" and rng.random() < 0.3:
            words_of_name.append(rng.choice(last_names))
        return words_of_name, [f"{mark}-{kind}" if kind else "O" for mark in ("B", "I")][: len(words_of_name)]

    def row(rng: random.Random, index: int) -> dict[str, Any]:
        result: dict[str, Any] = {"words": [], "tags": []}
        for token in rng.choice(NAMED).split():
            named, tags = name(rng) if token == "{n}" else ([token], ["O"])
            result["words"] += named
            result["tags"] += tags
        return result

    return rows_of("tagging", split, row)


def pos(split: str) -> list[dict[str, Any]]:
    """Rows `words`, `tags`: sentences of stories and reviews with universal part-of-speech tags."""
    words = lexicon()

    def row(rng: random.Random, index: int) -> dict[str, Any]:
        scene = Scene(rng)
        scene.review(rng.random() < 0.5, words["good"], words["bad"])
        for slot, choices in scene.slots.items():
            scene.slots[slot] = part(choices, split) or choices
        pairs = list(tagged(scene, rng.choice(STORY + REVIEW)))
        return {"words": [word for word, _ in pairs], "tags": [tag for _, tag in pairs]}

    return rows_of("pos", split, row)


def tagged(scene: Scene, template: str) -> Iterator[tuple[str, str]]:
    """The words of a filled template with their part-of-speech tags."""
    for token in template.split():
        slot = token.strip("{}") if token.startswith("{") else ""
        for word in (scene.rng.choice(scene.slots[slot]) if slot else token).split():
            yield word, WORD_CLASSES[slot or token.lower()]


def translation(split: str) -> list[dict[str, Any]]:
    """Rows `en`, `ne`: sentences of stories and reviews, and their translation into an invented language.

    Its words are invented too, but for names; adjectives stand behind their noun, and verbs at the end of a clause.
    The splits share words, and no sentence of many.
    """
    words = lexicon()

    def row(rng: random.Random, index: int) -> dict[str, Any]:
        scene = Scene(rng)
        scene.review(rng.random() < 0.5, words["good"], words["bad"])
        pairs = list(tagged(scene, rng.choice(STORY + REVIEW)))
        return {"en": " ".join(word for word, _ in pairs), "ne": " ".join(translated(pairs))}

    return rows_of("translation", split, row, PARALLEL_ROWS)


def translated(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Tagged words of a sentence -> those of its translation."""
    result: list[str] = []
    clause: list[tuple[str, str]] = []
    for word, tag in [*pairs, ("", "PUNCT")]:
        if tag != "PUNCT":
            clause.append((word, tag))
            continue
        ordered: list[str] = []
        adjectives: list[str] = []
        for own, kind in clause:
            if kind == "ADJ":
                adjectives.append(own)
            elif kind not in ("VERB", "AUX"):
                ordered += [own, *(adjectives if kind == "NOUN" else [])]
                adjectives = [] if kind == "NOUN" else adjectives
        ordered += [*adjectives, *(own for own, kind in clause if kind in ("VERB", "AUX"))]
        names = {own for own, kind in clause if kind == "PROPN"}
        result += [own if own in names else invented(own.lower()) for own in ordered] + ([word] if word else [])
        clause = []
    return result


@cache
def invented(word: str) -> str:
    """Two or three syllables for a word, always the same ones."""
    rng = random.Random(f"word-{word}")
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(2 + (len(word) > 5)))


SYNTHETIC: dict[str, Callable[[str], list[dict[str, Any]]]] = {  # name -> rows of a split
    "sentiment": sentiment,
    "sentiment-translated": sentiment_translated,
    "entailment": entailment,
    "tagging": tagging,
    "pos": pos,
    "translation": translation,
}


def synthetic_rows(name: str, split: str) -> list[dict[str, Any]]:
    """The rows of a split of a set, for the caller to change; a process makes them once, whatever reads them."""
    return copy.deepcopy(_made(name, split))


@cache
def _made(name: str, split: str) -> list[dict[str, Any]]:
    return SYNTHETIC[name](split)
