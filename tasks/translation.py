"""Translation: a text in one language, its target a text in another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tasks import plots
from tasks.base import Example, Prediction, Scores, Task
from tasks.dataset import Row, is_missing
from tasks.errors import TaskError, UserError
from tasks.guess import Table, plain_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS = (5, 10, 15, 20, 25, 30)  # words of a source: the ends of the bars of its plot
FEWEST = 10  # sources of a bar
NAMES = {  # of columns
    "source": ("source", "src", "sourcetext", "original"),
    "target": ("target", "tgt", "targettext", "translation"),
}


MOST_PENALTY = 50  # of length: its power of a long text would be beyond what a float holds
WIDEST_BEAM = 1_000  # hypotheses: the widest that the field has tried (Koehn and Knowles 2017), and memory ends
MANY = 0.2  # of the letters: a script that has no spaces between words
HAN = r"[\u3400-\u4dbf\u4e00-\u9fff]"
NO_SPACES = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff]"  # Thai, Lao, Burmese, Khmer, kana


@dataclass
class Translation(Task):
    """A source text and its translation, in the columns of the roles `source` and `target`.

    The columns also name the languages of a local folder of parallel files: with `{source: en, target: de}` line i of
    `train.en` (or `.en.gz`) is translated in line i of `train.de`. Rows without a source or a target are left out.

    Args:
        beam: hypotheses that beam search keeps in the test and in `predict`; 1, and always in validations: greedy.
        length_penalty: above 0 favors longer translations, below 0 shorter ones.
    """

    columns: dict[str, str] = field(default_factory=lambda: {"source": "source", "target": "target"})
    beam: int = 5
    length_penalty: float = 1.0

    kind: ClassVar[str | None] = "translation"
    head: ClassVar[str | None] = "translation"
    roles: tuple[str, ...] = ("source",)
    answers: ClassVar[str] = "translations"
    ignores: ClassVar[str] = "with an empty side"
    parallel: ClassVar[bool] = True
    pictures: ClassVar[tuple[str, ...]] = ("lengths", "alignment")
    formats: ClassVar[str] = ".tsv or .csv with a header, .jsonl, .parquet, or lines of train.en and train.de"

    def __post_init__(self) -> None:
        super().__post_init__()
        if set(self.columns) != {"source", "target"}:
            raise TaskError(f"columns must name source and target, and has {', '.join(self.columns) or 'nothing'}")
        if self.language is not None:
            raise TaskError("language is of texts in one language; columns name those of a translation")
        if not 1 <= self.beam <= WIDEST_BEAM:
            raise TaskError(f"beam is {self.beam}; it must be from 1 to {WIDEST_BEAM}")
        if not abs(self.length_penalty) <= MOST_PENALTY:
            raise TaskError(
                f"length_penalty is {self.length_penalty}; it must be from -{MOST_PENALTY} to {MOST_PENALTY}"
            )

    @property
    def outputs(self) -> list[str]:
        return ["translation"]

    @property
    def head_options(self) -> dict[str, Any]:
        languages = [self.columns["source"], self.columns["target"]]
        return {"beam": self.beam, "length_penalty": self.length_penalty, "languages": languages}

    @classmethod
    def guess_columns(cls, table: Table) -> dict[str, str] | None:
        named = {role: [c for c in table.columns if plain_name(c.name) in names] for role, names in NAMES.items()}
        if all(len(columns) == 1 for columns in named.values()):
            return {role: columns[0].name for role, columns in named.items()}
        texts = [column.name for column in table.columns if column.is_text]
        languages = [name for name in texts if len(str(name)) == 2]
        return dict(zip(cls.default_columns(), languages, strict=True)) if len(languages) == len(texts) == 2 else None

    # ------------------------------------------------------------------ labels

    def is_ignored(self, row: Row) -> bool:
        """Whether a side is empty; that a column is missing is an error of `example`."""
        sides = [row[1].get(column, row[1].get(role, role)) for role, column in self.columns.items()]
        return any(is_missing(side) or not str(side).strip() for side in sides)

    def label(self, row: Row) -> str:
        return self.plain(row, "target")

    def check_labels(self, train: Sequence[Example]) -> None:
        if len({example.label for example in train}) < 2:
            raise UserError("All training rows have the same target; there is nothing to learn.")

    def describe_labels(self, train: Sequence[Example]) -> str:
        words = float(np.mean([len(example.label.split()) for example in train])) if train else 0.0
        return f"from {self.columns['source']} to {self.columns['target']}, {words:.1f} words a target"

    def made_up(self, number: int) -> dict[str, Any]:
        return {self.columns["source"]: f"text {number}", self.columns["target"]: f"the translation of text {number}"}

    # ------------------------------------------------------------------ scores

    @property
    def metric(self) -> str:
        return "bleu"

    @property
    def bound(self) -> float:
        return 100.0

    def scores(self, gold: Sequence[str], predicted: Sequence[str]) -> Scores:
        """BLEU (Papineni et al. 2002) and chrF (Popovic 2015) of sacrebleu, from 0 to 100 (Post 2018)."""
        figures = {name: score(name, gold, predicted) for name in ("bleu", "chrf")}
        details: dict[str, Any] = {"bleu_lowercase": score("bleu_lowercase", gold, predicted)}
        return Scores(figures, details | {f"{name}_signature": signature(name, gold) for name in METRICS})

    def baselines(self, train: Sequence[Example], test: Sequence[Example]) -> dict[str, float]:
        """The source itself, and the translation of the training source that is most like it."""
        sources, gold = [str(example.text) for example in test], [example.label for example in test]
        nearest = nearest_texts([str(example.text) for example in train], sources)
        guesses = {"copy": sources, "nearest_sentence": [train[i].label for i in nearest]}
        return {name: score("bleu", gold, texts) for name, texts in guesses.items()}

    def headline(self, figures: dict[str, float]) -> str:
        return f"test BLEU {figures['bleu']:.2f}, chrF {figures['chrf']:.2f}"

    # ------------------------------------------------------------------ report

    def row(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        return {"source": example.text, "reference": example.label, "output": prediction.label}

    def worst(self, rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
        """The lines of the lowest chrF."""
        scored = [(sentence_chrf(row["output"], row["reference"]), row) for row in rows]
        names = ["source", "reference", "output"]
        scored.sort(key=lambda pair: pair[0])
        return [*names, "chrF"], [[*(row[name] for name in names), value] for value, row in scored]

    def plots(self, examples: Sequence[Example], predicted: Sequence[str]) -> dict[str, Figure]:
        bars = by_length(examples, predicted)
        if not bars:
            return {}
        axes = plots.axes(6.5, 4)
        drawn = axes.bar(range(len(bars)), [bleu for _, bleu in bars.values()])
        axes.bar_label(drawn, fmt="%.1f", fontsize=8)
        axes.set_xticks(range(len(bars)), [f"{name}\n({count:,})" for name, (count, _) in bars.items()])
        axes.set_xlabel("words of the source (how many in the test)")
        axes.set_ylabel("BLEU")
        axes.spines[["top", "right"]].set_visible(False)
        return {"lengths": axes.figure}


def words_of(references: Sequence[str]) -> str:
    """How sacrebleu is to find words: by `13a`, its default; Chinese by `zh`, and other scripts without spaces between
    words by their characters (`ja-mecab`, usual for Japanese, needs a dictionary)."""
    letters = [character for text in references for character in text if character.isalpha()]
    text = "".join(letters)
    if len(re.findall(NO_SPACES, text)) > MANY * len(letters):
        return "char"
    return "zh" if len(re.findall(HAN, text)) > MANY * len(letters) else "13a"


@cache
def _metrics(words: str) -> dict[str, Any]:
    from sacrebleu.metrics import BLEU, CHRF  # takes a while

    bleu = partial(BLEU, tokenize=words, force=True)
    return {"bleu": bleu(), "bleu_lowercase": bleu(lowercase=True), "chrf": CHRF()}


METRICS = ("bleu", "bleu_lowercase", "chrf")


def score(name: str, gold: Sequence[str], predicted: Sequence[str]) -> float:
    """A metric of sacrebleu, of a whole part; it rounds 100 to a little more."""
    return min(100.0, float(_metrics(words_of(gold))[name].corpus_score(list(predicted), [list(gold)]).score))


def word_precision(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Percent of the words of the outputs that are in their references, each at most as often as there."""
    return float(_metrics(words_of(gold))["bleu"].corpus_score(list(predicted), [list(gold)]).precisions[0])


def signature(name: str, gold: Sequence[str]) -> str:
    """What sacrebleu says of how it computed a metric, known once it has."""
    return str(_metrics(words_of(gold))[name].get_signature())


def sentence_chrf(output: str, reference: str) -> float:
    return float(_metrics("13a")["chrf"].sentence_score(output, [reference]).score)


def by_length(examples: Sequence[Example], predicted: Sequence[str]) -> dict[str, tuple[int, float]]:
    """Numbers of words of a source, as `6-10` -> how many sources have so many, and BLEU of these."""
    words: Any = np.array([len(str(example.text).split()) for example in examples])
    bins, result, low = [*LENGTHS, int(words.max(initial=0))], {}, 1
    for high in bins:
        rows = np.flatnonzero((words >= low) & (words <= high)).tolist()
        if len(rows) >= FEWEST:
            bleu = score("bleu", [examples[i].label for i in rows], [predicted[i] for i in rows])
            result[f"{low}-{high}"] = (len(rows), bleu)
        low = high + 1
    return result


def nearest_texts(known: Sequence[str], asked: Sequence[str]) -> list[int]:
    """The number of the known text that each one asked for shares most with: cosine of TF-IDF of words."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    if not any(text.split() for text in known):
        return [0] * len(asked)
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+|[^\w\s]", dtype=np.float32)
    vectors = vectorizer.fit_transform(known).T.tocsr()
    found: list[int] = []
    for begin in range(0, len(asked), 256):
        found += (vectorizer.transform(asked[begin : begin + 256]) @ vectors).toarray().argmax(-1).tolist()
    return found
