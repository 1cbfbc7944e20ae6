"""Alike networks in one call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lightkit.ensemble.module import agrees, alike, alone, stack

X = torch.linspace(-1, 1, 5 * 4).view(5, 4)


class Named(nn.Module):
    """Gives several things by name, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"other": x, "logits": self.linear(x)}


class Scaled(nn.Module):
    """Has a setting beside its tensors."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 1), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)[:, 0] * self.scale


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


def networks(make: Callable[[], nn.Module], count: int = 10) -> list[nn.Module]:
    torch.manual_seed(0)
    made = [make().eval() for _ in range(count)]
    for buffer in (buffer for network in made for buffer in network.buffers() if buffer.is_floating_point()):
        buffer.data += torch.rand_like(buffer)
    return made


@pytest.mark.parametrize("make", [deep, Named, lambda: Scaled(2.0)])
def test_one_call_gives_what_each_gives_alone(make: Callable[[], nn.Module]) -> None:
    members = networks(make)
    stacked = stack(members)
    assert stacked is not None
    found, expected = stacked.outputs(X), alone(members, X)
    assert found.shape == expected.shape == (10, 5, expected.shape[2])
    assert torch.allclose(found, expected, atol=1e-6, rtol=0)


def test_changed_weights_are_noticed() -> None:
    members = networks(deep)
    stacked = stack(members)
    assert stacked is not None
    assert stacked.current
    with torch.no_grad():
        members[3][0].weight.mul_(2)  # type: ignore[index,operator,union-attr]
    assert not stacked.current


def test_few_or_large_ones_are_faster_alone() -> None:
    assert stack(networks(deep, 9)) is None
    assert stack(networks(lambda: nn.Linear(4, 1024))) is None


def test_alike_is_more_than_the_same_shapes() -> None:
    assert alike(deep(), deep())
    assert alike(Scaled(2.0), Scaled(2.0))
    assert not alike(Scaled(2.0), Scaled(3.0))
    assert not alike(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4), nn.GELU()))
    assert not alike(nn.Linear(4, 4), nn.Linear(4, 3))
    assert not alike(nn.Linear(4, 4), nn.Linear(4, 4).double())
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda _module, _inputs, output: 2 * output)
    assert not alike(nn.Linear(4, 4), hooked)


def test_rounding_is_no_difference() -> None:
    one = torch.ones(2, 3)
    assert agrees(one, one + 1e-6)
    assert not agrees(one, one + 1e-3)
    assert agrees(one.bfloat16(), (one + 1e-2).bfloat16())
    assert not agrees(one, one[:1])
