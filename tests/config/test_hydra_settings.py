from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from lightkit.common.errors import UserErrors
from lightkit.config import compose, compose_jobs, to_yaml
from lightkit.config.compose import compose_with
from lightkit.config.hydra_settings import SETTINGS, fill_choices, job_environment, setting_of
from lightkit.config.loader import make_loader
from lightkit.config.origins import dotted
from tests.config.conftest import Write

HOLDS = {"mode", "searchpath", "run", "sweep", "sweeper", "launcher", "hydra_help", "env", "output"}
HOLDS |= {"job.env_set", "job.env_copy", "job.config"}


def leaves(node: DictConfig, above: tuple[str, ...] = ()) -> list[str]:
    found = []
    for name in node:
        child = node._get_node(name)
        key = (*above, str(name))
        is_node = isinstance(child, DictConfig) and not child._is_none() and not child._is_missing() and len(child)
        found += leaves(child, key) if is_node else [dotted(key)]
    return found


def test_every_setting_of_hydras_is_in_the_table(toy: Path) -> None:
    whole = compose([]).hydra_cfg
    assert whole is not None
    keys = leaves(whole.hydra)
    assert len(keys) > 40
    assert [key for key in keys if not setting_of(key)[0]] == []
    used = {setting_of(key)[0] for key in keys} | {"env", "output", "sweeper.max_batch_size", ""}
    assert used == SETTINGS.keys()
    assert {name for name, setting in SETTINGS.items() if not setting.fix} == HOLDS


REFUSED = """
hydra.verbose=true ; hydra.verbose ; run.log
hydra.output_subdir=there ; hydra.output_subdir ; config.yaml and overrides.yaml
hydra.job.chdir=true ; hydra.job.chdir ; the working directory stays
hydra.job.name=mine ; hydra.job.name ; name=NAME
hydra.job.num=3 ; hydra.job.num ; fills it in
hydra.job.id=x ; hydra.job.id ; fills it in
hydra.job.override_dirname=x ; hydra.job.override_dirname ; changes its form
hydra.job.config_name=x ; hydra.job.config_name ; --config-name
hydra.callbacks.mine._target_=toy.Hook ; hydra.callbacks ; trainer.callbacks.NAME
hydra.help.app_name=x ; hydra.help ; --help
hydra.runtime.cwd=x ; hydra.runtime ; fills it in
hydra.overrides.task=[x] ; hydra.overrides ; fills it in
hydra.job_logging.root=x ; hydra.job_logging ; lightkit config logger
hydra.hydra_logging.root=x ; hydra.hydra_logging ; by itself
hydra/job_logging=stdout ; hydra/job_logging ; lightkit config logger
hydra/hydra_logging=hydra_debug ; hydra/hydra_logging ; by itself
hydra.sweeper.max_batch_size=2 ; hydra.sweeper.max_batch_size ; as soon as there is room
hydra.job={chdir:true} ; hydra ; one by one
"""


def test_what_nothing_would_come_of_is_refused(toy: Path) -> None:
    rows = [line.split(" ; ") for line in REFUSED.strip().splitlines()]
    for together in (rows[:12:2], rows[1:12:2], rows[12:14], rows[14:17], rows[17:]):
        with pytest.raises(UserErrors) as caught:
            compose([override for override, _, _ in together])
        errors = {error.key: error for error in caught.value.errors}
        assert errors.keys() == {key for _, key, _ in together}
        for override, key, part in together:
            assert part in str(errors[key])
            assert f"command line: {override}" in str(errors[key])
            assert errors[key].families[0].slug == "hydra"
    tried = {key.removeprefix("hydra").lstrip("./") for _, key, _ in rows}
    assert tried == {name for name, setting in SETTINGS.items() if setting.fix}


def test_what_says_how_it_is_passes(toy: Path) -> None:
    same = ["hydra.output_subdir=null", "hydra.job.chdir=false", "hydra.verbose=false", "hydra/job_logging=none"]
    compose([*same, "hydra/hydra_logging=disabled", "hydra.job.config.override_dirname.kv_sep=:"])


def test_a_file_is_named_with_its_line(toy: Path, write: Write) -> None:
    write("experiments/e.yaml", "defaults:\n  - override /hydra/job_logging: stdout\nhydra:\n  verbose: true\n")
    with pytest.raises(UserErrors) as caught:
        compose(["experiment=e"])
    assert "experiments/e.yaml:2" in str(caught.value)
    assert "experiments/e.yaml:4" in str(caught.value)


def test_what_is_for_a_sweep_or_for_a_run(toy: Path) -> None:
    with pytest.raises(UserErrors, match=r"hydra\.sweep\.dir: this is for a sweep, which wants -m"):
        compose(["hydra.sweep.dir=x"], sweep=False)
    with pytest.raises(UserErrors, match=r"hydra\.run\.dir: this is for one run[\s\S]*hydra\.sweep\.dir"):
        compose_jobs(["hydra.run.dir=x", "seed=1,2"])


def test_a_plugin_is_chosen_by_its_option(toy: Path) -> None:
    target = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
    with pytest.raises(UserErrors, match=r"hydra\.launcher\._target_: a plugin is chosen by its option"):
        compose_jobs([f"hydra.launcher._target_={target}", "seed=1,2"])


def test_hydras_launchers_call_hydras_callbacks(toy: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    own = ["hydra.callbacks.mine._target_=toy.Hook", "hydra.sweeper.max_batch_size=1", "seed=1,2"]
    assert len(compose_jobs([*own, "hydra/launcher=joblib"])) == 2


def test_further_places(toy: Path, write: Write) -> None:
    more = write("more/model/tiny.yaml", "# Tiny.\n_target_: toy.Net\nhidden: [1]\n").parents[1]
    assert compose([f"hydra.searchpath=[file://{more}]", "model=tiny"]).cfg.model.hidden == [1]
    with (toy / "conf/config.yaml").open("a", encoding="utf-8") as file:
        file.write("hydra:\n  searchpath: [more]\n")
    assert compose(["model=tiny"]).cfg.model.hidden == [1]
    assert len(compose_jobs(["model=tiny,net"])) == 2
    (toy / "conf/config.yaml").rename(toy / "whole.yaml")  # the project's adds to ours now
    write("conf/config.yaml", "hydra:\n  searchpath: [more]\n")
    assert compose(["model=tiny", "data=wine"]).cfg.model.hidden == [1]


def test_further_places_that_are_not_there(toy: Path, write: Write) -> None:
    with pytest.raises(Exception, match=r"hydra\.searchpath: there is no such folder"):
        compose(["hydra.searchpath=[file://nowhere]"])
    write("experiments/e.yaml", f"hydra:\n  searchpath: [{toy}]\n")
    with pytest.raises(UserErrors, match="hydra.searchpath is only supported from the primary config"):
        compose(["experiment=e"])


def test_a_key_that_hydra_does_not_have_is_unknown(toy: Path) -> None:
    for override in ("hydra.jobb.chdir=true", "hydra.sweeper.n_trails=3", "+hydra.launcher.njobs=2"):
        with pytest.raises(UserErrors) as caught:
            compose_jobs([override, "seed=1,2"])
        (error,) = caught.value.errors
        assert (error.key, error.what) == (override.lstrip("+").partition("=")[0], "unknown key")
        assert "lightkit train --cfg hydra" in str(error.fix)


NO_LAUNCHERS = {
    "_target_: nowhere.Launcher\n": "nowhere.Launcher",
    "_target_: os.system\ncommand: 'touch there'\n": "os.system",
    "_target_: hydra_plugins.nowhere.Launcher\n": "hydra_plugins.nowhere.Launcher",
    "_target_: 5\n": "5",
    "a: 1\n": "None",
    "": "None",
    "- 1\n": "[1]",
}


@pytest.mark.thorough(first=0)
def test_a_plugin_that_is_none_is_told(toy: Path, write: Write) -> None:
    for number, (content, received) in enumerate(NO_LAUNCHERS.items()):
        kind = ("launcher", "sweeper")[number % 2]
        write(f"conf/hydra/{kind}/mine.yaml", content)
        with pytest.raises(UserErrors) as raised:
            compose_jobs([f"hydra/{kind}=mine", "seed=0,1"])
        (error,) = raised.value.errors
        assert (error.key, error.received) == (f"hydra.{kind}", received)
        assert f"`lightkit config hydra/{kind}` lists the choices" in str(error)
    for text in ("hydra/launcher=mine", "hydra.launcher=5", "hydra.sweeper=[1]"):
        write("conf/hydra/launcher/mine.yaml", "_target_: [\n")
        with pytest.raises(UserErrors, match="launcher|sweeper"):
            compose_jobs([text, "seed=0,1"])


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


def test_the_name_of_overrides_is_that_of_what_was_typed(toy: Path) -> None:
    own = "hydra.job.config.override_dirname.exclude_keys=[extra.d]"
    numbered = ["extra.n=${hydra:job.num}", "name=j${hydra:job.num}"]
    jobs = compose_jobs(["optim=sgd,adam", *numbered])
    assert [(job.cfg.extra.n, job.cfg.name) for job in jobs] == [(0, "j0"), (1, "j1")]
    jobs = compose_jobs(["optim=sgd,adam", "+optim.lr=0.5", "extra.d=${hydra:job.override_dirname}", own])
    assert [job.cfg.extra.d for job in jobs] == ["optim.lr=0.5,optim=sgd", "optim.lr=0.5,optim=adam"]
    assert jobs[0].overrides[2:] == ["extra.d=${hydra:job.override_dirname}", own]  # no more escaped than typed


def test_the_environment_of_a_run(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    whole = compose(["hydra.job.env_set.N='x${hydra:job.config_name}'", "hydra.job.env_copy=[TOKEN]"]).hydra_cfg
    assert whole is not None
    assert job_environment(whole) == {"N": "xconfig", "TOKEN": "secret"}
    with pytest.raises(UserErrors, match=r"hydra\.job\.env_copy: 'NOT_THERE' is not set in the environment"):
        compose(["hydra.job.env_copy=[NOT_THERE]"])
