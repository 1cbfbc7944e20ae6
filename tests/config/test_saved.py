from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lightkit.common.errors import UserError, UserErrors
from lightkit.config import compose, load_run, save


def test_a_saved_configuration_comes_back(toy: Path) -> None:
    made = compose(["optim=adam", "seed=${extra.s}", "extra.s=3", "optim.rules=[{match: a}]"])
    path = save(made.cfg, toy)
    loaded = load_run(toy)
    assert path == toy / "config.yaml"
    assert OmegaConf.to_container(loaded.cfg) == OmegaConf.to_container(made.cfg, resolve=True)
    assert OmegaConf.is_readonly(loaded.cfg)
    assert [item.name for item in toy.iterdir() if "config.yaml" in item.name] == ["config.yaml"]


def test_secrets_stay_in_the_environment(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    text = save(made.cfg, toy).read_text()
    assert "s3cret" not in text
    assert "plain: toy" in text
    loaded = load_run(toy).cfg
    assert loaded.extra.url == "http://s3cret@host"
    assert loaded.extra.deep.a[1] == "http://s3cret@host"
    assert loaded.seed == 4


def test_values_can_be_changed_and_are_checked(toy: Path) -> None:
    save(compose([]).cfg, toy)
    made = load_run(toy, ["trainer.epochs=99", "optim.nesterov=true", "~data.augment"])
    assert (made.cfg.trainer.epochs, made.cfg.optim.nesterov) == (99, True)
    with pytest.raises(UserErrors) as caught:
        load_run(toy, ["trainer.epoch=3", "optim=adam", "~nothing", "seed=-1"])
    text = str(caught.value)
    for part in (
        "trainer.epoch: unknown key",
        "are fixed once it has started",
        "nothing of that name",
        "seed: out of range",
    ):
        assert part in text
    assert "4 problems found" in text


def test_a_damaged_file_is_named(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        load_run(tmp_path)
    (toy / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match=r"config.yaml: can't be read"):
        load_run(toy)
    (toy / "config.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match="holds no configuration"):
        load_run(toy)


def test_an_edited_file_is_checked_with_its_lines(toy: Path) -> None:
    path = save(compose([]).cfg, toy)
    path.write_text(path.read_text().replace("epochs: 20", "epochs: ten"))
    line = path.read_text().splitlines().index("  epochs: ten") + 1
    with pytest.raises(UserErrors, match=f"(?s)trainer.epochs: wrong type.*config.yaml:{line}"):
        load_run(toy)
