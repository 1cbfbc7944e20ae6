"""What is filled in once Hydra has composed, and arguments of a former `_target_` that are left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lightkit.common.errors import UserErrors
from lightkit.config import Composed, compose, to_yaml
from lightkit.config.finish import fill_choices
from tests.config.conftest import Write

Compose = Callable[..., Composed]
TABLE = """\
extra:
  rates: {sgd: 0.25, adam: 0.5}
  words: ["with ${hydra:runtime.choices.optim}", {deeper: "${ hydra : runtime.choices.optim }"}]
optim:
  lr: ${extra.rates.${hydra:runtime.choices.optim}}
"""


@pytest.mark.thorough
def test_value_depends_on_the_option_chosen_in_the_end(composed: Compose, write: Write) -> None:
    write("experiments/e.yaml", TABLE)
    write("experiments/other.yaml", "defaults:\n  - override /optim: adam\n" + TABLE)

    assert [composed(f"experiment={name}").cfg.optim.lr for name in ("e", "other")] == [0.25, 0.5]
    assert composed("experiment=other", "optim=sgd").cfg.optim.lr == 0.25
    assert composed("experiment=other", "optim.lr=3").cfg.optim.lr == 3
    assert composed("experiment=e").cfg.extra.words == ["with sgd", {"deeper": "sgd"}]


def test_compositions_do_not_share_their_choices(composed: Compose, write: Write) -> None:
    write("experiments/e.yaml", TABLE)
    first, second = composed("experiment=e"), composed("experiment=e", "optim=adam")

    assert (first.cfg.optim.lr, second.cfg.optim.lr) == (0.25, 0.5)
    assert OmegaConf.create(to_yaml(first.cfg)).optim.lr == 0.25


def test_choice_without_an_entry_is_told_with_its_name(composed: Compose, write: Write) -> None:
    write("experiments/e.yaml", TABLE.replace("adam: 0.5", "adams: 0.5"))

    with pytest.raises(UserErrors, match=r"extra\.rates\.adam' not found(?s:.*)received: '\$\{extra\.rates\.adam\}'"):
        composed("experiment=e", "optim=adam")


def test_group_that_is_not_there_is_an_error(composed: Compose, write: Write) -> None:
    """Also where Hydra has run in this process before, and would give something."""
    write("experiments/e.yaml", "extra:\n  x: ${hydra:runtime.choices.optimm}\n")
    OmegaConf.register_new_resolver("hydra", lambda _path: None, replace=True)
    try:
        with pytest.raises(UserErrors, match=r"extra\.x: the interpolation can't be resolved"):
            composed("experiment=e")
    finally:
        OmegaConf.clear_resolver("hydra")


def test_several_options_are_joined_by_commas() -> None:
    cfg = OmegaConf.create(
        {"lr": {"head,lora": 2}, "x": "${lr.${hydra:runtime.choices.finetune}}", "y": None, "z": "???", "w": "${lr}"}
    )
    fill_choices(cfg, {"finetune": "[head,lora]"})

    assert (cfg.x, cfg.y, cfg.w) == (2, None, {"head,lora": 2})
    assert OmegaConf.is_missing(cfg, "z")


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
