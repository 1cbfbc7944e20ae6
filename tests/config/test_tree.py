"""Problems with their places, and values that rules can read."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError

from lightkit.common.argument_checks import Range
from lightkit.common.errors import UserError
from lightkit.common.text import forget, without_secrets
from lightkit.config.origins import Sources
from lightkit.config.tree import Node, Report, Silent, UnusableError, watch_environment


def test_a_problem_is_known_at_its_key_and_above() -> None:
    report = Report(Sources())
    report.add(("data", "augment", 0, "size"), "wrong")
    assert report.has(("data",))
    assert report.has(("data", "augment", 0, "size"))
    assert not report.has(("data", "augment", 1))
    assert [error.key for error in report.errors] == ["data.augment[0].size"]


def test_an_error_of_others_keeps_what_it_says() -> None:
    report = Report(Sources())
    report.take(UserError("no such column", key="data.dataset.target", received="a", choices=["b"]))
    assert report.has(("data", "dataset", "target"))
    assert (report.errors[0].received, report.errors[0].choices) == ("a", ("b",))


def test_numbers_out_of_their_range_are_noted() -> None:
    report = Report(Sources())
    allowed = Range(above=0, instead_of_zero="freeze it")
    for value in (1, 0.5, True, "text", None):
        assert report.check_range(value, ("a",), allowed)
    assert report.check_range(-1, ("a",), None)
    assert not report.check_range(0, ("a",), allowed)
    assert not report.check_range(float("inf"), ("b",), allowed)
    assert [(error.fix, error.expected) for error in report.errors] == [
        ("freeze it", "a number above 0"),
        (None, "a number above 0, and finite"),
    ]


def test_a_silent_report_drops_what_it_is_told() -> None:
    report = Silent()
    report.add(("a",), "wrong")
    assert report.errors == []


def test_reading_a_value_with_a_problem_ends_a_rule() -> None:
    node = Node(epochs=3)
    assert node.epochs == 3
    assert getattr(node, "steps", None) is None
    with pytest.raises(UnusableError):
        _ = node.steps


def test_what_a_configuration_reads_is_noted_and_no_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watch_environment()
    forget()
    monkeypatch.setenv("LK_TOKEN", "hunter2-0b5f3a")
    monkeypatch.delenv("LK_NONE", raising=False)
    cfg = OmegaConf.create(
        {"a": "${oc.env:LK_TOKEN}", "b": "${oc.env:LK_NONE,by-default}", "c": "${oc.env:LK_NONE}", "d": "x${.a}"}
    )
    assert without_secrets("hunter2-0b5f3a") == "hunter2-0b5f3a"
    assert (cfg.d, cfg.b) == ("xhunter2-0b5f3a", "by-default")
    assert without_secrets("hunter2-0b5f3a, by-default") == "${oc.env:LK_TOKEN}, by-default"
    with pytest.raises(InterpolationResolutionError, match="LK_NONE"):
        _ = cfg.c
    forget()
