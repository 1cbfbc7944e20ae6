from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.device.clip import Clip, ClipNorm, ClipValue, make_clip, total_norm
from lightkit.device.casting import full
from lightkit.device.precision import Bf16, Precision, clear_gradients, make_precision

CPU = torch.device("cpu")
Output = namedtuple("Output", "logits extra")


def parts(scale: float = 1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(torch.randn(16, 4)).square().mean() * scale).backward()
    return model, optimizer


def gradients(optimizer) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for group in optimizer.param_groups for p in group["params"]])


class Recording(Precision):
    """Stands in for a precision with a loss scale: scales by 8 and writes down what happens when."""

    def __init__(self, device, events):
        super().__init__(device)
        self.events = events

    def unscale(self, optimizer):
        self.events.append("unscale")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= 8

    def update(self, optimizer):
        self.events.append("optimizer")
        super().update(optimizer)


class RecordingClip(ClipNorm):
    def __init__(self, limit, events):
        super().__init__(limit)
        self.events = events

    def __call__(self, optimizer, *, want_norm):
        self.events.append("clip")
        return super().__call__(optimizer, want_norm=want_norm)


def test_the_order_is_unscale_clip_step_clear():
    events: list[str] = []
    plain, optimizer = parts()
    expected_norm = Precision(CPU).step(optimizer, clip=ClipNorm(0.01))
    scaled, optimizer = parts(scale=8.0)
    norm = Recording(CPU, events).step(optimizer, clip=RecordingClip(0.01, events))
    assert events == ["unscale", "clip", "optimizer"]
    torch.testing.assert_close(norm, expected_norm)
    for left, right in zip(plain.parameters(), scaled.parameters()):
        torch.testing.assert_close(left, right)
        assert right.grad is None


def test_a_step_is_the_optimizers_own():
    mine, optimizer = parts()
    other, reference = parts()
    assert Precision(CPU).step(optimizer, clip=Clip()) is None
    reference.step()
    assert all(torch.equal(left, right) for left, right in zip(mine.parameters(), other.parameters()))


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
        ({"value": float("nan")}, r"trainer\.clip_value: no such limit"),
    ],
)
def test_senseless_limits_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        make_clip(**options)


def test_an_optimizer_with_its_own_clearing_keeps_it():
    class Own(torch.optim.SGD):
        cleared = False

        def zero_grad(self, set_to_none=True):
            self.cleared = True

    optimizer = Own([nn.Parameter(torch.ones(1))], lr=0.1)
    clear_gradients(optimizer)
    assert optimizer.cleared


def test_fp32_computes_in_fp32():
    precision = make_precision("fp32", CPU)
    with precision.autocast(), precision.autocast():
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.float32
    assert precision.state_dict() == {}
    precision.load_state_dict({})


def test_bf16_computes_in_bf16_and_answers_in_fp32():
    precision = make_precision("bf16", CPU)
    seen = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    before = list(model.state_dict())
    model = precision.prepare(model)
    with precision.autocast():
        output = model(torch.randn(2, 4))
        loss = nn.functional.cross_entropy(output, torch.tensor([0, 1]))
    precision.backward(loss)
    assert seen == [torch.bfloat16]
    assert output.dtype == loss.dtype == torch.float32
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
    assert list(model.state_dict()) == before
    assert not torch.is_autocast_enabled("cpu")


def test_nested_bf16_ends():
    precision = Bf16(CPU)
    with precision.autocast(), precision.autocast():
        pass
    assert not torch.is_autocast_enabled("cpu")


def test_half_precision_outputs_of_any_shape_become_fp32():
    half = torch.ones(1, dtype=torch.bfloat16)
    value = full(Output((half, [half.half()]), {"a": half, "n": torch.ones(1, dtype=torch.int64), "t": "x"}))
    assert type(value) is Output
    assert value.logits[0].dtype == value.logits[1][0].dtype == value.extra["a"].dtype == torch.float32
    assert value.extra["n"].dtype == torch.int64
    assert value.extra["t"] == "x"


def test_another_precision_is_refused():
    with pytest.raises(UserError, match=r"device\.precision: no such precision(.|\n)*choices:  fp32, bf16, fp16"):
        make_precision("bf61", CPU)


def test_a_gpu_without_bf16_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    with pytest.raises(UserError, match=r"this GPU has no bfloat16(.|\n)*device\.precision=fp32"):
        make_precision("bf16", torch.device("cuda", 0))


def test_fp16_leaves_out_a_step_that_overflows_and_halves_its_scale():
    precision = make_precision("fp16", CPU)
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before, scale = layer.weight.detach().clone(), precision.scaler.get_scale()
    precision.backward(layer(torch.tensor([[float("inf"), 1.0]])).sum())
    precision.step(optimizer, clip=make_clip())
    assert torch.equal(layer.weight, before)
    assert precision.scaler.get_scale() == scale / 2
    precision.backward(layer(torch.ones(1, 2)).sum())
    precision.step(optimizer, clip=make_clip())
    torch.testing.assert_close(layer.weight, before - 0.1)


def test_the_scale_goes_into_a_checkpoint_and_comes_back():
    precision, other = make_precision("fp16", CPU), make_precision("fp16", CPU)
    precision.backward(torch.ones(1, requires_grad=True).sum())
    precision.scaler.update(2.0**7)
    other.load_state_dict(precision.state_dict())
    assert other.scaler.get_scale() == 2.0**7
