"""The sample: a small synthetic world that writes English-like text, so that everything runs offline.

Deterministic: the same seed gives the same text. Stories stay on one topic, one place and the same people
and things; reviews are of one mind and use good or bad words, intensifiers and negation; facts say what a
thing is and has. `tasks.py` asks about the same world.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# The adverbs, verbs and moods of either mind.
MIND = (("badly", "blame", "sorry"), ("well", "praise", "glad"))

STORY = [
    "{p} {v} the {t} in the {l} .",
    "On {day} , {p} {v} a {adj} {t} and {v} the {t} .",
    "The {t} was {adj} , so {p} {v} it {adv} .",
    "{p} and {p} {adv} {v} the {adj} {t} together .",
    "In the {time} , the {l} in {place} was {weather} .",
    "The {job} asked {p} about the {t} .",
    '" Where is the {t} ? " asked {p} .',
    "{p} put the {t} next to the {adj} {t} .",
    "After {num} days , {p} came back to {place} with a {t} .",
    "{p} , the {job} , had {num} {ts} near the {l} .",
    "When it was {weather} , the {job} {v} the {ts} in the {l} .",
    "{p} gave the {adj} {t} to {p} .",
    "Nobody in {place} had {v} so many {ts} before .",
    "Then the {job} and {p} {v} the {ts} until {time} .",
]
OPENING = [
    "{p} worked as a {job} in a {l} in {place} .",
    "In {month} , {p} and {p} went to the {l} in {place} .",
    "The {l} in {place} belonged to {p} , a {job} .",
]
# {w} is a word that agrees with the reviewer's mind, {n} one that does not (used after "not"), {how} an adverb,
# {verdict} a verb and {mood} a word of that mind. As in real text, what shows the mind of a word is close to it:
# adjectives joined by "and" agree (Hatzivassiloglou & McKeown, 1997), and so do adverbs with what they modify.
REVIEW = [
    "The {t} was {how} {w} .",
    "The {t} was {w} and {w} .",
    "The {l} was {how} {w} , and {p} was {mood} .",
    "We {verdict} the {w} {t} .",
    "{p} {verdict} the {w} , {w} {t} .",
    "The {job} was {int} {w} and {w} .",
    "The {ts} were {how} {w} , so we were {mood} .",
    "The {w} {t} made {p} {mood} .",
    "The {t} was {w} , so {p} was {mood} .",
    "The {t} was not {n} , it was {how} {w} .",
    "It was not a {n} {l} , it was {w} and {w} .",
    "The {ts} in {place} were never {n} , and {p} {verdict} the {w} {job} .",
    "What a {w} , {w} {t} !",
    "I have never seen such a {how} {w} {l} .",
]
REVIEW_OPENING = ["On {day} , we visited the {l} in {place} .", "{p} and I went to the {l} in {place} ."]
FACT = [
    "A {x} is a {c} .",
    "The {x} is a {c} , and every {c} has {has} .",
    "Every {c} {can} .",
    "{p} saw a {x} , which is a {c} , near {place} .",
    "A {x} {does} , like a {y} .",
    "The {y} and the {x} have {has} .",
    "A {x} is not a {other} , it is a {c} .",
    "{p} has {num} {xs} and a {adj} {y} .",
]


@cache
def lexicon() -> dict[str, list[str]]:
    """Category -> words, as in `lexicon.txt`."""
    words: dict[str, list[str]] = {}
    for line in (Path(__file__).with_name("lexicon.txt")).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            category, _, entries = line.partition(":")
            entries = entries.strip()
            words[category] = entries.split("|") if category.startswith("trait") else entries.split()
    return words


def _names(prefix: str) -> list[str]:
    """The topics (`topic farm thing`: farm) or the classes (`class bird`: bird)."""
    return sorted({category.split()[1] for category in lexicon() if category.startswith(prefix)})


def plural(noun: str) -> str:
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


class Scene:
    """What one document is about; fills templates with words that belong to it."""

    def __init__(self, rng: random.Random) -> None:
        words = lexicon()
        topic = rng.choice(_names("topic"))
        self.rng = rng
        last_names = words["last_name"]
        people = [
            name if rng.random() < 0.6 else f"{name} {rng.choice(last_names)}"
            for name in rng.sample(words["first_name"], 3)
        ]
        things = rng.sample(words[f"topic {topic} thing"], 5)
        qualities = words["colour"] + words["size"] + words["state"]
        verbs = words[f"topic {topic} verb"]
        self.slots: dict[str, list[str]] = {
            "p": people,
            "l": rng.sample(words[f"topic {topic} place"], 1),
            "t": things,
            "ts": [plural(thing) for thing in things],
            "job": rng.sample(words[f"topic {topic} person"], 2),
            "v": rng.sample(verbs, 6),
            "place": [rng.choice(words["place"])],
            "adj": rng.sample(qualities, 5),
            "weather": rng.sample(words["weather"], 1),
            "adv": words["adverb"],
            "int": words["intensifier"],
            "day": words["day"],
            "month": words["month"],
            "time": words["time"],
            "num": words["number"],
        }

    def review(self, positive: bool, good: list[str], bad: list[str]) -> None:
        """Makes this a review of one mind, with these words."""
        words, kept = lexicon(), (good, bad) if positive else (bad, good)
        self.slots["w"], self.slots["n"] = kept
        for slot, category in zip(("how", "verdict", "mood"), MIND[positive], strict=True):
            self.slots[slot] = words[category]

    def facts(self) -> None:
        words = lexicon()
        kind, other = self.rng.sample(_names("class"), 2)
        trait = words[f"trait {kind}"]
        members = self.rng.sample(words[f"class {kind}"], 3)
        self.slots |= {"c": [kind], "x": members[:1], "y": members[1:], "xs": [plural(members[0])], "other": [other]}
        self.slots |= {"has": trait[:3], "can": trait[3:4], "does": trait[4:]}

    def write(self, template: str) -> str:
        """Fills a template; a repeated slot gets two different words."""
        used: dict[str, list[str]] = defaultdict(list)
        result = []
        for token in template.split():
            if token.startswith("{"):
                slot = token.strip("{}")
                choices = [word for word in self.slots[slot] if word not in used[slot]] or self.slots[slot]
                token = self.rng.choice(choices)
                used[slot].append(token)
            result.append(token)
        return tidy(result)


def tidy(tokens: list[str]) -> str:
    """Tokens -> text: `an` before a vowel, no space before a full stop, a capital at the beginning."""
    for i in range(len(tokens) - 1):
        if tokens[i] in ("a", "A") and tokens[i + 1][0] in "aeiou":
            tokens[i] += "n"
    text = " ".join(tokens)
    for mark in ".,!?":
        text = text.replace(f" {mark}", mark)
    text = text.replace('" Where', '"Where').replace('? "', '?"')
    return text[0].upper() + text[1:]


def documents(count: int, seed: int) -> Iterator[list[str]]:
    """`count` documents of 5 to 12 sentences: stories, reviews and facts."""
    words = lexicon()
    for index in range(count):
        rng = random.Random(f"{seed}-{index}")
        scene, length, kind = Scene(rng), rng.randint(5, 12), rng.random()
        if kind < 0.25:
            opening, body = OPENING, STORY
        elif kind < 0.85:
            opening, body = REVIEW_OPENING, REVIEW
            scene.review(rng.random() < 0.5, words["good"], words["bad"])
        else:
            opening, body = FACT[:1], FACT[1:]
            scene.facts()
        templates = [rng.choice(opening), *rng.sample(body * 2, length - 1)]  # none more than twice
        yield [scene.write(template) for template in templates]


def write_corpus(folder: Path, *, documents_count: int, seed: int) -> None:
    """Writes `train.txt` and `valid.txt` (a twentieth as many documents), one sentence a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, offset in (("train", documents_count, 0), ("valid", documents_count // 20, 1)):
        with open(folder / f"{name}.txt", "w", encoding="utf-8") as file:
            for document in documents(count, seed * 2 + offset):
                file.write("\n".join(document) + "\n\n")
