from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lightkit.common.errors import UserErrors
from lightkit.config import compose, compose_jobs, to_yaml
from lightkit.config.compose import compose_with, make_loader
from lightkit.config.hydra_settings import fill_choices, job_environment
from tests.config.conftest import Write


def test_several_options_are_joined_by_commas() -> None:
    cfg = OmegaConf.create(
        {"lr": {"head,lora": 2}, "x": "${lr.${hydra:runtime.choices.finetune}}", "y": None, "z": "???", "w": "${lr}"}
    )
    fill_choices(cfg, {"finetune": "[head,lora]"})

    assert (cfg.x, cfg.y, cfg.w) == (2, None, {"head,lora": 2})
    assert OmegaConf.is_missing(cfg, "z")


def test_the_time_is_told_once(toy: Path, write: Write) -> None:
    loader = make_loader()
    loader.time = datetime(2026, 1, 31, 12, 30)
    write("experiments/e.yaml", "extra:\n  at: ${now:%Y-%m-%d}/${now:%H-%M}\n  plain: \\${now:%Y}\n")
    cfg = compose_with(loader, ["experiment=e", "name=run-${now:%Y}"]).cfg
    assert (cfg.name, cfg.extra.at, cfg.extra.plain) == ("run-2026", "2026-01-31/12-30", "${now:%Y}")
    assert "run-2026" in to_yaml(cfg)
    assert "now:" not in to_yaml(cfg).replace("plain: ${now:%Y}", "")


def test_values_of_hydra_are_filled_in(toy: Path) -> None:
    cfg = compose(["extra.cwd=${hydra:runtime.cwd}", "extra.file=a-${hydra:job.config_name}"]).cfg
    assert (cfg.extra.cwd, cfg.extra.file) == (str(toy), "a-config")


def test_jobs_have_numbers(toy: Path) -> None:
    jobs = compose_jobs(["optim=sgd,adam", "extra.n=${hydra:job.num}", "name=j${hydra:job.num}", "seed=1"])
    assert [(job.cfg.extra.n, job.cfg.name) for job in jobs] == [(0, "j0"), (1, "j1")]


def test_the_name_of_overrides_is_that_of_what_was_typed(toy: Path) -> None:
    own = "hydra.job.config.override_dirname.exclude_keys=[extra.d]"
    jobs = compose_jobs(["optim=sgd,adam", "+optim.lr=0.5", "extra.d=${hydra:job.override_dirname}", own])
    assert [job.cfg.extra.d for job in jobs] == ["optim.lr=0.5,optim=sgd", "optim.lr=0.5,optim=adam"]
    assert jobs[0].overrides[2:] == ["extra.d=${hydra:job.override_dirname}", own]  # no more escaped than typed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${hydra:job.num}", "jobs have numbers: add -m"),
        ("${hydra:runtime.output_dir}", "its folder, which is chosen later"),
        ("a-${hydra:job.override_dirname}", "exclude_keys"),
        ("${hydra:nothing}", "Hydra has no such value here"),
    ],
)
def test_what_hydra_does_not_know(toy: Path, text: str, said: str) -> None:
    with pytest.raises(UserErrors, match=r"extra\.x: the interpolation can't be resolved") as caught:
        compose([f"extra.x='{text}'"])
    assert said in str(caught.value)


def test_the_environment_of_a_run(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    whole = compose(["hydra.job.env_set.N='x${hydra:job.config_name}'", "hydra.job.env_copy=[TOKEN]"]).hydra_cfg
    assert whole is not None
    assert job_environment(whole) == {"N": "xconfig", "TOKEN": "secret"}
    with pytest.raises(UserErrors, match=r"hydra\.job\.env_copy: 'NOT_THERE' is not set in the environment"):
        compose(["hydra.job.env_copy=[NOT_THERE]"])
