from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.config.conftest import Write

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
def test_mistakes_in_a_defaults_list(report: Callable[..., str], write: Write, entry: str, said: list[str]) -> None:
    write("experiments/e.yaml", f"{HEAD}  - {entry}\n")
    text = report("experiment=e")
    for part in said:
        assert part in text
    assert "experiments/e.yaml:3" in text


def test_all_of_them_at_once(report: Callable[..., str], write: Write) -> None:
    write("experiments/e.yaml", f"{HEAD}  - override /loss: msee\n  - override /optm: sgd\n  - override /model: nett\n")
    text = report("experiment=e", "trainer=defalt")
    for part in ("'msee'", "'optm'", "'nett'", "'defalt'", "e.yaml:3", "e.yaml:4", "e.yaml:5"):
        assert part in text


def test_optional_entries_may_be_missing(toy: Path, write: Write, composed: Callable[..., object]) -> None:
    write("experiments/e.yaml", f"{HEAD}  - optional /loss/more: nothing\n  - override /loss: mse\nseed: 1\n")
    composed("experiment=e")


def test_an_override_of_a_group_nobody_chose(report: Callable[..., str], write: Write) -> None:
    write("conf/spare/a.yaml", "x: 1\n")
    write("experiments/e.yaml", f"{HEAD}  - override /spare: a\n")
    assert "can't be composed: " in report("experiment=e")
    assert "spare" in report("spare=a")
