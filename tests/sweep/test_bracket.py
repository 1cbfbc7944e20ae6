from __future__ import annotations

import itertools
import math

import pytest

from lightkit.sweep.halving import Bracket


def at_first_rung(values: dict[str, float | None], **facts) -> Bracket:
    bracket = Bracket([*values], [1], **facts)
    for name, value in values.items():
        bracket.record(name, 1, value)
    return bracket


@pytest.mark.parametrize(
    ("values", "mode", "best"),
    [
        ([0.5, 0.7, 0.6], "max", "b"),
        ([0.5, 0.7, 0.6], "min", "a"),
        ([0.7, 0.5, 0.7], "max", "a"),
        ([math.nan, 0.1, None], "max", "b"),
        ([math.nan, math.inf, 0.1], "max", "c"),
        ([math.nan, None, None], "max", None),
    ],
)
def test_the_best_goes_on(values, mode, best):
    bracket = at_first_rung(dict(zip("abc", values)), mode=mode)
    assert [*bracket.wanted()] == ([(1, best)] if best else [])
    assert bracket.out() == [name for name in "abc" if name != best]


def test_one_in_eta_goes_on_and_at_least_one():
    for count, eta, left in ((9, 4, 2), (2, 3, 1), (1, 3, 1)):
        assert len([*at_first_rung({str(i): i for i in range(count)}, eta=eta).wanted()]) == left


@pytest.mark.parametrize("order", [*itertools.permutations(range(6))][::60])
def test_the_order_in_which_jobs_come_changes_nothing(order):
    bracket = Bracket("abcdef", [1, 2], eta=2)
    seen = set()
    for place in order:
        bracket.record("abcdef"[place], 1, place % 4)
        seen |= {name for rung, name in bracket.wanted() if rung == 1}
        assert seen <= {"d", "c", "b"}
        assert not seen & {*bracket.out()}
    assert seen == {"d", "c", "b"}
    assert sorted(bracket.out()) == ["a", "e", "f"]


def test_a_job_goes_on_early_only_where_nothing_can_overtake_it():
    bracket = Bracket("abcd", [1], eta=2)
    for name, value in (("a", 0.9), ("b", 0.8)):
        bracket.record(name, 1, value)
    assert {name for rung, name in bracket.wanted() if rung} == set()
    bracket.record("c", 1, 0.1)
    assert {name for rung, name in bracket.wanted() if rung} == {"a"}
    assert bracket.out() == ["c"]
    bracket.lose("d")
    assert {name for rung, name in bracket.wanted() if rung} == {"a", "b"}


def test_the_place_of_a_lost_job_is_nobodys():
    bracket = at_first_rung({"a": 1.0, "b": 0.5, "c": 0.1})
    bracket.lose("a")
    assert [*bracket.wanted()] == []
    assert bracket.out() == ["b", "c"]


def test_a_job_that_ended_early_stands_at_all_rungs():
    bracket = Bracket("abcd", [1, 3], eta=2)
    bracket.record("a", 1, 0.9, ended=True)
    for name, value in (("b", 0.8), ("c", 0.1), ("d", 0.2)):
        bracket.record(name, 1, value)
    assert [*bracket.wanted()] == [(1, "b")]
    bracket.record("b", 2, 0.85)
    assert [*bracket.wanted()] == []
    assert bracket.out() == ["c", "d", "b"]
    assert [stage.ranked for stage in bracket.stages()][-1] == ("a",)


def test_a_single_job_left_runs_to_its_end_at_once():
    bracket = Bracket("abc", [1, 3, 9])
    for name in "abc":
        bracket.record(name, 1, ord(name))
    assert [*bracket.wanted()] == [(3, "c")]


def test_jobs_that_were_left_out_stay_out_where_the_sweep_grows():
    bracket = Bracket("abcdef", [1], eta=3)
    bracket.leave_out(["b", "c"])
    for name, value in zip("abcdef", (0.9, 0.8, 0.7, 0.1, 0.2, 0.3)):
        bracket.record(name, 1, value)
    assert {name for _, name in bracket.wanted()} == {"a", "f"}


def test_jobs_that_went_on_before_the_sweep_grew_stay_in_the_race():
    bracket = Bracket("abcdef", [1, 3], eta=3)
    for name, value in zip("abcdef", (0.2, 0.1, 0.1, 0.5, 0.6, 0.4)):
        bracket.record(name, 1, value)
    bracket.record("a", 2, 0.7)
    assert {name for _, name in bracket.wanted()} == {"d", "e"}
    assert "a" not in bracket.out()
