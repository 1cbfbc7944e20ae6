"""Networks that count as one."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lightkit.device.casting import weights_as
from lightkit.ensemble.module import Ensemble, agrees, alike, alone, members_only, stack

X = torch.linspace(-2, 2, 7 * 4).view(7, 4)
TASKS = ("multiclass", "binary", "multilabel", "regression")


class Branching(nn.Linear):
    """Computes by what it sees, which vmap refuses."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if out.sum() > 0 else 2 * out


def ensemble(
    task: str = "multiclass", kind: type[nn.Linear] = nn.Linear, count: int = 12, **options: object
) -> Ensemble:
    torch.manual_seed(1)
    outputs = {"binary": 1}.get(task, 3)
    return Ensemble([kind(4, outputs) for _ in range(count)], task=task, **options).eval()  # type: ignore[arg-type]


def by_hand(model: Ensemble) -> Tensor:
    """The mean prediction as an output, without what the class does to compute it."""
    outputs = alone(list(model), X)
    if model.task == "regression":
        return outputs.mean(0)
    if model.task == "multiclass":
        return outputs.softmax(-1).mean(0).log()
    return outputs.sigmoid().mean(0).logit()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("count", [3, 12])
def test_output_is_that_of_a_model(task: str, count: int) -> None:
    model = ensemble(task, count=count)
    expected = by_hand(model)
    with torch.no_grad():
        first, second = model(X), model(X)
    assert (model._stacked is not None) == (count == 12)
    assert torch.allclose(first, expected, atol=1e-6)
    assert torch.allclose(second, expected, atol=1e-6)
    assert torch.allclose(model(X), expected, atol=1e-6)  # with gradients


def test_networks_that_branch_stay_one_after_the_other() -> None:
    model = ensemble(kind=Branching)
    with torch.no_grad():
        assert torch.allclose(model(X), by_hand(model), atol=1e-6)
        assert model._stacked is None
        assert torch.allclose(model(X), by_hand(model), atol=1e-6)


def test_new_weights_count() -> None:
    model, other = ensemble(), ensemble()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
        model(X)
        model.load_state_dict(other.state_dict())
        assert torch.allclose(model(X), by_hand(other), atol=1e-6)
        assert torch.allclose(model.double()(X.double()).float(), by_hand(other), atol=1e-5)


def test_state_and_copies_have_the_networks_only() -> None:
    model = ensemble()
    with torch.no_grad():
        expected = model(X)
        names = {f"estimators.{i}.{name}" for i in range(12) for name in ("weight", "bias")}
        assert set(model.state_dict()) == {"weights", *names}
        file = io.BytesIO()
        torch.save(model, file)
        assert file.tell() < 40_000
        file.seek(0)
        for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            assert torch.allclose(other(X), expected, atol=1e-6)


def test_weights_of_members_keep_their_precision() -> None:
    model = ensemble(count=3, weights=[0.1, 0.2, 0.7])
    placed = weights_as(torch.bfloat16, model)
    assert placed[0].weight.dtype is torch.bfloat16  # type: ignore[union-attr]
    assert placed.weights.tolist() == pytest.approx([0.1, 0.2, 0.7], abs=1e-7)  # type: ignore[operator,union-attr]
    assert placed(X.bfloat16()).exp().sum(1).tolist() == pytest.approx([1] * 7, abs=1e-6)


def test_a_sum_and_a_hard_vote() -> None:
    summed = ensemble(rule="sum", weights=[0.5] * 12)
    assert torch.allclose(summed(X), 0.5 * alone(list(summed), X).sum(0), atol=1e-5)
    voted = ensemble(rule="hard")
    shares = torch.stack([(alone(list(voted), X).argmax(-1) == c).double().mean(0) for c in range(3)], 1)
    assert torch.allclose(voted(X).exp().double(), shares, atol=1e-6)


def test_a_few_of_the_members() -> None:
    model = ensemble(count=3, weights=[0.2, 0.2, 0.6])
    few = members_only(model, {"00", "02"}.__contains__)
    assert (few.names, few.weights.tolist()) == (("00", "02"), pytest.approx([0.25, 0.75]))


def test_what_members_predict_can_be_observed() -> None:
    model, seen = ensemble(), list[Tensor]()
    with torch.no_grad(), model.observed(seen.append):
        model(X)
    model(X)
    assert [tuple(batch.shape) for batch in seen] == [(12, 7, 3)]
    assert torch.allclose(seen[0], alone(list(model), X).softmax(-1), atol=1e-6)


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
    assert found.shape == expected.shape == (10, 7, expected.shape[2])
    assert torch.allclose(found, expected, atol=1e-6, rtol=0)


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
