"""What each model refuses, by the name of the argument."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.models import CNN, MLP, RecurrentLM, ResNet, SoftTree, TabM, TransformerClassifier

FLAT: dict[str, Any] = {"in_features": 3, "num_classes": 2}
IMAGE: dict[str, Any] = {"input_shape": (3, 8, 8), "num_classes": 2}
ROWS: dict[str, Any] = {"input_shape": (5, 3), "num_classes": 2, "dim": 16, "depth": 2, "heads": 2}
TOKENS: dict[str, Any] = {"vocab_size": 7}
REFUSED: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (CNN, IMAGE, {"input_shape": (30,)}, "the CNN needs images"),
    (CNN, IMAGE, {"channels": []}, "at least one stage"),
    (CNN, IMAGE, {"channels": [8, 0]}, "channels: sizes start at 1"),
    (CNN, IMAGE, {"kernel_size": 4}, "kernels need a middle pixel"),
    (CNN, IMAGE, {"pool": "mean"}, "pool: not a valid choice"),
    (CNN, IMAGE, {"head": "mean"}, "head: not a valid choice"),
    (MLP, FLAT, {"hidden": [0]}, "hidden: sizes start at 1"),
    (MLP, FLAT, {"num_classes": 0}, "num_classes: sizes start at 1"),
    (MLP, FLAT, {"activation": "rellu"}, r"activation: unknown activation[\s\S]*nearest: relu"),
    (MLP, FLAT, {"norm": "bach"}, r"norm: not a valid choice[\s\S]*nearest: batch"),
    (MLP, FLAT, {"dropout": 1.0}, "dropout: not a probability"),
    (RecurrentLM, TOKENS, {"cell": "rnn"}, "cell: not a valid choice"),
    (RecurrentLM, TOKENS, {"tie": True, "dim": 4}, "tied weights need equal widths"),
    (RecurrentLM, TOKENS, {"hidden": 0}, "hidden: sizes start at 1"),
    (RecurrentLM, TOKENS, {"dropout": -0.1}, "dropout: not a probability"),
    (ResNet, IMAGE, {"depth": 19}, "depth: no such depth"),
    (ResNet, IMAGE, {"stem": "cifar10"}, r"stem: not a valid choice[\s\S]*nearest: cifar"),
    (ResNet, IMAGE, {"input_shape": (5, 3)}, "a ResNet needs images"),
    (ResNet, IMAGE, {"width": 0}, "width: sizes start at 1"),
    (SoftTree, FLAT, {"depth": 0}, "depth: sizes start at 1"),
    (SoftTree, FLAT, {"penalty": -0.1}, "penalty: out of range"),
    (SoftTree, FLAT, {"num_classes": 0}, "num_classes: sizes start at 1"),
    (TabM, FLAT, {"k": 0}, "k: sizes start at 1"),
    (TabM, FLAT, {"hidden": [4, 0]}, "hidden: sizes start at 1"),
    (TabM, FLAT, {"task": "language_modeling"}, "task: not a valid choice"),
    (TabM, FLAT, {"dropout": 1.0}, "dropout: not a probability"),
    (TabM, FLAT, {"activation": "rellu"}, "activation: unknown activation"),
    (TransformerClassifier, ROWS, {"heads": 3}, "heads: the heads don't divide the width"),
    (TransformerClassifier, ROWS, {"heads": 16, "positions": "rotary"}, "rotary positions need an even width of a"),
    (TransformerClassifier, ROWS, {"positions": "sine"}, "positions: not a valid choice"),
    (TransformerClassifier, ROWS, {"mlp_ratio": 0}, "mlp_ratio: the perceptron needs a width"),
    (TransformerClassifier, ROWS, {"pool": "max"}, "pool: not a valid choice"),
    (
        TransformerClassifier,
        ROWS,
        {"input_shape": (3, 10, 15), "patch": 4},
        r"(?s)no patch .* 10 × 15 .*choices: +1",
    ),
    (TransformerClassifier, ROWS, {"input_shape": (3, 31, 37)}, "no patch of this side tiles"),
    (TransformerClassifier, ROWS, {"input_shape": (1, 2, 3, 4)}, "no transformer for this shape"),
]


@pytest.mark.parametrize(("model", "usual", "changed", "message"), REFUSED)
def test_bad_arguments(model: Any, usual: dict[str, Any], changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        model(**{**usual, **changed})
