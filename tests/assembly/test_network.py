"""The network of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from tests.assembly.test_learner import SUITED, TOKENS, built, one_step, options


@pytest.mark.thorough
@pytest.mark.parametrize("name", options("model"))
def test_every_model_trains_a_step(name: str, tmp_path: Path) -> None:
    if name in ("torchvision", "timm"):
        pytest.importorskip(name)
    data = TOKENS if name.endswith("_lm") else ["data=shapes", "data.dataset.train=16", "data.dataset.val=8"]
    parts = built(tmp_path, *data, f"model={name}", "data.batch_size=4")
    assert torch.isfinite(torch.tensor(one_step(parts)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in options("finetune") if name != "peft"])
def test_every_way_to_fine_tune_builds(name: str, tmp_path: Path) -> None:
    parts = built(tmp_path, "data=digits", *SUITED.get(name, []), f"finetune={name}")
    assert one_step(parts) > 0


def test_the_model_is_a_function_of_the_seed(tmp_path: Path) -> None:
    first, again = (built(tmp_path, "data=wine", "seed=5").model.state_dict() for _ in range(2))
    other = built(tmp_path, "data=wine", "seed=6").model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_a_model_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\._target_: a class of another kind[\s\S]*torch\.nn\.Module"):
        built(tmp_path, "model=custom", "model._target_=lightkit.trainer.tasks.Supervised")


def test_what_is_not_safe_to_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model._target_: fractions.Fraction is not among what may be built"):
        built(tmp_path, "model=custom", "model._target_=fractions.Fraction")


def test_a_model_without_parameters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the model has no trainable parameter"):
        built(tmp_path, "model=custom", "model._target_=torch.nn.Flatten")


def test_any_network_by_its_path(tmp_path: Path) -> None:
    parts = built(
        tmp_path,
        "data=wine",
        "model=custom",
        "model._target_=torch.nn.Linear",
        "model.in_features=13",
        "model.out_features=3",
    )
    assert isinstance(parts.model, nn.Linear)
