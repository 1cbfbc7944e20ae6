from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.data import DataInfo
from lightkit.gallery.words import Prediction, answer, target_words

CLASSES = DataInfo("multiclass", (4,), 3, ("ant", "bee", "cat"))
BINARY = DataInfo("binary", (4,), 1, ("benign",))
LABELS = DataInfo("multilabel", (4,), 3, ("red", "round", "small"))
NUMBERS = DataInfo("regression", (4,), 1)
TEXT = DataInfo("language_modeling", (3,), 3, (), 3, 3, "", ("?", "a", "b"))


@pytest.mark.parametrize(
    ("target", "info", "words"),
    [
        (torch.tensor(2), CLASSES, "cat"),
        (torch.tensor([0.3, 0.7, 0.0]), CLASSES, "0.70 bee + 0.30 ant"),
        (torch.tensor([0.0, 1.0, 0.0]), CLASSES, "bee"),
        (torch.tensor(1.0), BINARY, "benign"),
        (torch.tensor(0.0), BINARY, "not benign"),
        (torch.tensor(0.25), BINARY, "0.25 benign"),
        (torch.tensor([1.0, 0.0, 1.0]), LABELS, "red, small"),
        (torch.zeros(3), LABELS, "none"),
        (torch.tensor(151.25), NUMBERS, "151.2"),
        (torch.arange(6.0), NUMBERS, "0, 1, 2, 3, …"),
        (torch.tensor(7), DataInfo("multiclass", (4,), 8), "7"),
        (torch.tensor([1, 2, 2]), TEXT, "1, 2, 2"),
    ],
)
def test_targets(target: Any, info: DataInfo, words: str) -> None:
    assert target_words(target, info) == words


@pytest.mark.parametrize(
    ("output", "target", "info", "found"),
    [
        (torch.tensor([0.0, 5.0, 0.0]), torch.tensor(1), CLASSES, Prediction("bee", 0.9867, True)),
        (torch.tensor([0.0, 5.0, 0.0]), torch.tensor(0), CLASSES, Prediction("bee", 0.9867, False)),
        (torch.tensor([0.0, 5.0, 0.0]), torch.tensor([0.5, 0.5, 0.0]), CLASSES, Prediction("bee", 0.9867, None)),
        (torch.tensor([-2.0]), torch.tensor(0.0), BINARY, Prediction("not benign", 0.8808, True)),
        (torch.tensor([2.0, -1.0, 3.0]), torch.tensor([1.0, 0.0, 1.0]), LABELS, Prediction("red, small", None, True)),
        (
            torch.tensor([2.0, 1.0, 3.0]),
            torch.tensor([1.0, 0.0, 1.0]),
            LABELS,
            Prediction("red, round, small", None, False),
        ),
        (torch.tensor([3.5]), torch.tensor(3.0), NUMBERS, Prediction("3.5")),
    ],
)
def test_answers(output: Any, target: Any, info: DataInfo, found: Prediction) -> None:
    said = answer(output, target, info, None)
    assert (said.text, said.is_right) == (found.text, found.is_right)
    assert said.confidence == (None if found.confidence is None else pytest.approx(found.confidence, abs=1e-4))


def test_a_text_is_answered_token_by_token() -> None:
    scores = torch.nn.functional.one_hot(torch.tensor([1, 2, 0]), 3).float()
    said = answer(scores, torch.tensor([1, 2, 2]), TEXT, lambda tokens: "".join(TEXT.vocabulary[t] for t in tokens))
    assert (said.text, said.pieces, said.is_right) == ("ab?", ("a", "b", "?"), None)
