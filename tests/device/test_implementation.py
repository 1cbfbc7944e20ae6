from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.device.stepping import arguments, implementation_of

CPU, GPU, APPLE = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps", 0)


def spread() -> nn.Module:
    """A parameter whose elements do not fill its memory."""
    model = nn.Linear(2, 2)
    model.table = nn.Parameter(torch.zeros(2, 6)[:, ::2])
    return model


def turned() -> nn.Module:
    model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    model.other = nn.Parameter(torch.rand(4, 5).t())
    return model


def with_complex() -> nn.Module:
    model = nn.Linear(2, 2)
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    return model


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: nn.Linear(2, 2), {"fused": True}),
        (turned, {"fused": True}),
        (spread, {}),
        (with_complex, {}),
        (lambda: nn.Embedding(3, 2, sparse=True), {}),
        (lambda: nn.LazyLinear(2), {}),
    ],
)
def test_auto_takes_one_kernel_where_it_is_right(device, make, expected):
    assert arguments("auto", make(), device) == expected


def test_auto_leaves_other_devices_to_pytorch():
    assert arguments("auto", nn.Linear(2, 2), APPLE) == {}


@pytest.mark.parametrize(
    ("name", "expected"), [("fused", {"fused": True}), ("foreach", {"foreach": True}), ("loop", {"foreach": False})]
)
def test_what_is_asked_for_by_name(name, expected):
    model = nn.Linear(2, 2)
    assert arguments(name, model, GPU) == expected
    optimizer = torch.optim.AdamW(model.parameters(), **expected)
    assert implementation_of(optimizer) == name


def test_no_choice_has_no_name():
    class Own(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

    model = nn.Linear(2, 2)
    assert implementation_of(torch.optim.SGD(model.parameters())) == implementation_of(Own(model.parameters())) == ""


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_one_kernel_steps_as_the_loop_does(kind):
    models = []
    for options in ({"foreach": False}, {"fused": True}):
        torch.manual_seed(0)
        model = turned()
        optimizer = kind(model.parameters(), lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.rand(2, 2, 5, 5)).square().mean() + model.other.square().sum()).backward()
            optimizer.step()
        models.append(model)
    for left, right in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(left, right)
