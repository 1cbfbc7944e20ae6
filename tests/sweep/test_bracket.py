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


CASES = """
# A job goes on early only where nothing can overtake it
abcd [1] 2 ; 1: a=.9 b=.8 ; ;
abcd [1] 2 ; 1: a=.9 b=.8 c=.1 ; 1a ; c
abcd [1] 2 ; 1: a=.9 b=.8 c=.1 lost: d ; 1a 1b ; c
# The place of a lost job is nobody's
abc [1] 3 ; 1: a=1 b=.5 c=.1 lost: a ; ; b c
# A job that ended early stands at all rungs
abcd [1,3] 2 ; ended: a=.9 1: b=.8 c=.1 d=.2 ; 1b ; c d
abcd [1,3] 2 ; ended: a=.9 1: b=.8 c=.1 d=.2 2: b=.85 ; ; c d b
# A single job that is left runs to its end at once
abc [1,3,9] 3 ; 1: a=1 b=2 c=3 ; 3c ; a b
# Jobs that were left out stay out where the sweep grows, and those that went on before it grew stay in the race
abcdef [1] 3 ; out: b c 1: a=.9 b=.8 c=.7 d=.1 e=.2 f=.3 ; 1a 1f ; b c d e
abcdef [1,3] 3 ; 1: a=.2 b=.1 c=.1 d=.5 e=.6 f=.4 2: a=.7 ; 1d 1e ; b c f
"""
"""Jobs, rungs and eta; what is recorded at a rung, lost or left out; what is wanted then, and what is out."""


@pytest.mark.parametrize("case", [line for line in CASES.split("\n") if ";" in line])
def test_who_goes_on(case):
    start, events, wanted, out = [part.split() for part in case.split(";")]
    bracket, kind = Bracket(start[0], eval(start[1]), eta=int(start[2])), ""
    for word in events:
        name, _, value = word.partition("=")
        if word.endswith(":"):
            kind = word[:-1]
        elif kind in ("lost", "out"):
            bracket.lose(word) if kind == "lost" else bracket.leave_out([word])
        else:
            bracket.record(name, 1 if kind == "ended" else int(kind), float(value), ended=kind == "ended")
    assert {f"{rung}{name}" for rung, name in bracket.wanted() if rung} == {*wanted}
    assert {*bracket.out()} == {*out}
