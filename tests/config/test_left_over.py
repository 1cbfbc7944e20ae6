from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lightkit.common.errors import UserErrors
from lightkit.config import compose
from lightkit.config.members import drop_inherited

EXPERIMENT = """\
defaults:
  - override /scheduler: torch
scheduler:
  scheduler:
    _target_: torch.optim.lr_scheduler.{target}
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("target", "arguments"),
    [("CosineAnnealingLR", "    T_max: 3\n"), ("OneCycleLR", "    max_lr: 0.1\n    total_steps: 100\n")],
)
def test_a_schedule_in_a_file_gets_no_argument_of_the_shipped_one(
    target: str, arguments: str, project: Path, cli: Callable[..., Any]
) -> None:
    (project / "experiments" / "mine.yaml").write_text(EXPERIMENT.format(target=target) + arguments)
    done = cli("train", "experiment=mine", "data=wine", "trainer.steps=2", "logger.tensorboard.enabled=false")
    assert done.code == 0, done.err


def test_what_the_user_sets_stays_and_is_judged(project: Path) -> None:
    path = project / "experiments" / "mine.yaml"
    path.write_text(EXPERIMENT.format(target="CosineAnnealingLR") + "    T_max: 3\n    gamma: 2\n")
    with pytest.raises(
        UserErrors, match=r"scheduler\.scheduler\.gamma: .* takes no such argument\n +at: +.*mine.yaml:7"
    ):
        compose(["experiment=mine"])
    with pytest.raises(UserErrors, match=r"optim\.betas: torch\.optim\.SGD takes no such argument"):
        compose(["optim._target_=torch.optim.SGD", "optim.betas=[0.9,0.99]"])


@pytest.mark.parametrize(
    ("override", "gone", "kept"),
    [
        ("optim._target_=torch.optim.SGD", "betas", ("lr", "weight_decay", "rules")),
        ("loss._target_=torch.nn.MultiMarginLoss", "label_smoothing", ()),
        ("model._target_=torch.nn.Flatten", "hidden", ()),
        ("data.dataset._target_=lightkit.data.tables.wine", "image", ()),
    ],
)
def test_every_group_lets_go_of_the_arguments_of_its_default(override: str, gone: str, kept: tuple[str, ...]) -> None:
    cfg = compose([override]).cfg
    key = override.partition("._target_")[0]
    node = cfg.data.dataset if key == "data.dataset" else cfg[key]
    assert gone not in node
    assert set(kept) <= set(node)


def test_a_mistake_in_an_option_file_of_ones_own_is_no_left_over(project: Path) -> None:
    folder = project / "conf" / "optim"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("defaults:\n  - adamw\n_target_: torch.optim.SGD\nmomentumm: 0.9\n")
    with pytest.raises(UserErrors, match=r"optim\.momentumm: .*\n(.*\n)*.*did you mean optim\.momentum"):
        compose(["optim=mine"])


def test_inherited_arguments_of_another_target_go_unless_they_are_said() -> None:
    former = {"model": {"_target_": "lightkit.models.MLP", "hidden": [3], "dropout": 0.1}, "seed": 0}
    tree = {"model": {"_target_": "lightkit.models.CNN", "hidden": [3], "dropout": 0.1}, "seed": 0}
    drop_inherited(tree, former, lambda key: key == ("model", "hidden"))
    assert tree["model"] == {"_target_": "lightkit.models.CNN", "hidden": [3], "dropout": 0.1}
    drop_inherited(tree, former, lambda key: False)
    assert tree["model"] == {"_target_": "lightkit.models.CNN", "dropout": 0.1}
    drop_inherited(former, former, lambda key: False)
    assert former["model"] == {"_target_": "lightkit.models.MLP", "hidden": [3], "dropout": 0.1}


@pytest.mark.parametrize(
    ("group", "override", "gone"),
    [
        ("scheduler=torch", "scheduler.scheduler={_target_: torch.optim.lr_scheduler.%s}", "scheduler.scheduler.gamma"),
        ("optim=adamw", "optim={_target_: torch.optim.SGD, momentum: 0.9}", "optim.betas"),
    ],
)
def test_a_mapping_on_the_command_line_gets_no_argument_of_the_shipped_target(
    group: str, override: str, gone: str
) -> None:
    for target in (
        "OneCycleLR, max_lr: 0.1, total_steps: 100",
        "CosineAnnealingLR, T_max: 100",
        "CosineAnnealingWarmRestarts, T_0: 4",
    ):
        cfg = compose([group, override.replace("%s", target)]).cfg
        node = OmegaConf.select(cfg, gone.rpartition(".")[0])
        assert gone.rpartition(".")[2] not in node
        assert node.get("_partial_", True) is True


def test_what_a_mapping_on_the_command_line_says_itself_is_judged() -> None:
    with pytest.raises(UserErrors, match=r"optim\.betas: torch\.optim\.SGD takes no such argument\n +at: +command"):
        compose(["optim={_target_: torch.optim.SGD, betas: [0.9, 0.99]}"])
