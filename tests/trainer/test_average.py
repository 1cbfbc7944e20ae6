"""The moving average of the weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.trainer import Ema, NoAverage


def filled(net: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(value)


def test_the_average_follows_the_weights_with_a_warm_start() -> None:
    net = nn.Linear(1, 1, bias=False)
    filled(net, 0.0)
    ema, expected = Ema(net, 0.5), 0.0
    for step in range(1, 20):
        filled(net, step)
        ema.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    with ema.applied():
        assert net.weight.item() == pytest.approx(expected, rel=1e-6)
    assert net.weight.item() == 19
    with pytest.raises(KeyError), ema.applied():
        raise KeyError
    assert net.weight.item() == 19, "own weights come back after an error"


def test_what_is_averaged_comes_back() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    ema, other = Ema(net, 0.9), Ema(net, 0.9)
    filled(net, 3.0)
    ema.update()
    state = ema.state_dict()
    assert "1.running_mean" in state["weights"]
    assert "1.num_batches_tracked" not in state["weights"], "a counter has no mean"
    other.load_state_dict({"steps": ema.steps, "weights": {k: v.clone() for k, v in state["weights"].items()}})
    assert other.steps == 1
    other.keep()
    assert torch.equal(net[0].weight, state["weights"]["0.weight"])


def test_no_average_leaves_the_model_alone() -> None:
    average = NoAverage()
    average.update()
    with average.applied():
        pass
    average.keep()
    assert average.state_dict() == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_average_is_kept_in_fp32_at_least(dtype: torch.dtype) -> None:
    model = nn.Linear(2, 2, bias=False).to(dtype)
    filled(model, 1.0)
    average = Ema(model, 0.999)
    filled(model, 2.0)
    for _ in range(50):
        average.update()
    mean = average.state_dict()["weights"]["weight"]
    assert mean.dtype == torch.promote_types(dtype, torch.float32)
    before = mean.clone()
    average.steps = 100_000  # where a step moves it by a thousandth of the difference
    filled(model, 3.0)
    average.update()
    assert not torch.equal(average.state_dict()["weights"]["weight"], before)
    with average.applied():
        assert model.weight.dtype == dtype
        assert torch.equal(model.weight, average.state_dict()["weights"]["weight"].to(dtype))
    assert torch.equal(model.weight, torch.full((2, 2), 3.0, dtype=dtype))
