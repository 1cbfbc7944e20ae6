"""Every shipped option and every experiment composes and passes the check, from any folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserErrors
from lightkit.config import Composed, compose
from lightkit.config.describe import first_comment
from lightkit.config.experiments import experiment_names
from lightkit.config.project import shipped_conf, shipped_experiments
from lightkit.config.schema import Config

CONF = shipped_conf()
FILES = sorted(path for path in CONF.glob("*/**/*.yaml") if not path.name.startswith("_"))
EXPERIMENTS = sorted(experiment_names(shipped_experiments()))
TO_BE_GIVEN = "a value is missing"


def choice(path: Path) -> str:
    group, _, option = path.relative_to(CONF).with_suffix("").as_posix().partition("/")
    return f"{group}={option}"


def composed_but_for_blanks(overrides: list[str]) -> Composed | None:
    """The configuration, or None when nothing but values for the user to give is missing."""
    try:
        return compose(overrides)
    except UserErrors as report:
        others = [error for error in report.errors if error.what != TO_BE_GIVEN]
        assert not others, "\n\n".join(map(str, others))
        return None


@pytest.mark.parametrize("path", FILES, ids=choice)
def test_every_option_composes(project: Path, path: Path) -> None:
    composed = composed_but_for_blanks([choice(path)])
    assert composed is not None or "???" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=choice)
def test_every_option_says_what_it_is(path: Path) -> None:
    comment = first_comment(path)
    assert comment, f"{path} starts with no comment"
    assert "???" not in comment


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes(project: Path, name: str) -> None:
    assert composed_but_for_blanks([f"experiment={name}"]) is not None


def test_the_default_run_needs_nothing(project: Path) -> None:
    assert compose([]).choices.keys() >= {*Config.__dataclass_fields__} - {"name", "seed", "trust", "extra"}


def test_every_group_of_the_schema_has_options() -> None:
    groups = {path.parent.name for path in FILES}
    assert groups >= {*Config.__dataclass_fields__} - {"name", "seed", "trust", "extra"}


def test_a_data_set_brings_loss_and_metrics_and_both_can_be_changed(project: Path) -> None:
    plain, changed = compose(["data=diabetes"]), compose(["data=diabetes", "loss=l1"])
    assert plain.choices["metrics@_global_.metrics" if "metrics@_global_.metrics" in plain.choices else "metrics"]
    assert plain.cfg.loss._target_ != changed.cfg.loss._target_
    assert changed.cfg.metrics == plain.cfg.metrics
