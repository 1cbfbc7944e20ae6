"""Kneser-Ney on the very characters that a language model learns from and is tested on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from experiments.report.kneser_ney import KneserNey, bits
from experiments.report.measure import COMMON
from experiments.report.rows import PAGES
from lightkit import compose
from lightkit.assembly.parts import build_engine, build_splits

LONGEST = 24
"""Order up to which long texts are counted."""
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Weights of the text itself that are tried where it is mixed with another."""
KEY = "test/bits_per_character"


class Windows:
    """The text of a run: what its windows cover.

    Args:
        page: The page.
        variant: Which of its runs.
    """

    def __init__(self, page: str, variant: str) -> None:
        cfg = compose([*PAGES[page].variants[variant].seeded(0), *COMMON]).cfg
        self.data = build_splits(cfg, build_engine(cfg))
        self.tokens = len(self.data.source.vocabulary)

    def pieces(self, split: str) -> list[np.ndarray]:
        """Token numbers of a split; windows that touch are one piece, whose order is that of the text."""
        x, y = self.data.source.take(self.data.rows[split].sort().values)
        windows = np.concatenate([x.numpy(), y[:, -1:].numpy()], axis=1)
        breaks = np.flatnonzero(windows[:-1, -1] != windows[1:, 0]) + 1
        return [np.concatenate([part[0], *part[1:, 1:]]) for part in np.split(windows, breaks)]

    def unseen(self, split: str, *, within: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """The text of a split, and how much of it may be looked at before each token after the first.

        Args:
            split: Name of the split.
            within: Whether no more is seen than what stands in the window, as by the network; otherwise all.
        """
        (text,) = self.pieces(split)
        if not within:
            return text, None
        length = self.data.info.context_length
        return text, np.concatenate([[0], np.arange(len(text) - 1) % length + 1])


def of_python() -> Iterator[tuple[str, dict[str, Any]]]:
    """Kneser-Ney for `char_lm`, its order chosen on the validation part."""
    windows = Windows("char_lm", "lstm")
    model = KneserNey(windows.pieces("train"), windows.tokens, LONGEST)
    for name, within in (("windows", True), ("full", False)):
        val, test = (measured(model, *windows.unseen(split, within=within)) for split in ("val", "test"))
        order = min(val, key=lambda order: bits(val[order]))
        yield name, result(f"modified Kneser–Ney (order = {order}), {_seen(within)}", test[order])


def of_prose() -> Iterator[tuple[str, dict[str, Any]]]:
    """Kneser-Ney for `transfer_text`: of its text alone, and mixed with one of that text and all Python sources."""
    windows, python = Windows("transfer_text", "scratch"), Windows("char_lm", "lstm")
    if windows.data.source.vocabulary != python.data.source.vocabulary:
        raise ValueError("transfer_text and char_lm must have one vocabulary")
    texts = windows.pieces("train")
    own = KneserNey(texts, windows.tokens, 7)
    both = KneserNey([*texts, *python.pieces("train")], windows.tokens, LONGEST)
    for name, within in (("windows", True), ("full", False)):
        unseen = [windows.unseen(split, within=within) for split in ("val", "test")]
        val, test = (measured(own, *each) for each in unseen)
        long_val, long_test = (measured(both, *each) for each in unseen)
        order = min(val, key=lambda order: bits(val[order]))
        yield f"{name}_own", result(f"modified Kneser–Ney of that text (order = {order}), {_seen(within)}", test[order])
        best = min(
            product(val, long_val, SHARES),
            key=lambda choice: bits(choice[2] * val[choice[0]] + (1 - choice[2]) * long_val[choice[1]]),
        )
        order, long, share = best
        settings = f"orders = {order} and {long}, weights = {share:.1f} and {1 - share:.1f}"
        label = f"modified Kneser–Ney of that text, mixed with one of it and all Python sources ({settings})"
        yield f"{name}_both", result(f"{label}, {_seen(within)}", share * test[order] + (1 - share) * long_test[long])


def measured(model: KneserNey, text: np.ndarray, seen: np.ndarray | None) -> dict[int, np.ndarray]:
    """Probabilities of all tokens of a text but its first, by order."""
    orders = range(2, model.order + 1)
    return {order: found[1:] for order, found in model.probabilities(text, seen, orders).items()}


def result(label: str, probabilities: np.ndarray) -> dict[str, Any]:
    """A classic's entry in the results: counting has no seed, so there is one number."""
    return {"label": label, "seeds": [0], "values": {KEY: [bits(probabilities)]}}


def _seen(within: bool) -> str:
    return "within the network's windows" if within else "with all that stands before"
