"""Few patterns say what a group of parameters holds, and mean exactly that."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from torch import nn

from lightkit.finetune.audit.render import contents, few_patterns
from lightkit.finetune.audit.tables import GroupRow
from lightkit.models import ResNet, TransformerClassifier


def names_of(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


EVERY = names_of(ResNet((3, 8, 8), 3, width=4))
CASES = {
    "all": (lambda name: True, ["*"]),
    "a stage": (lambda name: name.startswith("layer3."), ["layer3.*"]),
    "blocks": (lambda name: name.startswith(("layer3.1.", "layer4.")), ["layer3.1.*", "layer4.*"]),
    "biases": (lambda name: name.endswith(".bias"), ["*.bias"]),
    "the head": (lambda name: name.startswith("fc."), ["fc.*"]),
    "one tensor": (lambda name: name == "layer1.0.conv1.weight", ["layer1.0.conv1.weight"]),
    "biases and the head": (
        lambda name: name.endswith(".bias") or name.startswith("fc."),
        ["bn1.bias", "layer1.*.bias", "layer2.*.bias", "layer3.*.bias", "layer4.*.bias", "fc.*"],
    ),
    "none": (lambda name: False, []),
}


@pytest.mark.parametrize("case", CASES)
def test_patterns_mean_the_names(case: str) -> None:
    chosen, expected = CASES[case]
    mine = [name for name in EVERY if chosen(name)]
    assert few_patterns(mine, EVERY) == expected
    assert [name for name in EVERY if any(fnmatchcase(name, pattern) for pattern in expected)] == mine


@pytest.mark.parametrize("seed", range(5))
def test_any_choice_is_named_exactly(seed: int) -> None:
    import random

    every = names_of(TransformerClassifier((1, 8, 8), 3, dim=8, depth=3, heads=2))
    mine = [name for name in every if random.Random(f"{seed}{name}").random() < 0.2 * (seed + 1)]
    found = few_patterns(mine, every)
    assert [name for name in every if any(fnmatchcase(name, pattern) for pattern in found)] == mine


def row(group: str, *names: str) -> GroupRow:
    return GroupRow(group, names, 1, False, 0.1, (0.1,), 0.0, "", ())


def test_weights_and_biases_of_a_layer_are_named_once() -> None:
    rows = [
        row("layer_0", "a.0.weight", "a.1.weight"),
        row("layer_0.no_decay", "a.0.bias", "a.1.bias"),
        row("decay", "b.weight"),
        row("no_decay", "b.bias", "c.bias"),
        row("head (frozen)", "head.weight"),
        row("head", "head.bias"),
    ]
    assert contents(rows) == [["a.*"], ["a.*"], ["b.*"], ["b.*", "c.bias"], ["head.weight"], ["head.bias"]]
