from __future__ import annotations

import pytest

from lightkit.common.errors import UserError, UserErrors


def test_every_known_fact_has_its_own_line() -> None:
    error = UserError(
        "no such optimizer",
        key="optim.name",
        expected="a name",
        received="sdg",
        choices=["sgd", "adam"],
        fix="optim.name=sgd",
        origin="conf/optim/x.yaml:3",
    )
    assert str(error).splitlines() == [
        "optim.name: no such optimizer",
        "    at:       conf/optim/x.yaml:3",
        "    expected: a name",
        "    received: 'sdg'",
        "    choices:  sgd, adam (nearest: sgd)",
        "    fix:      optim.name=sgd",
    ]


def test_unknown_facts_take_no_line_but_falsy_values_do() -> None:
    assert str(UserError("wrong")) == "wrong"
    assert "received: 0" in str(UserError("wrong", received=0))


def test_many_choices_are_cut_and_counted() -> None:
    text = str(UserError("wrong", choices=[f"name{i}" for i in range(30)], received="zzz"))
    assert "name19" in text
    assert "name20" not in text
    assert "30 in all" in text
    text = str(UserError("wrong", choices=[f"name{i}" for i in range(300)], received="name299"))
    assert "choices:  300 in all (nearest: name299, " in text
    assert "name0" not in text


def test_several_problems_are_one_report() -> None:
    report = UserErrors([UserError("a"), UserError("b")])
    assert str(report) == "a\n\nb\n\n2 problems found"
    assert report.exit_code == 2


def test_it_is_a_plain_value_error_in_a_notebook() -> None:
    with pytest.raises(ValueError, match="wrong"):
        raise UserError("wrong")
