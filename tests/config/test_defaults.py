from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.config.conftest import Write

Report = Callable[..., str]
HEAD = "# E.\ndefaults:\n"


WRONG = [
    ("overide /loss: mse", ["unknown word in a defaults list", "'overide'", "override, optional"]),
    ("override /lss: mse", ["there is no such group", "'lss'", "nearest: loss"]),
    ("override /loss: msee", ["loss: no such option", "'msee'", "ce"]),
    ("_slef_", ["there is no such file in experiment/", "nearest: _self_"]),
    ("optional overide /loss: mse", ["unknown word in a defaults list"]),
    ("/lss: mse", ["there is no such group"]),
    ("/experiment/nope", ["there is no such file in experiment/"]),
    ("{override /loss: mse, override /optim: sgd}", ["one `group: option`"]),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("entry", "said"), WRONG)
def test_mistakes_in_a_defaults_list(report: Report, write: Write, entry: str, said: list[str]) -> None:
    write("experiments/e.yaml", f"{HEAD}  - {entry}\n")
    text = report("experiment=e")
    assert all(part in text for part in (*said, "experiments/e.yaml:3"))


def test_all_of_them_at_once(report: Report, write: Write) -> None:
    wrong = [entry for entry, _ in WRONG if entry.startswith(("override", "overide", "_slef_"))]
    write("experiments/e.yaml", HEAD + "".join(f"  - {entry}\n" for entry in wrong))
    text = report("experiment=e", "trainer=defalt")
    for line, (entry, said) in enumerate([row for row in WRONG if row[0] in wrong], 3):
        assert all(part in text for part in said), entry
        assert f"experiments/e.yaml:{line}" in text
    assert "'defalt'" in text


def test_optional_entries_may_be_missing(toy: Path, write: Write, composed: Callable[..., object]) -> None:
    write("experiments/e.yaml", f"{HEAD}  - optional /loss/more: nothing\n  - override /loss: mse\nseed: 1\n")
    composed("experiment=e")


def test_an_override_of_a_group_nobody_chose(report: Report, write: Write) -> None:
    write("conf/spare/a.yaml", "x: 1\n")
    write("experiments/e.yaml", f"{HEAD}  - override /spare: a\n")
    assert "can't be composed: " in report("experiment=e")
    assert "spare" in report("spare=a")


# An experiment, and what the report must say about it.
BAD = [
    ("data: [1]\n", ["data: wrong type", "experiments/e.yaml:1", "expected: a mapping", "received: 'a list'"]),
    ("name: a\ndata:\n  split: [1]\n", ["data.split: wrong type", "experiments/e.yaml:3", "expected: a mapping"]),
    ("model:\n  hidden: {a: 1}\n", ["model.hidden: wrong type", "experiments/e.yaml:2", "expected: a list"]),
    ("- a\n", ["wrong type", "experiments/e.yaml:1", "expected: a mapping"]),
    ("seed: ${\n", ["seed: the interpolation can't be read", "experiments/e.yaml:1", "received: '${'"]),
    ("defaults:\n  - /optim: adam\n", ["experiments/e.yaml:2", "already", "fix:      - override /optim: adam"]),
    ("defaults:\n  - optim: adam\n", ["experiments/e.yaml:2", "fix:      - override /optim: adam"]),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("text", "said"), BAD)
def test_a_file_that_does_not_go_with_the_others(write: Write, report: Report, text: str, said: list[str]) -> None:
    write("experiments/e.yaml", text)
    found = report("experiment=e")
    for part in said:
        assert part in found
    assert "DictConfig" not in found
    assert "1 problem found" in found
