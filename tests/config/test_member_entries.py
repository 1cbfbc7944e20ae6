from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserErrors
from lightkit.config import compose


@pytest.fixture(autouse=True)
def _here(project: Path) -> None:
    """In an empty project: groups and options are the shipped ones."""


def report(*overrides: str) -> str:
    with pytest.raises(UserErrors) as caught:
        compose(["ensemble=voting", *overrides])
    return str(caught.value)


def test_mistakes_of_all_members_come_in_one_report_with_their_keys() -> None:
    said = report("ensemble.members=[{}, {model: cnnn}, {optim.lr: -1}, {model: cnn, model.depht: 2}, {modle: cnn}]")
    assert "ensemble.members.1.model: no such option" in said
    assert "fix:      model=cnn\n" in said
    assert "ensemble.members.2.optim.lr: out of range" in said
    assert "ensemble.members.3.model.depht: lightkit.models.CNN takes no such argument" in said
    assert "did you mean ensemble.members.3.model.depth?" in said
    assert "ensemble.members.4.modle: unknown key" in said
    assert "at:       command line: ensemble.members=[…]" in said
    assert "4 problems found" in said


def test_a_mistake_of_the_run_is_told_once() -> None:
    said = report("ensemble.members=[{seed: 1}, {seed: 2}]", "optim.lrr=1")
    assert "1 problem found" in said
    assert "\nensemble.members" not in said


def test_a_mistake_in_a_file_is_told_with_its_line(project: Path) -> None:
    (project / "conf/model").mkdir(parents=True)
    (project / "conf/model/own.yaml").write_text("# Mine.\n_target_: lightkit.models.MLP\nhiden: [3]\n")
    assert "at:       conf/model/own.yaml:3" in report("ensemble.members=[{model: own}, {}]")
    (project / "experiments").mkdir(exist_ok=True)
    text = "ensemble:\n  members:\n    - model: mlp\n    - model: cnn\n      optim.lr: -1\n"
    (project / "experiments/e.yaml").write_text(text)
    said = report("experiment=e")
    assert "ensemble.members.1.optim.lr: out of range" in said
    assert "at:       experiments/e.yaml:5" in said


def test_what_a_member_cannot_say() -> None:
    expected = {
        "{data.batch_size: 3}": (
            "data.batch_size: the members of an ensemble learn from the same",
            "lightkit ensemble",
        ),
        "{data: wine}": ("data: the members of an ensemble learn from the same data", "RUN1 RUN2"),
        "{device.name: cpu}": ("device.name: the device is that of the whole run", "set device.name beside"),
        "{metrics: {monitor: val/loss}}": ("metrics.monitor: all members are measured alike", "set metrics.monitor"),
        "{ensemble: voting}": ("ensemble: a member is a single model", "take it out"),
        "{finetune.weights.trust: true}": ("finetune.weights.trust: trust is granted to the whole", "set finetune"),
        "{trust: [os]}": ("trust: trust is granted to the whole run", "set trust"),
        "{+optim.lr: 0.1}": ("+optim.lr: no key of a member", "fix:      optim.lr: 0.1"),
        "{hydra/launcher: joblib}": ("hydra/launcher: no key of a member", "a key such as optim.lr"),
        "{hydra.run.dir: x}": ("hydra.run.dir: Hydra's own settings are those of the whole run", "set hydra.run.dir"),
        "{model: null}": ("model: wrong type", "received: 'null'"),
    }
    parts = report(f"ensemble.members=[{','.join(expected)}]").split("\n\n")
    for index, (said, (message, fix)) in enumerate(zip(parts, expected.values())):
        assert said.startswith(f"ensemble.members.{index}.{message}")
        assert fix in said
    assert parts[-1] == "11 problems found"
