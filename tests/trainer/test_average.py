from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.trainer import Ema, NoAverage


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def test_the_average_follows_the_weights_with_a_warm_start() -> None:
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    ema, expected = Ema(net, 0.5), 0.0
    for step in range(1, 20):
        with torch.no_grad():
            net.weight.fill_(step)
        ema.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    with ema.applied():
        assert net.weight.item() == pytest.approx(expected, rel=1e-6)
    assert net.weight.item() == 19


def test_own_weights_come_back_after_an_error() -> None:
    net = model()
    ema = Ema(net, 0.9)
    with torch.no_grad():
        net[0].weight.add_(1.0)
    own = net[0].weight.detach().clone()
    inside = []

    def fail() -> None:
        with ema.applied():
            inside.append(net[0].weight.detach().clone())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not torch.equal(inside[0], own)
    assert torch.equal(net[0].weight, own)


def test_floating_buffers_are_averaged_and_counters_are_not() -> None:
    ema = Ema(model(), 0.9)
    assert "1.running_mean" in ema.state_dict()["weights"]
    assert "1.num_batches_tracked" not in ema.state_dict()["weights"]


def test_state_round_trip() -> None:
    net = model()
    ema = Ema(net, 0.9)
    with torch.no_grad():
        net[0].weight.add_(1.0)
    ema.update()
    other = Ema(net, 0.9)
    other.load_state_dict(
        {"steps": ema.steps, "weights": {k: v.clone() for k, v in ema.state_dict()["weights"].items()}}
    )
    assert other.steps == 1
    other.keep()
    assert torch.equal(net[0].weight, ema.state_dict()["weights"]["0.weight"])


def test_no_average_leaves_the_model_alone() -> None:
    average = NoAverage()
    average.update()
    with average.applied():
        pass
    average.keep()
    assert average.state_dict() == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_average_is_kept_in_fp32_at_least(dtype):
    model = nn.Linear(2, 2, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.fill_(1.0)
    average = Ema(model, 0.999)
    with torch.no_grad():
        model.weight.fill_(2.0)
    for _ in range(50):
        average.update()
    mean = average.state_dict()["weights"]["weight"]
    assert mean.dtype == torch.promote_types(dtype, torch.float32)
    before = mean.clone()
    average.steps = 100_000  # where a step moves it by a thousandth of the difference
    with torch.no_grad():
        model.weight.fill_(3.0)
    average.update()
    assert not torch.equal(average.state_dict()["weights"]["weight"], before)
    with average.applied():
        assert model.weight.dtype == dtype
        assert torch.equal(model.weight, average.state_dict()["weights"]["weight"].to(dtype))
    assert torch.equal(model.weight, torch.full((2, 2), 3.0, dtype=dtype))
