"""Formats of numbers: what computes in which, the scale of the loss, and how gradients are clipped."""

from __future__ import annotations

import copy
import io
from collections import namedtuple

import pytest
import torch
from torch import nn

from lightkit.checkpoint.export import write_model
from lightkit.device.casting import ChannelsLast, FullOutputs, InputsAs, channels_last, floats_as, full, weights_as
from lightkit.device.precision import Precision, clear_gradients, make_precision, precision_named, set_matmul
from lightkit.device.stepping import Clip, ClipNorm, ClipValue, each_norm, make_clip, total_norm
from tests.device.engines import gradients, parts
from tests.refused import refused

CPU = torch.device("cpu")
Output = namedtuple("Output", "logits extra")


class Recording(Precision):
    """Stands in for a precision with a loss scale: scales by 8 and writes down what happens when."""

    def __init__(self, events):
        super().__init__(CPU)
        self.events = events

    def unscale(self, optimizer):
        self.events.append("unscale")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= 8

    def update(self, optimizer):
        self.events.append("optimizer")
        super().update(optimizer)


def test_the_order_is_unscale_clip_step_clear():
    events = []

    class RecordingClip(ClipNorm):
        def __call__(self, optimizer, *, want_norm):
            events.append("clip")
            return super().__call__(optimizer, want_norm=want_norm)

    plain, optimizer = parts()
    expected_norm = Precision(CPU).step(optimizer, clip=ClipNorm(0.01))
    scaled, optimizer = parts(scale=8.0)
    norm = Recording(events).step(optimizer, clip=RecordingClip(0.01))
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

    class Own(torch.optim.SGD):
        cleared = False

        def zero_grad(self, set_to_none=True):
            self.cleared = True

    optimizer = Own([nn.Parameter(torch.ones(1))], lr=0.1)
    clear_gradients(optimizer)
    assert optimizer.cleared


@pytest.mark.parametrize("order", [1.0, 2.0, 3.5, float("inf")])
def test_the_norm_may_be_of_any_order(order):
    _, optimizer = parts()
    before = gradients(optimizer)
    wanted = torch.linalg.vector_norm(before, order)
    torch.testing.assert_close(make_clip(norm=0.01, order=order)(optimizer, want_norm=False), wanted)
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


def test_clipping_by_value_and_what_is_not_clipped():
    _, optimizer = parts()
    before = gradients(optimizer)
    for clip in (ClipNorm(1e6), ClipValue(1e6)):
        clip(optimizer, want_norm=False)
    assert torch.equal(gradients(optimizer), before)
    torch.testing.assert_close(Precision(CPU).step(optimizer, clip=Clip(), want_norm=True), before.norm())
    _, optimizer = parts()
    torch.testing.assert_close(ClipValue(1e-3)(optimizer, want_norm=True), before.norm())
    assert torch.equal(gradients(optimizer), before.clamp(-1e-3, 1e-3))
    assert ClipValue(1e-3)(optimizer, want_norm=False) is None
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    assert total_norm(optimizer) == 0, "without gradients"
    for options, kind in (({}, Clip), ({"norm": 1.0}, ClipNorm), ({"value": 0.5}, ClipValue)):
        clip = make_clip(**options)
        assert type(clip) is kind
        Precision(CPU).step(optimizer, clip=clip, want_norm=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"norm": 1.0, "value": 1.0}, "trainer.clip_norm: set either this or trainer.clip_value"),
        ({"norm": 0.0}, "trainer.clip_norm: no such limit"),
        ({"value": -1.0}, "trainer.clip_value: no such limit"),
        ({"norm": 1.0, "order": 0.0}, "trainer.clip_type: no such norm"),
        ({"norm": 1.0, "order": float("nan")}, "trainer.clip_type: no such norm"),
        ({"value": float("nan")}, "trainer.clip_value: no such limit"),
    ],
)
def test_senseless_limits_are_refused(options, text):
    refused(lambda: make_clip(**options), text)


def test_without_a_scale_nothing_is_skipped_and_another_name_is_refused():
    for name in ("fp32", "tf32", "bf16", "bf16-true", "fp64"):
        precision = make_precision(name, CPU)
        precision.load_state_dict({})
        assert (precision.name, precision.skipped(), precision.vitals(), precision.state_dict()) == (name, 0, {}, {})
    with make_precision("fp32", CPU).autocast():
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.float32
    refused(
        lambda: make_precision("bf61", CPU), "precision: no such precision … choices:  fp32, tf32, bf16, fp16, bf16-"
    )


def test_bf16_computes_in_bf16_and_answers_in_fp32():
    precision, seen = make_precision("bf16", CPU), []
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    before = list(model.state_dict())
    model = precision.prepare(model)
    with precision.autocast(), precision.autocast():
        output = model(torch.randn(2, 4))
        loss = nn.functional.cross_entropy(output, torch.tensor([0, 1]))
    precision.backward(loss)
    assert seen == [torch.bfloat16]
    assert output.dtype == loss.dtype == torch.float32
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
    assert list(model.state_dict()) == before
    assert not torch.is_autocast_enabled("cpu")


def test_half_precision_outputs_of_any_shape_become_fp32():
    half = torch.ones(1, dtype=torch.bfloat16)
    value = full(Output((half, [half.half()]), {"a": half, "n": torch.ones(1, dtype=torch.int64), "t": "x"}))
    assert type(value) is Output
    assert value.logits[0].dtype == value.logits[1][0].dtype == value.extra["a"].dtype == torch.float32
    assert (value.extra["n"].dtype, value.extra["t"]) == (torch.int64, "x")


def spoilt(optimizer) -> None:
    """Gradients as they are after an overflow."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.full_like(parameter, torch.inf)


@pytest.mark.parametrize(
    ("kind", "fused"),
    [(torch.optim.SGD, True), (torch.optim.SGD, None), (torch.optim.AdamW, True), (torch.optim.RMSprop, None)],
)
def test_steps_that_overflow_are_left_out_and_counted(kind, fused):
    precision, layer = make_precision("fp16", CPU), nn.Linear(2, 1)
    optimizer = kind(layer.parameters(), lr=0.1, **({"fused": True} if fused else {}))
    for overflows in (False, True, True, False, True):
        before = layer.weight.detach().clone()
        precision.backward(layer(torch.ones(3, 2)).sum())
        if overflows:
            spoilt(optimizer)
        precision.step(optimizer, clip=ClipNorm(1.0))
        assert torch.equal(layer.weight, before) == overflows
    assert precision.skipped() == 3
    assert precision.vitals() == {"amp/scale": 2.0**13, "amp/skipped_steps": 3.0}
    saved, other = precision.state_dict(), make_precision("fp16", CPU)
    assert (saved["skipped"], saved["scale"]) == (3, 2.0**13)
    other.load_state_dict(saved)
    assert other.state_dict() == saved
    del saved["skipped"]  # as files were before it was counted
    other.load_state_dict(saved)
    assert (other.skipped(), other.scaler.get_scale()) == (0, 2.0**13)


@pytest.mark.parametrize("overflows", [True, False])
def test_momentum_of_a_fused_optimizer_begins_with_the_first_step_that_counts(monkeypatch, overflows):
    """PyTorch leaves it as it finds the memory when the loss scale leaves the very first step out."""
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **_options: torch.full_like(tensor, 1e30))
    weights = []
    for fused in (True, False):
        precision, weight = make_precision("fp16", CPU), nn.Parameter(torch.ones(3))
        precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=fused)
        for factor in (float("inf") if overflows else 2.0, 1.0, 3.0):
            precision.backward((weight * factor).sum())
            precision.step(optimizer, clip=Clip())
        weights.append(weight.detach())
    assert torch.equal(*weights)


class Two(nn.Module):
    """Takes numbers and words, by position and by name, and gives two outputs."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.seen = []

    def forward(self, x, *, words):
        self.calls += 1
        self.seen += [x.dtype, words.dtype]
        return Output(self.head(x + self.words(words)), {"words": words})


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [("bf16-true", torch.bfloat16, torch.float32), ("fp64", torch.float64, torch.float64)],
)
def test_weights_and_inputs_of_another_format(name, inside, outside):
    precision, model = make_precision(name, CPU), Two()
    model = precision.prepare(precision.place_model(model))
    loss = precision.place_loss(nn.CrossEntropyLoss(weight=torch.ones(3)))
    batch = precision.batch((torch.randn(2, 4), torch.tensor([1, 2]), torch.tensor([0, 1])))
    with precision.autocast():
        output = model(batch[0], words=batch[1])
        value = loss(output.logits, batch[2])
    precision.backward(value)
    assert model.seen == [inside, torch.int64], "whole numbers stay"
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {inside}
    assert model.calls.dtype == output.extra["words"].dtype == torch.int64
    assert output.logits.dtype == value.dtype == outside
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    precision.step(optimizer, clip=ClipNorm(1.0))
    assert optimizer.state[model.head.weight]["exp_avg"].dtype == inside


def test_the_loss_of_bf16_true_is_that_of_fp32_on_rounded_outputs_and_fp64_casts_targets():
    x, y = torch.randn(8, 4), torch.randn(8, 3)
    precision, model = make_precision("bf16-true", CPU), nn.Linear(4, 3)
    precision.prepare(precision.place_model(model))
    raw = nn.functional.linear(x.bfloat16(), model.weight, model.bias)
    assert torch.equal(model(x), raw.float())
    assert precision.batch(y).dtype == torch.float32, "targets are not cast"
    precision, model = make_precision("fp64", CPU), nn.Linear(4, 3)
    precision.prepare(precision.place_model(model))
    x, y = precision.batch([x, y])
    loss = nn.functional.huber_loss(model(x), y)
    loss.backward()
    assert x.dtype == y.dtype == loss.dtype == model.weight.grad.dtype == torch.float64


class Products(nn.Module):
    """A loss with a matrix product in it."""

    temperature = 0.5

    def forward(self, output, target):
        similar = output @ output.T
        self.seen = similar.dtype
        return similar.sum() + target.sum()


def test_losses_are_not_rounded_by_autocast():
    for name in ("fp32", "tf32", "bf16-true"):
        assert make_precision(name, CPU).place_loss(inner := Products()) is inner
    for name in ("bf16", "fp16"):
        precision, inner = make_precision(name, CPU), Products()
        loss, half = precision.place_loss(inner), torch.ones(2, 2, dtype=precision.dtype)
        with precision.autocast():
            value = loss(half, torch.ones(2))
            assert torch.is_autocast_enabled("cpu")
        assert inner.seen == value.dtype == torch.float32
        assert loss.temperature == 0.5
        assert isinstance(precision.place_loss(nn.functional.mse_loss)(half, torch.ones(2, 2)), torch.Tensor)
        assert not hasattr(loss, "nothing")


@pytest.mark.parametrize(
    ("name", "device", "chosen", "level", "convolutions"),
    [
        ("fp32", "cuda", None, "highest", False),
        ("fp32", "cuda", "medium", "medium", False),
        ("tf32", "cuda", None, "high", True),
        ("tf32", "cuda", "medium", "medium", True),
        ("tf32", "cpu", None, "highest", False),
        ("fp64", "cpu", "high", "high", False),
    ],
)
def test_how_exact_matrix_products_are(name, device, chosen, level, convolutions):
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    precision_named(name).set_matmul(torch.device(device), chosen)
    try:
        assert torch.get_float32_matmul_precision() == level
        assert torch.backends.cudnn.allow_tf32 == convolutions, "and the older names can still be read"
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
            assert torch.backends.cuda.matmul.fp32_precision == ("ieee" if level == "highest" else "tf32")
            assert (torch.backends.cudnn.conv.fp32_precision == "tf32") == convolutions
    finally:
        set_matmul(before[0], convolutions=before[1])


def test_only_floats_change_and_the_original_is_left_alone():
    whole, flags = torch.ones(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool)
    value = {"x": torch.ones(1), "n": (whole, [flags]), "t": "text"}
    cast = floats_as(torch.float64, value)
    assert (cast["x"].dtype, cast["n"], cast["t"]) == (torch.float64, (whole, [flags]), "text")
    assert value["x"].dtype == torch.float32


def test_weights_change_in_place_and_keep_their_ties():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    model.register_parameter("turn", nn.Parameter(torch.ones(1, dtype=torch.complex64)))
    weight = model[0].weight
    weights_as(torch.bfloat16, model)
    assert model[0].weight is model[1].weight is weight
    assert weight.dtype == model[2].running_mean.dtype == torch.bfloat16
    assert (model[2].num_batches_tracked.dtype, model.turn.dtype) == (torch.int64, torch.complex64)


def test_channels_last_of_images_and_volumes():
    for shape, kind in (((2, 3, 4, 5), torch.channels_last), ((2, 3, 4, 5, 6), torch.channels_last_3d)):
        turned = channels_last(torch.rand(shape))
        assert turned.is_contiguous(memory_format=kind)
        assert turned.shape == shape
    for tensor in (torch.rand(2, 3), torch.zeros(2, 3, 4, 5, dtype=torch.int64)):
        assert channels_last(tensor) is tensor


def kept(_module, _inputs, outputs):
    return outputs


def test_a_model_is_written_and_copied_without_what_belongs_to_the_run(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2))
    own = model.register_forward_hook(kept)
    model.register_forward_hook(FullOutputs())
    model.register_forward_pre_hook(InputsAs(torch.float32), with_kwargs=True)
    model[0].register_forward_pre_hook(ChannelsLast(), with_kwargs=True)
    write_model(model, tmp_path / "model.pt")
    assert b"lightkit" not in (tmp_path / "model.pt").read_bytes()
    written = torch.load(tmp_path / "model.pt", weights_only=False)
    assert list(written._forward_hooks.values()) == [kept]
    assert torch.equal(written(torch.ones(1, 2)), model(torch.ones(1, 2)))
    assert len(model._forward_hooks) == 2, "the model itself keeps them"
    own.remove()
    torch.save(copy.deepcopy(model), io.BytesIO())
