"""Interpolated modified Kneser-Ney: what counting alone makes of a text.

Shapes: N tokens of the text that was counted, L tokens of the text that is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Counts:
    """How often n-grams of one length occurred, and what is taken off these counts for n-grams that did not."""

    grams: np.ndarray
    """Count of each n-gram."""
    contexts: np.ndarray
    """Sum of the counts of all n-grams that begin with a context."""
    discounts: np.ndarray
    """What is taken off a count of 0, 1, 2, and 3 or more, `(4,)`."""
    left: np.ndarray
    """What was taken off the n-grams of a context together, relative to its sum: the weight of shorter n-grams."""

    @classmethod
    def of(cls, grams: np.ndarray, contexts: np.ndarray, number: int) -> Counts:
        """Counts of n-grams whose contexts are `contexts`, of which there are `number`."""
        discounts = discounts_of(grams)
        sums = np.bincount(contexts, grams, minlength=number)
        taken = np.bincount(contexts, discounts[np.minimum(grams, 3)], minlength=number)
        return cls(grams, sums, discounts, taken / np.maximum(sums, 1))

    def share(self, gram: np.ndarray, context: np.ndarray, shorter: np.ndarray) -> np.ndarray:
        """Probabilities, given those of n-grams shorter by one; -1 stands for what never occurred."""
        count = np.where(gram >= 0, self.grams[gram], 0)
        sums = np.where(context >= 0, self.contexts[context], 0)
        known = (count - self.discounts[np.minimum(count, 3)]) / np.maximum(sums, 1)
        return np.where(sums > 0, known + self.left[context] * shorter, shorter)


def discounts_of(counts: np.ndarray) -> np.ndarray:
    """The three discounts of Chen and Goodman, from how many n-grams occurred once, twice, three and four times.

    Returns:
        What to take off a count of 0, 1, 2, and 3 or more, `(4,)`.
    """
    once, twice, thrice, four = (max(int((counts == count).sum()), 1) for count in (1, 2, 3, 4))
    ratio = once / (once + 2 * twice)
    wanted = [1 - 2 * ratio * twice / once, 2 - 3 * ratio * thrice / twice, 3 - 4 * ratio * four / thrice]
    return np.array([0.0, *(min(max(value, 0.01), most) for value, most in zip(wanted, (1.0, 2.0, 3.0)))])


class KneserNey:
    """Probabilities of the next token from counts of the n-grams of a text.

    Chen and Goodman 1998 (https://dash.harvard.edu/handle/1/25104739): the longest n-grams by how often they occurred,
    shorter ones by how many different tokens stood before them, interpolated down to equal shares of all tokens. Where
    only part of the context is to be seen, the longest n-grams that fit into it count as the longest.

    Args:
        texts: Token numbers, `(N,)` each; no n-gram reaches from one text into another.
        tokens: How many there are.
        order: Length of the longest n-grams.
    """

    def __init__(self, texts: Sequence[np.ndarray], tokens: int, order: int) -> None:
        self.tokens, self.order = tokens, order
        self._keys: list[np.ndarray] = []
        self._occurred: list[Counts] = []
        self._followed: list[Counts] = []
        text = np.concatenate(texts).astype(np.int64)
        place = np.concatenate([np.arange(len(part)) for part in texts])
        gram, context, contexts = np.empty(0, dtype=np.int64), np.zeros(len(text), dtype=np.int64), 1
        for length in range(1, order + 1):
            within, (gram, first) = gram, self._count(text, context, place >= length - 1, contexts)
            if length > 1:
                self._followed.append(self._continued(within[first], length - 1))
            context, contexts = np.concatenate([[-1], gram[:-1]]), len(self._keys[-1])

    def _count(
        self, text: np.ndarray, context: np.ndarray, whole: np.ndarray, contexts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Count the n-grams that end at each place; returns their numbers, -1 for none, and where each stands first."""
        places = np.flatnonzero(whole)
        keys, first, gram, counts = np.unique(
            context[places] * self.tokens + text[places], return_index=True, return_inverse=True, return_counts=True
        )
        self._keys.append(keys)
        self._occurred.append(Counts.of(counts, keys // self.tokens, contexts))
        numbers = np.full(len(text), -1, dtype=np.int64)
        numbers[places] = gram
        return numbers, places[first]

    def _continued(self, shorter: np.ndarray, length: int) -> Counts:
        """Counts of different tokens before n-grams, from the n-gram within each that is longer by one token."""
        keys = self._keys[length - 1]
        contexts = 1 if length == 1 else len(self._keys[length - 2])
        return Counts.of(np.bincount(shorter, minlength=len(keys)), keys // self.tokens, contexts)

    def probabilities(
        self, text: np.ndarray, seen: np.ndarray | None = None, orders: Sequence[int] = ()
    ) -> dict[int, np.ndarray]:
        """Probability of each token of a text, by the length of the longest n-grams.

        Args:
            text: Token numbers, `(L,)`.
            seen: How many tokens before each token may be looked at, `(L,)`; None takes all of them.
            orders: Lengths to report; empty takes `order` alone.

        Returns:
            Probabilities `(L,)` for each of `orders`.
        """
        text = text.astype(np.int64)
        within = np.arange(len(text)) if seen is None else np.minimum(seen, np.arange(len(text)))
        found: dict[int, np.ndarray] = {}
        context = np.zeros(len(text), dtype=np.int64)
        shorter = chosen = np.full(len(text), 1 / self.tokens)
        for length in range(1, self.order + 1):
            gram = self._look_up(context, text, length)
            fits = within >= length - 1
            chosen = np.where(fits, self._occurred[length - 1].share(gram, context, shorter), chosen)
            if length in (orders or (self.order,)):
                found[length] = chosen
            if length < self.order:
                shorter = np.where(fits, self._followed[length - 1].share(gram, context, shorter), shorter)
                context = np.concatenate([[-1], gram[:-1]])
        return found

    def _look_up(self, context: np.ndarray, text: np.ndarray, length: int) -> np.ndarray:
        """Numbers of the n-grams that end at each place of a text, -1 for those that never occurred."""
        keys = self._keys[length - 1]
        wanted = context * self.tokens + text
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where((context >= 0) & (keys[place] == wanted), place, -1)


def bits(probabilities: np.ndarray) -> float:
    """Mean bits a token."""
    return float(-np.log(probabilities).mean() / math.log(2))
