"""Weights and gradients by name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.diagnostics.params import (
    BINS,
    GRADIENT_TITLES,
    TITLES,
    draw_histograms,
    lines_about,
    parameters_of,
    spread,
)


def test_spread_by_hand() -> None:
    found = spread(torch.tensor([[0.0, 3.0], [-4.0, 0.0]]))
    assert (found.count, found.mean, found.min, found.max, found.norm, found.zeros) == (4, -0.25, -4, 3, 5, 0.5)
    assert found.std == pytest.approx(math.sqrt(25 / 4 - 0.25**2))
    assert len(found.histogram) == BINS
    assert (sum(found.histogram), found.histogram[0], found.histogram[-1]) == (4, 1, 1)
    assert spread(torch.cat([torch.zeros(70), torch.ones(10)])).bars == "█" + "▁" * 14 + "▂"
    assert spread(torch.tensor(2.0)).bars.count("█") == 1
    assert spread(torch.empty(0)).bars == ""
    for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.bool):
        other = spread(torch.tensor([0, 1, 1]).to(dtype))
        assert (other.mean, other.max) == (pytest.approx(2 / 3), 1)


def test_what_is_not_finite() -> None:
    found = spread(torch.tensor([1.0, math.nan, math.inf, 3.0]))
    assert (found.nonfinite, found.mean, found.count) == (2, 2, 4)
    nothing = spread(torch.tensor([math.nan]))
    assert math.isnan(nothing.norm)
    assert (nothing.nonfinite, nothing.histogram, nothing.bars) == (1, (), "")


class Net(nn.Module):
    """One layer that trains, one that is frozen, one that nothing reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.unused = nn.Linear(2, 2)
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.body(x)))
        return out


def test_gradients_are_those_of_the_loss() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.rand(8, 3)
    found = {one.name: one for one in parameters_of(model, loss=lambda: model(x).square().mean())}
    model.zero_grad()
    model(x).square().mean().backward()
    for name, parameter in model.named_parameters():
        expected = None if parameter.grad is None else pytest.approx(parameter.grad.norm().item())
        gradient = found[name].gradient
        assert (None if gradient is None else gradient.norm) == expected
        assert found[name].values.norm == pytest.approx(parameter.detach().norm().item())
        assert found[name].trains == (not name.startswith("body"))
    lines = lines_about([*found.values()], gradients=True)
    assert lines[1:] == ["no gradient: unused.weight, unused.bias"]
    cells = found["body.weight"].cells(gradients=True)
    assert len(cells) == len(TITLES) + len(GRADIENT_TITLES)
    assert cells[len(TITLES)] == "frozen"
    assert found["unused.bias"].cells(gradients=True)[len(TITLES)] == "none"


def test_gradients_that_strike() -> None:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.bias.fill_(math.nan)
    found = parameters_of(model, loss=lambda: (model(torch.zeros(1, 2)) * 0).sum() + model.weight.sum() * 0)
    lines = lines_about(found, gradients=True)
    assert "values that are not finite: bias" in lines
    assert "a gradient of zeros: weight, bias" in lines
    model.weight.grad = None
    broken = parameters_of(model, loss=lambda: model.weight.sum() * math.inf)
    assert "gradients that are not finite: weight" in lines_about(broken, gradients=True)
    assert broken[0].cells(gradients=True)[-1].endswith("2 not finite")


def test_patterns_and_buffers() -> None:
    model = Net()
    assert [one.name for one in parameters_of(model, match=["head", "*.bias"])] == [
        "body.bias",
        "norm.bias",
        "head.weight",
        "head.bias",
        "unused.bias",
    ]
    buffers = parameters_of(model, match=["norm.running_*"], buffers=True, loss=lambda: model(torch.rand(8, 3)).sum())
    assert [(one.name, one.trains) for one in buffers] == [("norm.running_mean", False), ("norm.running_var", False)]
    assert buffers[0].values.zeros == 1, "those before the forward pass"
    with pytest.raises(UserError, match=r"(?s)--match: no such parameter.*nothing"):
        parameters_of(model, match=["nothing"])
    with pytest.raises(UserError, match="--match: no such parameter"):
        parameters_of(model, match=["norm.running_mean"])


def test_as_json() -> None:
    content = json.loads(json.dumps([one.to_json() for one in parameters_of(nn.Linear(3, 2))]))
    assert content[0]["shape"] == [2, 3]
    assert sum(content[0]["values"]["histogram"]) == 6
    assert content[0]["gradient"] is None


def test_pictures(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    found = parameters_of(model, loss=lambda: model(torch.rand(2, 2)).sum())
    assert draw_histograms(found, tmp_path / "params.png") == 4
    assert (tmp_path / "params.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="--output: cannot write the picture"):
        draw_histograms(found, tmp_path / "params.odd")
    with pytest.raises(UserError, match="--output: cannot write the picture"):
        draw_histograms(found, tmp_path / "nowhere" / "params.png")
