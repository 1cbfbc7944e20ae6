from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lightkit.common.errors import UserError, UserErrors
from lightkit.config import compose, load_run, save


@pytest.fixture
def folder(toy: Path) -> Path:
    """The folder of a run of the toy project."""
    path = toy / "outputs" / "run"
    path.mkdir(parents=True)
    return path


def test_a_saved_configuration_comes_back(folder: Path) -> None:
    made = compose(["optim=adam", "seed=${extra.s}", "extra.s=3", "optim.rules=[{match: a}]"])
    path = save(made.cfg, folder)
    loaded = load_run(folder)
    assert path == folder / "config.yaml"
    assert OmegaConf.to_container(loaded.cfg) == OmegaConf.to_container(made.cfg, resolve=True)
    assert OmegaConf.is_readonly(loaded.cfg)
    assert [item.name for item in folder.iterdir() if "config.yaml" in item.name] == ["config.yaml"]


def test_secrets_stay_in_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    monkeypatch.setenv("SEED", "4")
    made = compose(
        [
            "extra.token=${oc.env:TOKEN}",
            "extra.url='http://${extra.token}@host'",
            "extra.again=${.token}",
            "extra.list=[1,'${extra.url}']",
            "extra.deep={a: '${extra.list}'}",
            "seed='${oc.decode:${oc.env:SEED}}'",
            "extra.plain=${name}",
        ]
    )
    text = save(made.cfg, folder).read_text()
    assert "s3cret" not in text
    assert "plain: toy" in text
    loaded = load_run(folder).cfg
    assert loaded.extra.url == "http://s3cret@host"
    assert loaded.extra.deep.a[1] == "http://s3cret@host"
    assert loaded.seed == 4


def test_values_can_be_changed_and_are_checked(folder: Path) -> None:
    save(compose([]).cfg, folder)
    made = load_run(folder, ["trainer.epochs=99", "optim.nesterov=true", "~data.augment"])
    assert (made.cfg.trainer.epochs, made.cfg.optim.nesterov) == (99, True)
    with pytest.raises(UserErrors) as caught:
        load_run(folder, ["trainer.epoch=3", "optim=adam", "~nothing", "seed=-1"])
    text = str(caught.value)
    for part in (
        "trainer.epoch: unknown key",
        "are fixed once it has started",
        "nothing of that name",
        "seed: out of range",
    ):
        assert part in text
    assert "4 problems found" in text


def test_a_damaged_file_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        load_run(tmp_path)
    (folder / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match=r"config.yaml: can't be read"):
        load_run(folder)
    (folder / "config.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match="holds no configuration"):
        load_run(folder)


def test_an_edited_file_is_checked_with_its_lines(folder: Path) -> None:
    path = save(compose([]).cfg, folder)
    path.write_text(path.read_text().replace("epochs: 20", "epochs: ten"))
    line = path.read_text().splitlines().index("  epochs: ten") + 1
    with pytest.raises(UserErrors, match=f"(?s)trainer.epochs: wrong type.*config.yaml:{line}"):
        load_run(folder)


@pytest.mark.thorough
def test_a_new_run_from_an_old_one_chooses_options_anew(cli: Callable[..., Any], project: Path) -> None:
    short = ("trainer.steps=1", "logger.tensorboard.enabled=false", "metrics.figures=[]")
    assert cli("train", "data=wine", *short, "hydra.run.dir=outputs/a").code == 0
    done = cli("train", "--from", "outputs/a", "logger=quiet", "data=diabetes", "hydra.run.dir=outputs/b")
    assert done.code == 0, done.err
    cfg = load_run(project / "outputs/b").cfg
    assert (cfg.logger.console.style, cfg.trainer.steps) == ("quiet", 1)
    targets = [cfg[part]["_target_"] for part in ("loss",)] + [cfg.data.dataset["_target_"]]
    assert targets == ["torch.nn.MSELoss", "lightkit.data.tables.diabetes"], "data bring their loss along"
    assert cfg.metrics.monitor.startswith("val/")
    refused = cli("train", "--from", "outputs/a", "logger=quite")
    assert (refused.code, "logger: no such option" in refused.err) == (2, True)
    assert "fixed once it has started" in cli("resume", "outputs/a", "logger=quiet").err
