"""Networks that take their sizes from a batch are trained, resumed and described like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.assembly import build
from lightkit.assembly.network import build_sized
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.runner import Runner
from tests.conftest import Outcome
from tests.finetune.whole import SHORT, same_bits, weights

Cli = Callable[..., Outcome]
HERE = "tests.assembly.test_lazy"
WINE = ("data=wine", "model=custom", "trust=[tests]")


class Sized(nn.Module):
    """Linear layers and a norm."""

    kinds: tuple[Any, Any] = (lambda size: nn.Linear(13, size), lambda: nn.BatchNorm1d(8))

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        linear, norm = type(self).kinds
        self.first, self.norm, self.drop = linear(8), norm(), nn.Dropout(0.1)
        self.last = linear(num_classes) if linear is nn.LazyLinear else nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(self.first(x)).relu()))


class Lazy(Sized):
    """The same without sizes."""

    kinds = (nn.LazyLinear, nn.LazyBatchNorm1d)


class Pictures(nn.Sequential):
    """A convolution without sizes."""

    def __init__(self, num_classes: int) -> None:
        layers = (nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(num_classes))
        super().__init__(*layers)


class Unused(Lazy):
    """A layer that never learns its size."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.aside = nn.LazyLinear(3)


class OnlyInTraining(Unused):
    """A second output in training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (self.aside(x).sum() * 0 if self.training else 0)


def started(*overrides: str, folder: Path) -> nn.Module:
    """The network of a run before its first step."""
    parts = build(compose([*WINE, *overrides]).cfg, folder)
    parts.data.close()
    return parts.model


def test_a_lazy_network_starts_with_the_seed_and_as_one_with_sizes(tmp_path: Path) -> None:
    model = started(f"model._target_={HERE}.Lazy", folder=tmp_path)
    again, other = (started(f"model._target_={HERE}.Lazy", f"seed={seed}", folder=tmp_path) for seed in (0, 1))
    sized = started(f"model._target_={HERE}.Sized", folder=tmp_path)
    assert type(model.first) is nn.Linear
    assert all(same_bits(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    assert all(same_bits(value, sized.state_dict()[name]) for name, value in model.state_dict().items())
    assert not same_bits(model.state_dict()["first.weight"], other.state_dict()["first.weight"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "asked",
    [
        (*WINE, f"model._target_={HERE}.Lazy"),
        (*WINE, f"model._target_={HERE}.OnlyInTraining"),
        ("data=digits", "model=custom", "trust=[tests]", f"model._target_={HERE}.Pictures"),
        (*WINE, f"model._target_={HERE}.Lazy", "finetune=full", "finetune.layer_decay=0.5"),
        (*WINE, f"model._target_={HERE}.Lazy", "ensemble=voting", "ensemble.size=2", "ensemble.engine=vectorized"),
    ],
    ids=["plain", "in training", "images", "tuned", "ensemble"],
)
def test_lazy_networks_train_and_are_evaluated(cli: Cli, asked: tuple[str, ...], tmp_path: Path) -> None:
    done = cli("train", *asked, "trainer.steps=3", f"hydra.run.dir={tmp_path}/run")
    assert done.code == 0, done.err
    done = cli("eval", f"{tmp_path}/run")
    assert done.code == 0, done.err


def test_lazy_networks_are_described(cli: Cli) -> None:
    done = cli("summary", *WINE, f"model._target_={HERE}.Lazy")
    assert done.code == 0, done.err
    assert "155" in done.out


def test_a_lazy_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    asked = [*WINE, *SHORT, f"model._target_={HERE}.Lazy"]
    Runner(compose(asked).cfg, tmp_path / "whole").run()
    Runner(compose([*asked, "trainer.stop_at=8"]).cfg, tmp_path / "parts").run()
    Runner(compose(asked).cfg, tmp_path / "parts").run(resume=True)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(same_bits(value, parts[name]) for name, value in whole.items())


def test_a_layer_that_never_gets_its_size_is_refused(cli: Cli) -> None:
    done = cli("train", *WINE, f"model._target_={HERE}.Unused", "trainer.steps=3")
    assert done.code == 2
    assert "layers without sizes do not get them from a batch: no forward pass uses them" in done.err
    assert "received: 'aside'" in done.err


def test_without_samples_the_reason_is_told() -> None:
    with pytest.raises(UserError, match="no sample of the inputs is known"):
        build_sized(lambda: nn.LazyLinear(3), [])
    with pytest.raises(UserError, match="a forward pass fails: RuntimeError"):
        build_sized(lambda: nn.Sequential(nn.LazyLinear(3), nn.Linear(4, 2)), [lambda model: model(torch.rand(2, 4))])
