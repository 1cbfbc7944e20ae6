"""What an error says, its family and its status; and that every name and number of one in the source is known."""

from __future__ import annotations

import ast
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import lightkit
from lightkit.common import errors
from lightkit.common.errors import (
    FAMILIES,
    Problems,
    UserError,
    UserErrors,
    family_named,
    keys_under,
    of_process,
    of_signal,
)

PACKAGE = Path(lightkit.__file__).parent
CODES = {name: code for name, code in vars(errors).items() if name[0].isupper() and isinstance(code, int)}


def constants(argument: str) -> Iterator[tuple[str, object]]:
    """Every constant in the source that is given as this argument, and its place."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if argument in text else ():  # parsing takes long
            if isinstance(node, ast.keyword) and node.arg == argument and isinstance(node.value, ast.Constant):
                yield f"{path.relative_to(PACKAGE)}:{node.value.lineno}", node.value.value


def test_every_known_fact_has_its_own_line() -> None:
    facts = {"expected": "a name", "received": "sdg", "choices": ["sgd", "adam"], "fix": "optim.name=sgd"}
    assert str(
        UserError("no such optimizer", key="optim.name", origin="conf/optim/x.yaml:3", **facts)
    ).splitlines() == [
        "optim.name: no such optimizer",
        "    at:       conf/optim/x.yaml:3",
        "    expected: a name",
        "    received: 'sdg'",
        "    choices:  sgd, adam (nearest: sgd)",
        "    fix:      optim.name=sgd",
    ]
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


def test_an_argument_is_named_by_itself_and_by_its_key_once_a_caller_knows_it() -> None:
    error = UserError("not a share", argument="gamma", received=2.0)
    assert str(error).startswith("gamma: not a share\n")
    with pytest.raises(UserError, match=r"\Ascheduler\.gamma: not a share\n"), keys_under("scheduler"):
        raise error
    assert error.key == "scheduler.gamma"
    assert str(UserError("there is one class only", argument="")) == "there is one class only"
    for wrong, said in (
        (UserError("one class", argument=""), r"data: one class"),
        (UserError("wrong", argument="b", key="a"), r"a: wrong"),
        (UserError("wrong"), r"wrong"),
        (UserErrors([UserError("x", argument="a"), UserError("y", key="k")]), r"data.a: x\n\nk: y\n\n2 problems found"),
    ):
        with pytest.raises(UserError, match=rf"\A{said}\Z"), keys_under("other"), keys_under("data"):
            raise wrong


def test_problems_are_collected_and_raised_as_one() -> None:
    problems = Problems()
    problems.raise_any()
    with problems.noted():
        raise UserError("a", argument="x")
    with pytest.raises(ValueError, match="^x: a$"):
        problems.raise_any()
    with problems.noted():
        raise UserErrors([UserError("b"), UserError("c")])
    with pytest.raises(UserErrors, match=r"x: a\n\nb\n\nc\n\n3 problems found") as caught:
        problems.raise_any()
    assert caught.value.exit_code == 2


def test_families_have_codes_and_the_source_names_no_other() -> None:
    assert len({family.code for family in FAMILIES}) == len({family.slug for family in FAMILIES}) == len(FAMILIES)
    assert [family.code for family in FAMILIES] == sorted(family.code for family in FAMILIES)
    assert all(re.fullmatch(r"LK[1-5]\d\d", family.code) for family in FAMILIES)
    assert {slug for _, slug in constants("family")} - {None} <= {family.slug for family in FAMILIES}


USUAL = """
WRONG_INPUT wrong-value: - optim.lr database
WRONG_INPUT data-setting: data.batch_size data
WRONG_INPUT split: data.split.val
WRONG_INPUT model-misfit: model
WRONG_INPUT loss-or-metric: metrics.monitor
WRONG_INPUT finetuning: finetune.freeze
WRONG_INPUT weights: finetune.weights.path
WRONG_INPUT device-setting: device.precision
WRONG_INPUT wrong-command: --split
WRONG_INPUT file: some/folder
UNREADABLE checkpoint-unreadable: some/folder
NOT_FINITE not-finite: model
OUT_OF_MEMORY out-of-memory: -
AUDIT_FAILED audit-failed: -
LOST_RANK lost-process: -
FAILED process-failed: -
"""


def test_an_error_without_a_family_goes_by_status_and_key() -> None:
    for line in USUAL.strip().splitlines():
        status, slug, *keys = line.replace(":", "").split()
        for key in keys:
            error = UserError("wrong", key=None if key == "-" else key, exit_code=CODES[status])
            assert error.families == (family_named(slug),), line
    assert UserError("x", key="lightkit train").families == (family_named("wrong-command"),)
    assert UserError("x", key="data", family="unknown-key").families == (family_named("unknown-key"),)
    with pytest.raises(UserError) as caught, keys_under("data.split"):
        raise UserError("not a share", argument="val")
    assert caught.value.families == (family_named("split"),)
    errors = UserErrors([UserError("a", key="model"), UserError("b", key="optim.lr"), UserError("c", key="model")])
    assert [family.slug for family in errors.families] == ["model-misfit", "wrong-value"]


def test_each_status_has_one_name_and_a_line_in_the_manual() -> None:
    assert len({*CODES.values()}) == len(CODES)
    assert [*constants("exit_code")] == []
    table = (PACKAGE.parent / "docs" / "reference" / "exit-status.md").read_text(encoding="utf-8")
    cells = [cell for line in re.findall(r"^\| ([\d, +n]+) \|", table, re.M) for cell in line.split(", ")]
    by_signal = {of_signal(number) for number in signal.Signals} - {errors.INTERRUPTED}
    assert sorted(int(cell) for cell in cells if cell.isdecimal()) == sorted(set(CODES.values()) - by_signal)
    assert (of_signal(signal.SIGINT), of_signal(signal.SIGPIPE)) == (errors.INTERRUPTED, errors.BROKEN_PIPE)
    assert [of_process(code) for code in (0, 3, -9, 130)] == [0, 3, 137, 130]
