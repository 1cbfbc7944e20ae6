from __future__ import annotations

import pytest

from lightkit.common.errors import Problems, UserError, UserErrors, keys_under


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


def test_an_argument_is_named_by_itself_and_by_its_key_once_a_caller_knows_it() -> None:
    error = UserError("not a share", argument="gamma", received=2.0)
    assert str(error).startswith("gamma: not a share\n")
    with pytest.raises(UserError, match=r"\Ascheduler\.gamma: not a share\n") as caught, keys_under("scheduler"):
        raise error
    assert caught.value is error
    assert error.key == "scheduler.gamma"


def test_what_is_wrong_as_a_whole_gets_the_key_of_its_node() -> None:
    error = UserError("there is one class only", argument="")
    assert str(error) == "there is one class only"
    with pytest.raises(UserError, match=r"\Adata\.dataset: there is one class only\Z"), keys_under("data.dataset"):
        raise error


def test_a_key_that_is_named_already_stays() -> None:
    with pytest.raises(UserError, match=r"\Aa\.b: wrong\Z"), keys_under("c"), keys_under("a"):
        raise UserError("wrong", argument="b")
    with pytest.raises(UserError, match=r"\Afile\.csv: wrong\Z"), keys_under("data"):
        raise UserError("wrong", key="file.csv")
    with pytest.raises(UserError, match=r"\Awrong\Z"), keys_under("data"):
        raise UserError("wrong")


def test_each_problem_of_a_report_gets_its_key() -> None:
    report = UserErrors([UserError("x", argument="a"), UserError("y", key="k")])
    with pytest.raises(UserErrors, match=r"\Adata\.a: x\n\nk: y\n\n2 problems found\Z"), keys_under("data"):
        raise report


def test_problems_are_collected_and_raised_as_one() -> None:
    problems = Problems()
    problems.raise_any()
    with problems.noted():
        raise UserError("a", argument="x")
    with pytest.raises(UserError, match="^x: a$"):
        problems.raise_any()
    with problems.noted():
        raise UserErrors([UserError("b"), UserError("c")])
    with pytest.raises(UserErrors, match=r"x: a\n\nb\n\nc\n\n3 problems found"):
        problems.raise_any()
