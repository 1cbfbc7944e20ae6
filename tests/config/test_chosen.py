from __future__ import annotations

from collections.abc import Callable

import pytest
from omegaconf import OmegaConf

from lightkit.common.errors import UserErrors
from lightkit.config import Composed, to_yaml
from lightkit.config.chosen import fill_choices
from tests.config.conftest import Write

Compose = Callable[..., Composed]
TABLE = """\
extra:
  rates: {sgd: 0.25, adam: 0.5}
  words: ["with ${hydra:runtime.choices.optim}", {deeper: "${ hydra : runtime.choices.optim }"}]
optim:
  lr: ${extra.rates.${hydra:runtime.choices.optim}}
"""


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
