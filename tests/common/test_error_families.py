"""The families of errors: their codes, the rule for errors that name none, and that every name in the source is one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import lightkit
from lightkit.common.errors import FAMILIES, UserError, UserErrors, family_named, keys_under, usual_family
from lightkit.common.exit_codes import (
    AUDIT_FAILED,
    FAILED,
    LOST_RANK,
    NOT_FINITE,
    OUT_OF_MEMORY,
    UNREADABLE,
    WRONG_INPUT,
)

PACKAGE = Path(lightkit.__file__).parent


def test_codes_and_names_are_unique() -> None:
    assert len({family.code for family in FAMILIES}) == len({family.slug for family in FAMILIES}) == len(FAMILIES)
    assert [family.code for family in FAMILIES] == sorted(family.code for family in FAMILIES)
    assert all(re.fullmatch(r"LK[1-5]\d\d", family.code) for family in FAMILIES)


def test_every_family_that_the_source_names_is_one() -> None:
    found = {
        node.value.value
        for path in PACKAGE.rglob("*.py")
        if "family" in (text := path.read_text(encoding="utf-8"))  # parsing takes long
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.keyword) and node.arg == "family" and isinstance(node.value, ast.Constant)
    }
    assert found - {None} <= {family.slug for family in FAMILIES}


@pytest.mark.parametrize(
    ("key", "status", "slug"),
    [
        (None, WRONG_INPUT, "wrong-value"),
        ("optim.lr", WRONG_INPUT, "wrong-value"),
        ("data.batch_size", WRONG_INPUT, "data-setting"),
        ("data", WRONG_INPUT, "data-setting"),
        ("data.split.val", WRONG_INPUT, "split"),
        ("database", WRONG_INPUT, "wrong-value"),
        ("model", WRONG_INPUT, "model-misfit"),
        ("metrics.monitor", WRONG_INPUT, "loss-or-metric"),
        ("finetune.freeze", WRONG_INPUT, "finetuning"),
        ("finetune.weights.path", WRONG_INPUT, "weights"),
        ("device.precision", WRONG_INPUT, "device-setting"),
        ("lightkit train", WRONG_INPUT, "wrong-command"),
        ("--split", WRONG_INPUT, "wrong-command"),
        ("some/folder", WRONG_INPUT, "file"),
        ("some/folder", UNREADABLE, "checkpoint-unreadable"),
        ("model", NOT_FINITE, "not-finite"),
        (None, OUT_OF_MEMORY, "out-of-memory"),
        (None, AUDIT_FAILED, "audit-failed"),
        (None, LOST_RANK, "lost-process"),
        (None, FAILED, "process-failed"),
    ],
)
def test_an_error_without_a_family_goes_by_status_and_key(key: str | None, status: int, slug: str) -> None:
    assert usual_family(key, status) == family_named(slug)
    assert UserError("wrong", key=key, exit_code=status).families == (family_named(slug),)


def test_a_family_that_is_named_counts_more() -> None:
    error = UserError("no such column", key="data.dataset.target", family="unknown-key")
    assert error.families == (family_named("unknown-key"),)


def test_the_family_follows_from_a_key_that_is_added_later() -> None:
    with pytest.raises(UserError) as caught, keys_under("data.split"):
        raise UserError("not a share", argument="val")
    assert caught.value.families == (family_named("split"),)


def test_several_mistakes_name_each_family_once() -> None:
    errors = UserErrors([UserError("a", key="model"), UserError("b", key="optim.lr"), UserError("c", key="model")])
    assert [family.slug for family in errors.families] == ["model-misfit", "wrong-value"]


def test_the_text_of_an_error_says_nothing_of_its_family() -> None:
    assert str(UserError("wrong", key="model")) == "model: wrong"
