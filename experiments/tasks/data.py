"""Data of the experiments, made from a seed: texts, tags, series, and samples with two targets."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from lightkit.data.tensors import DataInfo, fingerprint

GOOD, BAD = ("good", "great", "fine", "lovely", "superb"), ("bad", "poor", "sad", "awful", "dull")
THINGS = ("film", "plot", "cast", "music", "end", "light", "script", "pace")


def reviews(rows: int = 1500, seed: int = 0) -> pa.Table:
    """Make reviews of two clauses, of which the one after `but` counts; 5 % of the classes are wrong.

    A clause says of a thing that it is, or is not, of some kind.
    """
    random = np.random.default_rng(seed)
    texts, targets = [], []
    for _ in range(rows):
        clauses, signs = [], []
        for _ in range(2):
            no, good = random.random(2) < 0.5
            words = GOOD if good else BAD
            clauses.append(f"the {random.choice(THINGS)} is {'not ' * int(no)}{random.choice(words)}")
            signs.append(bool(no) != bool(good))
        first = random.random() < 0.5  # "but A, B" puts the clause that counts first
        texts.append(f"but {clauses[0]} , {clauses[1]}" if first else f"{clauses[0]} , but {clauses[1]}")
        kind = signs[0 if first else 1] != (random.random() < 0.05)
        targets.append("for" if kind else "against")
    return pa.table({"text": texts, "target": targets})


BOTH = ("watch", "plan", "run", "walk", "light", "drink", "paint", "park")
TAGS = {"to": "PART", "the": "DET", "a": "DET", "they": "PRON", "we": "PRON", "old": "ADJ", "new": "ADJ", "in": "ADP"}


def sentences(rows: int = 800, seed: int = 0) -> pa.Table:
    """Make sentences in which eight words are nouns or verbs, as what is before them says."""
    random = np.random.default_rng(seed)
    texts, targets = [], []
    for _ in range(rows):
        words, tags = [], []

        def add(word: str, tag: str | None = None, words: list[str] = words, tags: list[str] = tags) -> None:
            words.append(word)
            tags.append(tag or TAGS[word])

        for _ in range(random.integers(1, 4)):
            add(str(random.choice(("they", "we"))))
            add(str(random.choice(BOTH)), "VERB")
            if random.random() < 0.5:
                add("to")
                add(str(random.choice(BOTH)), "VERB")
            add(str(random.choice(("the", "a"))))
            for _ in range(random.integers(0, 3)):
                add(str(random.choice(("old", "new"))))
            add(str(random.choice(BOTH)), "NOUN")
        texts.append(" ".join(words))
        targets.append(" ".join(tags))
    return pa.table({"text": texts, "target": targets})


def sales(days: int = 900, shops: int = 30, seed: int = 0) -> pa.Table:
    """Make daily sales of shops of unlike sizes: a week, a year, a trend, holidays, and noise that lasts."""
    random = np.random.default_rng(seed)
    holiday = (random.random(days) < 0.05).astype(float)
    day, parts = np.arange(days), []
    for shop in range(shops):
        size, week = 10 ** random.uniform(0.5, 3), random.normal(0, 0.3, 7)
        noise = np.zeros(days)
        for now in range(1, days):
            noise[now] = 0.7 * noise[now - 1] + random.normal(0, 0.08)
        year = 0.3 * np.sin(2 * np.pi * (day / 365 + random.random()))
        change = week[day % 7] + year + day * random.normal(0, 0.0003) + noise - 0.6 * holiday
        parts.append({"time": day, "shop": [f"shop {shop}"] * days, "value": size * np.exp(change), "holiday": holiday})
    return pa.table({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


class Fruit:
    """Samples of ten measurements with two targets that depend on the same two hidden numbers.

    Args:
        rows: Number of samples.
        seed: Seed of them.
    """

    exact, splits, strata = False, None, None

    def __init__(self, rows: int = 1200, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        hidden, mixing = torch.randn(rows, 2, generator=random), torch.randn(2, 10, generator=random)
        self.x = torch.tanh(hidden @ mixing) + 0.1 * torch.randn(rows, 10, generator=random)
        angle = torch.atan2(hidden[:, 1], hidden[:, 0])
        self.kind = ((angle + torch.pi) / (2 * torch.pi) * 3).long().clamp(max=2)
        self.weight = hidden.norm(dim=1) + 0.05 * torch.randn(rows, generator=random)
        self.info = DataInfo("custom", (10,), 0, fingerprint=fingerprint([self.x, self.kind, self.weight]))

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return measurements `(B, 10)` and the targets by name, `(B,)` each."""
        return self.x[rows], {"kind": self.kind[rows], "weight": self.weight[rows]}
