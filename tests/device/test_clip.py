from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.device.precision import Precision
from lightkit.device.stepping import Clip, ClipNorm, ClipValue, each_norm, make_clip, total_norm
from tests.device.engines import gradients, parts

CPU = torch.device("cpu")


def test_the_norm_is_measured_only_when_asked():
    _, optimizer = parts()
    expected = gradients(optimizer).norm()
    torch.testing.assert_close(Precision(CPU).step(optimizer, clip=Clip(), want_norm=True), expected)
    _, optimizer = parts()
    torch.testing.assert_close(ClipValue(1e-3)(optimizer, want_norm=True), expected)
    assert ClipValue(1e-3)(optimizer, want_norm=False) is None


def test_clipping_by_norm_scales_everything_together():
    _, optimizer = parts()
    before = gradients(optimizer)
    norm = ClipNorm(0.01)(optimizer, want_norm=False)
    torch.testing.assert_close(norm, before.norm())
    torch.testing.assert_close(gradients(optimizer), before / before.norm() * 0.01, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("order", [1.0, 2.0, 3.5, float("inf")])
def test_the_norm_may_be_of_any_order(order):
    _, optimizer = parts()
    before = gradients(optimizer)
    wanted = torch.linalg.vector_norm(before, order)
    clip = make_clip(norm=0.01, order=order)
    torch.testing.assert_close(clip(optimizer, want_norm=False), wanted)
    torch.testing.assert_close(gradients(optimizer), before / wanted * 0.01, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("order", [1.0, 2.0, float("inf")])
def test_norms_of_many_models_at_once(order):
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.zeros(3, *shape)) for shape in ((4, 2), (5,), ())]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator)
    optimizer = torch.optim.SGD(weights, lr=0.1)
    alone = [torch.cat([weight.grad[row].reshape(-1) for weight in weights]) for row in range(3)]
    wanted = torch.stack([torch.linalg.vector_norm(gradient, order) for gradient in alone])
    torch.testing.assert_close(each_norm(optimizer, order), wanted)
    torch.testing.assert_close(ClipNorm(0.5, order).each(optimizer, want_norm=False), wanted)
    torch.testing.assert_close(each_norm(optimizer, order), wanted.clamp(max=0.5), rtol=1e-4, atol=0)


def test_small_gradients_are_left_alone():
    _, optimizer = parts()
    before = gradients(optimizer)
    ClipNorm(1e6)(optimizer, want_norm=False)
    ClipValue(1e6)(optimizer, want_norm=False)
    assert torch.equal(gradients(optimizer), before)


def test_clipping_by_value_cuts_each_element():
    _, optimizer = parts()
    before = gradients(optimizer)
    ClipValue(0.01)(optimizer, want_norm=False)
    assert torch.equal(gradients(optimizer), before.clamp(-0.01, 0.01))


def test_parameters_without_gradients_are_fine():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    assert total_norm(optimizer) == 0
    for clip in (Clip(), ClipNorm(1.0), ClipValue(1.0)):
        Precision(CPU).step(optimizer, clip=clip, want_norm=True)


@pytest.mark.parametrize(("options", "kind"), [({}, Clip), ({"norm": 1.0}, ClipNorm), ({"value": 0.5}, ClipValue)])
def test_the_limit_that_is_set(options, kind):
    assert type(make_clip(**options)) is kind


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": 1.0, "value": 1.0}, r"trainer\.clip_norm: set either this or trainer\.clip_value"),
        ({"norm": 0.0}, r"trainer\.clip_norm: no such limit"),
        ({"value": -1.0}, r"trainer\.clip_value: no such limit"),
        ({"norm": 1.0, "order": 0.0}, r"trainer\.clip_type: no such norm"),
        ({"norm": 1.0, "order": float("nan")}, r"trainer\.clip_type: no such norm"),
        ({"value": float("nan")}, r"trainer\.clip_value: no such limit"),
    ],
)
def test_senseless_limits_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        make_clip(**options)
