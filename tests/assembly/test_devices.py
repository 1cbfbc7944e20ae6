"""What `device` makes of model, optimizer and loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightkit.assembly import Learner, build
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.device.casting import FullLoss
from lightkit.device.stepping import implementation_of


def built(folder: Path, *overrides: str) -> Learner:
    return build(compose(["data=wine", "model.hidden=[8]", *overrides, "device=cpu", "device.threads=1"]).cfg, folder)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "fused"),
        (["optim=adamw"], "fused"),
        (["optim=rmsprop"], ""),
        (["device.optimizer=loop"], "loop"),
        (["device.optimizer=foreach", "optim=rmsprop"], "foreach"),
        (["+optim.foreach=true"], "foreach"),
        (["+optim.fused=false"], ""),
    ],
)
def test_how_the_optimizer_steps(overrides: list[str], expected: str, tmp_path: Path) -> None:
    assert implementation_of(built(tmp_path, *overrides).optimizer) == expected


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("precision", "weights"),
    [("tf32", torch.float32), ("fp16", torch.float32), ("bf16-true", torch.bfloat16), ("fp64", torch.float64)],
)
def test_weights_have_the_format_they_train_in(precision: str, weights: torch.dtype, tmp_path: Path) -> None:
    parts = built(tmp_path, f"device.precision={precision}", "trainer.ema.decay=0.9", "model.norm=batch")
    held = [parameter for group in parts.optimizer.param_groups for parameter in group["params"]]
    assert {parameter.dtype for parameter in held} == {weights}
    assert {id(parameter) for parameter in held} == {id(parameter) for parameter in parts.model.parameters()}
    assert isinstance(parts.criterion, FullLoss) == (precision == "fp16")


def test_class_weights_follow_the_precision(tmp_path: Path) -> None:
    loss = ["loss=custom", "loss._target_=tests.assembly.test_devices.Weighted"]
    assert built(tmp_path, *loss, "device.precision=fp64").criterion.weight.dtype == torch.float64
    assert built(tmp_path, *loss, "device.precision=bf16-true").criterion.weight.dtype == torch.float32


class Weighted(torch.nn.CrossEntropyLoss):
    def __init__(self) -> None:
        super().__init__(torch.ones(3))


def test_modules_to_compute_again_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"device\.activation_checkpointing: the pattern matches no module"):
        built(tmp_path, "device.activation_checkpointing=[blocks.*]")
