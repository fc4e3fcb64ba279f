"""N-gram models: the next token by how often it followed the last n - 1 (Shannon 1948), smoothed.

They are counted in one pass an order, not trained. Shapes: B batch, T positions, N predictions, V vocabulary, n order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline.console.progress import progress
from pipeline.errors import UserError, check_choice
from pipeline.models.causal import CausalEncoder
from pipeline.models.folder import Size
from pipeline.models.inputs import Inputs, check_generative
from pipeline.models.layers.ngram_counts import Level, Probabilities, Smoothing, count, memory_needed, stream_of
from pipeline.models.losses import Loss
from pipeline.models.outputs import Encoded, LoadReport
from pipeline.tokenization.base import Tokenizer

HIGHEST = 7  # order
ROWS = 256  # distributions that exist at once
SURE = 1 - 1e-12  # a text goes on with what is left, where all counted ones end

Order = Annotated[int, Field(ge=1, le=HIGHEST)]


class NgramConfig(TypedDict):
    """`config.json`; `ngrams`: how many there are of each order, none before counting."""

    vocab_size: Size
    order: Order
    smoothing: Smoothing
    k: Annotated[float, Field(gt=0)]
    discount: Annotated[float, Field(gt=0, lt=1)] | None
    max_length: Size
    ngrams: list[Size]


class Ngram(CausalEncoder):
    """Counts of n-grams. Its "hidden vectors" are histories: the last n - 1 tokens, -1 before the text begins.

    Args:
        tokenizer: its length is V.
        order: n, the longest n-grams that are counted; 1 to 7.
        smoothing: where the probability of unseen n-grams is from (Chen and Goodman 1998), see `ngram_counts`. `mle`
            has none for them: a text with one has probability 0.
        k: is added to each count by `add-k`; 1 is Laplace's rule.
        discount: is subtracted from each count by `absolute-discounting` and `kneser-ney`; None: estimated.
        max_length: most tokens of a text.
    """

    model_type = "ngram"
    learning = "counting"
    offers = ("packing",)  # no history crosses the end of a text
    shardable = False
    whole_numbers = True
    schema = NgramConfig

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        order: int,
        smoothing: Smoothing,
        k: float,
        discount: float | None,
        max_length: int,
    ) -> None:
        super().__init__()
        check_generative(tokenizer, "An n-gram model")
        if tokenizer.id("bos") != tokenizer.id("eos"):
            raise UserError("An n-gram model needs a tokenizer with one token for the beginning and the end of a text.")
        if not 1 <= order <= HIGHEST:
            raise UserError(f"model.encoder.init_args.order is {order}; it must be 1 to {HIGHEST}.")
        check_choice("smoothing", smoothing, get_args(Smoothing))
        if not 0 < k < math.inf:
            raise UserError(f"model.encoder.init_args.k is {k}; it must be above 0.")
        if discount is not None and not 0 < discount < 1:
            raise UserError(f"model.encoder.init_args.discount is {discount}; it must be between 0 and 1, or null.")
        self.tokenizer, self.order, self.smoothing, self.max_length = tokenizer, order, smoothing, max_length
        self.size = max(1, order - 1)
        settings = {"order": order, "smoothing": smoothing, "k": k, "discount": discount, "max_length": max_length}
        self.config = {"model_type": self.model_type, "vocab_size": len(tokenizer), **settings, "ngrams": []}
        self._hold([])

    def _hold(self, levels: list[Level]) -> None:
        """Takes counts of orders 1, 2, ..., and the probabilities that follow from them."""
        self.levels = levels
        self.config["ngrams"] = [len(level.tokens) for level in levels]
        k, discount = self.config["k"], self.config["discount"]
        self.probabilities = Probabilities(levels, self.smoothing, self.config["vocab_size"], k=k, discount=discount)

    def fit(self, tokens: np.ndarray, starts: np.ndarray) -> int:
        """Counts the n-grams of each order; returns their number.

        Raises:
            UserError: a setting is not of its smoothing, which would ignore it or not be what it is called.
        """
        self._check_used()
        end = self.tokenizer.id("eos")
        levels = count(
            stream_of(tokens, starts, end),
            order=self.order,
            vocab_size=self.config["vocab_size"],
            end=end,
            neighbors="kneser-ney" in self.smoothing,
            passes=partial(progress, desc="count", unit="order", leave=False, delay=1),
        )
        self._hold(levels)
        return sum(int((level.counts > 0).sum()) for level in self.levels)

    def _check_used(self) -> None:
        discounted = self.smoothing in ("absolute-discounting", "kneser-ney")
        for name, given, used, of in (
            ("k", self.config["k"] != 1, self.smoothing == "add-k", "add-k"),
            ("discount", self.config["discount"] is not None, discounted, "absolute-discounting and kneser-ney"),
        ):
            if given and not used:
                raise UserError(
                    f"model.encoder.init_args.{name} is of {of}, and model.encoder.init_args.smoothing is "
                    f"{self.smoothing}: leave one of them out."
                )

    def check_fit(self, tokens: int, memory: float) -> None:
        """Raises: UserError, a setting is not of its smoothing, or counting could take more; says which order fits."""
        self._check_used()
        if tokens >= 2**31:  # counts are of 32 bits
            raise UserError(
                f"Counting takes fewer than {2**31:,} tokens, and these are {tokens:,}: take a part of the text."
            )
        needs = [memory_needed(tokens, order=n, vocab_size=self.config["vocab_size"]) for n in range(1, self.order + 1)]
        if needs[-1] <= memory:
            return
        fitting = sum(need <= memory for need in needs)
        hint = f"order {fitting} fits: set model.encoder.init_args.order" if fitting else "no order fits"
        raise UserError(
            f"Counting {tokens / 1e6:,.1f} M tokens up to order {self.order} can take {needs[-1] / 1e9:,.1f} GB, and "
            f"this machine has {memory / 1e9:,.1f} GB; {hint}."
        )

    @property
    def reach(self) -> int:
        return self.order - 1

    # ------------------------------------------------------------------ probabilities

    def forward(self, batch: Inputs, state: Any = None) -> Encoded:
        """`input_ids`, `mask` (B, T) -> one layer, the history of what follows each position (B, T, n - 1)."""
        ids, width = batch["input_ids"], self.size
        history = F.pad(ids, (width - 1, 0), value=-1).unfold(1, width, 1)
        ends = history == self.tokenizer.id("eos")
        later = ends.flip(-1).cumsum(-1).flip(-1) - ends.long()  # ends of text right of each token
        history = history.masked_fill(later > 0, -1) if self.order > 1 else torch.full_like(history, -1)
        return Encoded(layers=[history], mask=batch["mask"], input_ids=ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """Histories (..., n - 1) -> log-probabilities (..., V)."""
        rows = hidden.reshape(-1, self.size).cpu().numpy()
        log_probs = torch.empty(len(rows), self.config["vocab_size"], dtype=torch.float64)
        with np.errstate(divide="ignore"):
            for begin in range(0, len(rows), ROWS):
                part = self.probabilities.distributions(rows[begin : begin + ROWS])
                log_probs[begin : begin + ROWS] = torch.from_numpy(np.log(part, out=part))
        return log_probs.to(hidden.device).reshape(*hidden.shape[:-1], -1)

    def token_log_probs(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Histories (N, n - 1), tokens (N,) -> log-probabilities in float64 (N,).

        Raises:
            UserError: an n-gram has probability 0; names it.
        """
        history, tokens = hidden.cpu().numpy(), labels.cpu().numpy()
        p = self.probabilities.of(history, tokens)
        if len(unseen := np.flatnonzero(p == 0)):
            ids = [int(i) for i in (*history[unseen[0]], tokens[unseen[0]]) if i >= 0]
            raise UserError(
                f"The text has {self.tokenizer.backend.decode(ids, skip_special_tokens=False)!r}, of which the counted "
                f"text has nothing: without smoothing ({self.smoothing}) it costs infinitely many bits. Count with "
                "another model.encoder.init_args.smoothing."
            )
        return torch.from_numpy(np.log(p)).to(hidden.device)

    def token_loss(self, hidden: Tensor, labels: Tensor) -> Loss:
        return Loss(-self.token_log_probs(hidden, labels).sum(), len(labels))

    def log_probs(self, batch: Inputs, targets: Tensor | None = None, encoded: Encoded | None = None) -> Tensor:
        targets = batch["input_ids"] if targets is None else targets
        hidden, mask = (encoded or self(batch)).layers[-1], batch["mask"][:, 1:]
        scores = torch.zeros(targets.shape, dtype=torch.float64, device=targets.device)
        scores[:, 1:][mask] = self.token_log_probs(hidden[:, :-1][mask], targets[:, 1:][mask])
        return scores

    def inner_log_probs(self, batch: Inputs, encoded: Encoded) -> Tensor:
        mask = batch["mask"][:, 1:]
        history = encoded.layers[-1][:, :-1][mask].cpu().numpy()
        end = self.probabilities.of(history, np.full(len(history), self.tokenizer.id("eos")))
        scores = self.log_probs(batch, encoded=encoded)
        scores[:, 1:][mask] -= torch.from_numpy(np.log1p(-np.minimum(end, SURE))).to(scores.device)
        return scores

    # ------------------------------------------------------------------ the rest of an encoder

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def pooled(self, encoded: Encoded) -> Tensor:
        raise UserError("An n-gram model has no vector of a text.")

    @property
    def num_layers(self) -> int:
        return 1

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return []

    # ------------------------------------------------------------------ folders

    @classmethod
    def from_config(cls, config: dict[str, Any], tokenizer: Tokenizer) -> Ngram:
        return cls(tokenizer, **{name: config[name] for name in ("order", "smoothing", "k", "discount", "max_length")})

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for n, (size, contexts) in enumerate(zip(config["ngrams"], [1, *config["ngrams"]], strict=False), start=1):
            shapes |= {f"{n}.tokens": (size,), f"{n}.starts": (contexts + 1,), f"{n}.counts": (size,)}
        return shapes

    def export_state(self) -> dict[str, Tensor]:
        """`N.tokens`, `N.starts`, `N.counts` of each order, see `Level`."""
        return {
            f"{n}.{name}": torch.from_numpy(getattr(level, name))
            for n, level in enumerate(self.levels, start=1)
            for name in ("tokens", "starts", "counts")
        }

    def import_state(self, state: Mapping[str, Tensor]) -> LoadReport:
        """Takes counts over; UserError where they are none."""
        levels: list[Level] = []
        while (n := len(levels) + 1) <= self.order and f"{n}.tokens" in state:
            level = Level(*(state[f"{n}.{name}"].numpy() for name in ("tokens", "starts", "counts")))
            _check(level, n, contexts=len(levels[-1].tokens) if levels else 1, vocab_size=self.config["vocab_size"])
            levels.append(level)
        self._hold(levels)
        names = self.export_state()
        new = [] if levels else ["1.tokens"]  # short texts have no n-grams of the highest orders
        return LoadReport(loaded=list(names), new=new, unused=sorted(state.keys() - names.keys()))


def _check(level: Level, n: int, *, contexts: int, vocab_size: int) -> None:
    """Raises: UserError, places or tokens that would be looked up outside."""
    starts, size = level.starts, len(level.tokens)
    whole = starts[0] == 0 and starts[-1] == size and (np.diff(starts) >= 0).all() and len(starts) == contexts + 1
    inside = size and 0 <= level.tokens.min() <= level.tokens.max() < vocab_size and (n > 1 or size == vocab_size)
    if not (whole and inside and len(level.counts) == size and level.counts.min() >= 0 < level.counts.max()):
        raise UserError(f"{n}.tokens, {n}.starts and {n}.counts are no counts of n-grams.")
