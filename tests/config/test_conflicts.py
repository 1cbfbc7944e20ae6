"""Files that do not go together: the reports name a key, a line and the way out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.config.conftest import Write

Report = Callable[..., str]

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


def test_a_cycle_gets_no_hint(write: Write, report: Report) -> None:
    write("experiments/e.yaml", "extra:\n  a: ${extra.b}\n  b: ${extra.a}\n")
    assert "did you mean" not in report("experiment=e")
