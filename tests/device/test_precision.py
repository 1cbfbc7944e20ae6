from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.device.casting import full
from lightkit.device.precision import Bf16, Precision, clear_gradients, make_precision, precision_named, set_matmul
from lightkit.device.stepping import Clip, ClipNorm, make_clip
from tests.device.engines import parts

CPU = torch.device("cpu")
Output = namedtuple("Output", "logits extra")


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
    with pytest.raises(UserError, match=r"precision: no such precision(.|\n)*choices:  fp32, tf32, bf16, fp16, bf16-"):
        make_precision("bf61", CPU)


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


def spoilt(optimizer) -> None:
    """Gradients as they are after an overflow."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.full_like(parameter, torch.inf)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("fused", [True, None])
def test_steps_that_overflow_are_counted(kind, fused):
    if fused and kind is torch.optim.RMSprop:
        pytest.skip("has no fused implementation")
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


def test_the_count_goes_into_a_checkpoint_and_comes_back():
    precision, other = make_precision("fp16", CPU), make_precision("fp16", CPU)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    precision.backward(optimizer.param_groups[0]["params"][0].sum())
    spoilt(optimizer)
    precision.step(optimizer, clip=make_clip())
    saved = precision.state_dict()
    assert (saved["skipped"], saved["scale"]) == (1, 2.0**15)
    other.load_state_dict(saved)
    assert other.state_dict() == saved
    del saved["skipped"]  # as files were before it was counted
    other.load_state_dict(saved)
    assert other.skipped() == 0


def test_nothing_is_skipped_without_a_scale():
    for name in ("fp32", "tf32", "bf16", "bf16-true", "fp64"):
        precision = make_precision(name, CPU)
        assert (precision.name, precision.skipped(), precision.vitals(), precision.state_dict()) == (name, 0, {}, {})


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
    assert model.calls.dtype == torch.int64
    assert output.extra["words"].dtype == torch.int64
    assert output.logits.dtype == value.dtype == outside
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    precision.step(optimizer, clip=ClipNorm(1.0))
    assert optimizer.state[model.head.weight]["exp_avg"].dtype == inside


def test_the_loss_of_bf16_true_is_that_of_fp32_on_rounded_outputs():
    precision, model = make_precision("bf16-true", CPU), nn.Linear(4, 3)
    precision.prepare(precision.place_model(model))
    x, y = torch.randn(8, 4), torch.randn(8, 3)
    output = model(x)
    raw = nn.functional.linear(x.bfloat16(), model.weight, model.bias)
    assert torch.equal(output, raw.float())
    assert torch.equal(nn.functional.mse_loss(output, y), nn.functional.mse_loss(raw.float(), y)), (
        "targets are not cast"
    )


def test_fp64_computes_targets_and_regression_losses_in_fp64():
    precision, model = make_precision("fp64", CPU), nn.Linear(4, 1)
    precision.prepare(precision.place_model(model))
    x, y = precision.batch([torch.randn(8, 4), torch.randn(8, 1)])
    loss = nn.functional.huber_loss(model(x), y)
    loss.backward()
    assert x.dtype == y.dtype == loss.dtype == model.weight.grad.dtype == torch.float64


class Products(nn.Module):
    """A loss with a matrix product in it."""

    def __init__(self):
        super().__init__()
        self.temperature = 0.5
        self.seen = []

    def forward(self, output, target):
        similar = output @ output.T
        self.seen.append(similar.dtype)
        return similar.sum() + target.sum()


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_losses_are_not_rounded_by_autocast(name):
    precision, inner = make_precision(name, CPU), Products()
    loss = precision.place_loss(inner)
    half = torch.ones(2, 2, dtype=precision.dtype)
    with precision.autocast():
        value = loss(half, torch.ones(2))
        assert torch.is_autocast_enabled("cpu")
    assert inner.seen == [torch.float32]
    assert value.dtype == torch.float32
    assert loss.temperature == 0.5
    assert isinstance(precision.place_loss(nn.functional.mse_loss)(half, torch.ones(2, 2)), torch.Tensor)
    with pytest.raises(AttributeError, match="nothing"):
        loss.nothing  # noqa: B018


def test_a_loss_in_fp32_is_itself():
    inner = Products()
    for name in ("fp32", "tf32", "bf16-true"):
        assert make_precision(name, CPU).place_loss(inner) is inner


@pytest.fixture
def _matmul_as_before():
    level, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    set_matmul(level, convolutions=convolutions)


@pytest.mark.parametrize(
    ("name", "device", "asked", "level", "convolutions"),
    [
        ("fp32", "cuda", None, "highest", False),
        ("fp32", "cuda", "medium", "medium", False),
        ("tf32", "cuda", None, "high", True),
        ("tf32", "cuda", "medium", "medium", True),
        ("tf32", "cpu", None, "highest", False),
        ("bf16", "cpu", None, "highest", False),
        ("fp64", "cpu", "high", "high", False),
    ],
)
@pytest.mark.usefixtures("_matmul_as_before")
def test_how_exact_matrix_products_are(monkeypatch, name, device, asked, level, convolutions):
    precision_named(name).set_matmul(torch.device(device), asked)
    assert torch.get_float32_matmul_precision() == level
    assert torch.backends.cudnn.allow_tf32 == convolutions, "and the older names can still be read"
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        assert torch.backends.cuda.matmul.fp32_precision == ("ieee" if level == "highest" else "tf32")
        assert (torch.backends.cudnn.conv.fp32_precision == "tf32") == convolutions


@pytest.mark.parametrize("overflows", [True, False])
def test_momentum_of_a_fused_optimizer_begins_with_the_first_step_that_counts(monkeypatch, overflows):
    """PyTorch leaves it as it finds the memory when the loss scale leaves the very first step out."""
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **_options: torch.full_like(tensor, 1e30))
    found = []
    for fused in (True, False):
        precision, weight = make_precision("fp16", torch.device("cpu")), nn.Parameter(torch.ones(3))
        precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=fused)
        for factor in (float("inf") if overflows else 2.0, 1.0, 3.0):
            precision.backward((weight * factor).sum())
            precision.step(optimizer, clip=Clip())
        found.append(weight.detach())
    assert torch.equal(*found)
