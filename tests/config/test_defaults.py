from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.common.errors import UserErrors
from lightkit.config import compose
from tests.config.conftest import Write

Report = Callable[..., str]
HEAD = "# E.\ndefaults:\n"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("overide /loss: mse", ["unknown word in a defaults list", "'overide'", "override, optional"]),
        ("optinal /loss: mse", ["unknown word in a defaults list", "nearest: optional"]),
        ("optional overide /loss: mse", ["unknown word in a defaults list"]),
        ("override /lss: mse", ["there is no such group", "'lss'", "nearest: loss"]),
        ("/lss: mse", ["there is no such group"]),
        ("override /loss: msee", ["loss: no such option", "'msee'", "ce"]),
        ("/experiment/nope", ["there is no such file in experiment/"]),
        ("_slef_", ["there is no such file in experiment/", "nearest: _self_"]),
        ("{override /loss: mse, override /optim: sgd}", ["one `group: option`"]),
    ],
)
def test_mistakes_in_a_defaults_list(report: Report, write: Write, entry: str, said: list[str]) -> None:
    write("experiments/e.yaml", f"{HEAD}  - {entry}\n")
    text = report("experiment=e")
    for part in said:
        assert part in text
    assert "experiments/e.yaml:3" in text


def test_all_of_them_at_once(report: Report, write: Write) -> None:
    write("experiments/e.yaml", f"{HEAD}  - override /loss: msee\n  - override /optm: sgd\n  - override /model: nett\n")
    text = report("experiment=e", "trainer=defalt")
    for part in ("'msee'", "'optm'", "'nett'", "'defalt'", "e.yaml:3", "e.yaml:4", "e.yaml:5"):
        assert part in text


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


def test_a_cycle_gets_no_hint(write: Write, report: Report) -> None:
    write("experiments/e.yaml", "extra:\n  a: ${extra.b}\n  b: ${extra.a}\n")
    assert "did you mean" not in report("experiment=e")


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("sweep=optuna", "hydra/sweeper=optuna"),
        ("sweep=slurm", "sweep.engine=slurm"),
        ("sweep=ray", "sweep.engine=ray"),
        ("sweep=local", "sweep.engine=local"),
        ("sweep=hyperband", "sweep.halving.method=hyperband"),
        ("launcher=submitit", "sweep.engine=slurm"),
        ("sweeper=optuna", "hydra/sweeper=optuna"),
        ("launcher=vectorized", "hydra/launcher=vectorized"),
    ],
)
def test_what_a_sweep_is_asked_for_by_another_name(typed: str, fix: str) -> None:
    with pytest.raises(UserErrors, match=f"fix:      {fix}\n"):
        compose([typed])
