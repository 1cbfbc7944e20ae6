"""Plans for people: in later phases what changes, and in few patterns what each group holds."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from torch import nn

from lightkit.finetune.plan import contents, few_patterns, phase_cells
from lightkit.finetune.tables import GroupRow, PhaseTable
from lightkit.models import ResNet, TransformerClassifier


def row(group: str, *, trains: bool, rate: float = 0.1, norm: str = "", rule: str = "optim") -> GroupRow:
    return GroupRow(group, (f"{group}.weight",), 10, not trains, rate, (rate,), 0.01, norm, (rule,))


def gradual(*, rate_of_c: float = 0.1) -> list[PhaseTable]:
    """Four groups that begin to train one after the other, from the last."""
    names, tables = "abcd", []
    for phase, first in enumerate((3, 2, 1, 0)):
        groups = [
            row(
                name,
                trains=index >= first,
                rate=rate_of_c if name == "c" else 0.1,
                norm="train" if index >= first else "frozen",
                rule="finetune.head" if name == "d" else "optim",
            )
            for index, name in enumerate(names)
        ]
        tables.append(PhaseTable(f"epoch {phase}", (phase,), tuple(groups)))
    return tables


def test_later_phases_show_what_changes() -> None:
    rows = phase_cells(gradual())
    assert [line[:2] for line in rows] == [
        *[["epoch 0", "a"], ["", "b"], ["", "c"], ["", "d"]],
        *[["epoch 1", "2 groups as before"], ["", "c"], ["", "d"]],
        *[["epoch 2", "a"], ["", "b"], ["", "2 groups as before"]],
        *[["epoch 3", "a"], ["", "3 groups as before"]],
    ]
    assert [line[-1] for line in rows[:4]] == ["a.weight", "b.weight", "c.weight", "d.weight"]
    assert rows[4] == ["epoch 1", "2 groups as before", "2", "20", "no", "", "", "frozen", "optim", ""]
    assert rows[-1] == ["", "3 groups as before", "3", "30", "yes", "0.1", "0.01", "train", "optim, finetune.head", ""]


def test_groups_of_another_rate_stay_apart() -> None:
    assert [line[1] for line in phase_cells(gradual(rate_of_c=0.5))][-3:] == ["a", "2 groups as before", "c"]


def test_every_phase_has_all_its_parameters() -> None:
    tables, counts = gradual(), dict[str, int]()
    phase = ""
    for line in phase_cells(tables):
        phase = line[0] or phase
        counts[phase] = counts.get(phase, 0) + int(line[3])
    assert counts == {table.phase: 40 for table in tables}


def test_the_long_form_has_every_group() -> None:
    assert [line[1] for line in phase_cells(gradual(), long=True)] == [*"abcd"] * 4


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


def holding(group: str, *names: str) -> GroupRow:
    return GroupRow(group, names, 1, False, 0.1, (0.1,), 0.0, "", ())


def test_weights_and_biases_of_a_layer_are_named_once() -> None:
    rows = [
        holding("layer_0", "a.0.weight", "a.1.weight"),
        holding("layer_0.no_decay", "a.0.bias", "a.1.bias"),
        holding("decay", "b.weight"),
        holding("no_decay", "b.bias", "c.bias"),
        holding("head (frozen)", "head.weight"),
        holding("head", "head.bias"),
    ]
    assert contents(rows) == [["a.*"], ["a.*"], ["b.*"], ["b.*", "c.bias"], ["head.weight"], ["head.bias"]]
