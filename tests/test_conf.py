"""Every shipped option and every experiment composes and passes the check, from any folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml

from lightkit.common.errors import UserErrors
from lightkit.config import Composed, compose, to_plain
from lightkit.config.describe import first_comment
from lightkit.config.fields import defaults_of, field_types
from lightkit.config.missing import EXTRAS
from lightkit.config.pages import PAGES, page
from lightkit.config.project import shipped_conf, shipped_experiments
from lightkit.config.schema import Config
from lightkit.config.schema.finetune import FinetuneConfig
from lightkit.config.sources import experiment_names

CONF = shipped_conf()
FILES = sorted(path for path in CONF.glob("*/**/*.yaml") if not path.name.startswith("_"))
EXPERIMENTS = sorted(experiment_names(shipped_experiments()))
TO_BE_GIVEN = "a value is missing"
TO_BE_INSTALLED = "which is not installed"
PRESETS = sorted(path.stem for path in FILES if path.parent.name == "finetune")


def choice(path: Path) -> str:
    group, _, option = path.relative_to(CONF).with_suffix("").as_posix().rpartition("/")
    return f"{group}={option}"


def composed_but_for_blanks(overrides: list[str]) -> Composed | None:
    """The configuration, or None when nothing but values for the user to give, or an extra, is missing."""
    try:
        return compose(overrides)
    except UserErrors as report:
        others = [error for error in report.errors if error.what != TO_BE_GIVEN and TO_BE_INSTALLED not in error.what]
        assert not others, "\n\n".join(map(str, others))
        return None


@pytest.mark.thorough
@pytest.mark.parametrize("path", FILES, ids=choice)
def test_every_option_composes(project: Path, path: Path) -> None:
    composed = composed_but_for_blanks([choice(path)])
    text = path.read_text(encoding="utf-8")
    named = (name for name in EXTRAS if name == path.stem or f"_target_: {name}." in text)
    is_extra = any(importlib.util.find_spec(name) is None for name in named)
    assert composed is not None or is_extra or "???" in text


def test_every_option_says_what_it_is() -> None:
    comments = {choice(path): first_comment(path) for path in FILES}
    assert not [name for name, comment in comments.items() if not comment or "???" in comment]


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes(project: Path, name: str) -> None:
    assert composed_but_for_blanks([f"experiment={name}"]) is not None


def test_the_default_run_needs_nothing(project: Path) -> None:
    assert compose([]).choices.keys() >= {*field_types(Config)} - {
        "name",
        "seed",
        "profile",
        "on_end",
        "trust",
        "extra",
    }


def test_a_data_set_brings_loss_and_metrics_and_both_can_be_changed(project: Path) -> None:
    plain, changed = compose(["data=diabetes"]), compose(["data=diabetes", "loss=l1"])
    assert plain.choices["metrics@_global_.metrics" if "metrics@_global_.metrics" in plain.choices else "metrics"]
    assert plain.cfg.loss._target_ != changed.cfg.loss._target_
    assert changed.cfg.metrics == plain.cfg.metrics


def test_the_presets_of_fine_tuning_are_all_there() -> None:
    wanted = "none full head freeze probe gradual discriminative lora adapter prefix bitfit norm peft"
    assert sorted(wanted.split()) == PRESETS


@pytest.mark.parametrize("name", PAGES)
def test_what_the_schema_says_is_what_make_conf_writes(name: str) -> None:
    written = (CONF / f"{name}.yaml").read_text(encoding="utf-8")
    assert written == page(name), "`make conf` writes it anew"
    assert max(map(len, written.splitlines())) <= 120


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_in_full_what_trains(name: str) -> None:
    written = yaml.safe_load((CONF / f"finetune/{name}.yaml").read_text(encoding="utf-8"))
    assert ("freeze" in written) == ("train" in written) == (name not in ("none", "discriminative"))
    if written.get("freeze") == ["*"]:
        assert "@head" in written["train"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names", ["head,lora", "lora,adapter,prefix", "lora,norm", "gradual,discriminative", "probe,prefix", "lora,full"]
)
def test_presets_combine(project: Path, names: str) -> None:
    cfg = to_plain(compose([f"finetune=[{names}]"]).cfg.finetune)
    last = yaml.safe_load((CONF / f"finetune/{names.rpartition(',')[2]}.yaml").read_text(encoding="utf-8"))
    assert all(cfg[key] == value for key, value in last.items() if isinstance(value, list))
    for name in names.split(","):
        written = yaml.safe_load((CONF / f"finetune/{name}.yaml").read_text(encoding="utf-8"))
        parts = {key: value for key, value in written.items() if isinstance(value, dict)}
        assert all(cfg[key][inner] for key, value in parts.items() for inner in value)


def test_without_a_preset_nothing_is_fine_tuned(project: Path) -> None:
    assert to_plain(compose([]).cfg.finetune) == defaults_of(FinetuneConfig)
