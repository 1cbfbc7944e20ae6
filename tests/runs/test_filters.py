from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.runs.filters import Condition, direction_of, matching, order, read_statuses
from lightkit.runs.index import read_record
from lightkit.runs.record import RunRecord
from tests.compare.made import a_run


@pytest.fixture
def runs(tmp_path: Path) -> list[RunRecord]:
    made = [
        a_run(tmp_path / "a", lr=0.1, val=0.5),
        a_run(tmp_path / "b", lr=0.001, seed=1, val=0.9, status="failed"),
        a_run(tmp_path / "c", lr=0.01, seed=2, val=None),
    ]
    return [read_record(folder) for folder in made]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("optim.lr>0.01", "a"),
        ("optim.lr >= 1e-2", "ac"),
        ("optim.lr<0.01", "b"),
        ("optim.lr=0.10", "a"),
        ("optim.lr!=0.1", "bc"),
        ("model.hidden=[8]", "abc"),
        ("model~*MLP", "abc"),
        ("model=MLP", "abc"),
        ("name~[ab]", "ab"),
        ("name~re:^b", "b"),
        ("val/accuracy>0.6", "b"),
        ("val/accuracy!=7", "ab"),  # a run without the key never matches
        ("status=unfinished", "c"),
        ("seed=1", "b"),
    ],
)
def test_conditions(runs: list[RunRecord], text: str, names: str) -> None:
    assert "".join(run.name for run in matching(runs, conditions=[Condition.parse(text)])) == names


def test_statuses(runs: list[RunRecord]) -> None:
    assert [run.name for run in matching(runs, statuses=read_statuses("failed,unfinished"))] == ["b", "c"]
    with pytest.raises(UserError, match=r"(?s)--status: no such status.*nearest: finished"):
        read_statuses("finish")


def test_what_is_no_condition() -> None:
    wrong = {
        "optim.lr": "not a condition",
        "optim.lr>fast": "compares numbers",
        "name~re:(": "not a regular expression",
    }
    for text, what in wrong.items():
        with pytest.raises(UserError, match=what):
            Condition.parse(text)


def test_an_unknown_key_names_the_nearest(runs: list[RunRecord]) -> None:
    with pytest.raises(UserError, match=r"(?s)--where: no run has this key.*nearest: optim.lr"):
        matching(runs, conditions=[Condition.parse("optim.learning_rate>1")])
    with pytest.raises(UserError, match=r"(?s)--sort: no run has this key.*val/accuracy"):
        order(runs, "val/acuracy", lambda _: None)
    assert matching([], conditions=[Condition.parse("anything>1")]) == []


def test_order(runs: list[RunRecord]) -> None:
    def names(key: str) -> str:
        return "".join(run.name for run in order(runs, key, lambda name: direction_of(name, runs)))

    assert [names(key) for key in ("val/accuracy", "-val/accuracy", "optim.lr", "-optim.lr", "name", "best")] == [
        "bac", "abc", "bca", "acb", "abc", "bac",
    ]  # fmt: skip


def test_directions(runs: list[RunRecord]) -> None:
    assert (direction_of("best", runs), direction_of("test/loss", runs), direction_of("optim.lr", runs)) == (
        "max", "min", None,
    )  # fmt: skip
