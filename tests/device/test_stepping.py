"""A step of an optimizer on the short way, and which kernel makes it."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from lightkit.common import stepping
from lightkit.common.stepping import take_step
from lightkit.device.stepping import arguments, implementation_of, leave_compiler_out
from tests.waiting import PATIENCE_SECONDS

CPU, GPU, APPLE = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps", 0)
KINDS = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam"]


class Plain(torch.optim.Optimizer):
    """Written as many optimizers outside of PyTorch are."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad


def trained(kind, advance) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = kind(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        advance(optimizer)
    assert torch.is_grad_enabled()
    return copy.deepcopy(model.state_dict())


@pytest.mark.parametrize("kind", [*(getattr(torch.optim, name) for name in KINDS), Plain])
def test_the_numbers_are_those_of_the_usual_step(kind):
    usual, short = trained(kind, lambda optimizer: optimizer.step()), trained(kind, take_step)
    assert all(torch.equal(usual[name], short[name]) for name in usual)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize(
    ("options", "short"),
    [({}, 1), ({"maximize": True}, 1), ({"amsgrad": True}, 0), ({"lr": torch.tensor(0.1)}, 0), ({"fused": False}, 0)],
    ids=str,
)
def test_fused_groups_are_stepped_to_the_same_bits(kind, options, short, monkeypatch):
    called, real = [], stepping._step_fused
    monkeypatch.setattr(stepping, "_step_fused", lambda own: called.append(real(own)) or called[-1])

    def advanced(advance):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2), nn.Linear(2, 2).requires_grad_(False))
        groups = [
            {"params": [*part.parameters()], "weight_decay": decay} for part, decay in zip(model, (0.1, 0.0, 0.0))
        ]
        optimizer = kind(groups, **{"lr": 0.1, "fused": True, **options})
        for step in range(4):
            optimizer.zero_grad()
            (model if step != 1 else model[0])(torch.randn(8, 4)).square().sum().backward()
            advance(optimizer)
        moments = {
            f"{number}.{name}": kept
            for number, own in optimizer.state_dict()["state"].items()
            for name, kept in own.items()
        }
        return {**model.state_dict(), **moments}

    usual, own = advanced(lambda optimizer: optimizer.step()), advanced(take_step)
    assert usual.keys() == own.keys()
    assert all(torch.equal(usual[name], own[name]) for name in usual)
    assert called == [False, *3 * [bool(short)]]  # the first step makes the state


def one(**options) -> tuple[nn.Parameter, torch.optim.SGD]:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return weight, torch.optim.SGD([weight], lr=0.1, **options)


def test_hooks_are_called():
    calls: list[str] = []
    _, optimizer = one()
    handles = [
        optimizer.register_step_pre_hook(lambda *_: calls.append("before")),
        optimizer.register_step_post_hook(lambda *_: calls.append("after")),
        register_optimizer_step_post_hook(lambda *_: calls.append("of all")),
    ]
    for expected in (["before", "after", "of all"], ["after", "of all"], ["of all"], []):
        calls.clear()
        take_step(optimizer)
        assert sorted(calls) == sorted(expected)
        handles.pop(0).remove() if handles else None


@pytest.mark.parametrize("step", [take_step, lambda optimizer: optimizer.step()], ids=["short", "usual"])
def test_a_hook_may_change_the_call(step):
    def closure():
        weight.grad = torch.full((2,), 3.0)
        return 0.0

    seen = []
    weight, optimizer = one()
    optimizer.register_step_pre_hook(lambda own, args, kwargs: (args, {"closure": closure}))
    optimizer.register_step_post_hook(lambda own, args, kwargs: seen.append((args == (optimizer,), list(kwargs))))
    step(optimizer)
    assert weight.tolist() == pytest.approx([0.7, 0.7])
    assert seen == [(True, ["closure"])]


def test_schedulers_and_profilers_see_the_step():
    weight, optimizer = one()
    scheduler = StepLR(optimizer, 1)
    with torch.autograd.profiler.profile() as profile:
        take_step(optimizer)
    scheduler.step()  # warns, and a warning is an error here, where it saw none
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert any(event.key.startswith("Optimizer.step#SGD") for event in profile.key_averages())
    before, weight.grad = weight.tolist(), None
    take_step(optimizer)
    assert weight.tolist() == before, "without gradients"


def test_a_differentiable_optimizer_keeps_its_graph():
    weight = nn.Parameter(torch.ones(2))
    moved = weight.clone()
    optimizer = torch.optim.SGD([moved], lr=0.1, differentiable=True)
    moved.grad = weight * 2
    take_step(optimizer)
    moved.sum().backward(inputs=[weight])
    assert weight.grad.tolist() == pytest.approx([0.8, 0.8])


@pytest.mark.thorough
def test_the_compiler_is_not_imported(root):
    code = """
import sys, torch
from lightkit.device import Engine, configure_process
engine = Engine(configure_process("cpu", seed=1), seed=1)
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.AdamW([weight], lr=0.1)
weight.sum().backward()
engine.step(optimizer)
optimizer.load_state_dict(optimizer.state_dict())
optimizer.zero_grad()
print(sorted(name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_methods_still_work_where_the_compiler_was_left_out():
    leave_compiler_out()
    weight, optimizer = one(momentum=0.9)
    take_step(optimizer)
    copied = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    copied.load_state_dict(optimizer.state_dict())
    assert torch.equal(copied.state[weight]["momentum_buffer"], torch.ones(2))


def with_parameter(parameter) -> nn.Module:
    model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    model.other = nn.Parameter(parameter)
    return model


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Linear(2, 2), {"fused": True}),
        (with_parameter(torch.rand(4, 5).t()), {"fused": True}),
        (with_parameter(torch.zeros(2, 6)[:, ::2]), {}),  # its elements do not fill its memory
        (with_parameter(torch.zeros(2, dtype=torch.complex64)), {}),
        (nn.Embedding(3, 2, sparse=True), {}),
        (nn.LazyLinear(2), {}),
    ],
)
def test_auto_takes_one_kernel_where_it_is_right(device, model, expected):
    assert arguments("auto", model, device) == expected
    assert arguments("auto", model, APPLE) == {}


def test_what_is_chosen_by_name_has_it():
    for name, expected in (("fused", {"fused": True}), ("foreach", {"foreach": True}), ("loop", {"foreach": False})):
        model = nn.Linear(2, 2)
        assert arguments(name, model, GPU) == expected
        assert implementation_of(torch.optim.AdamW(model.parameters(), **expected)) == name
    for kind in (torch.optim.SGD, Plain):
        assert implementation_of(kind(model.parameters())) == ""


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_one_kernel_steps_as_the_loop_does(kind):
    models = []
    for options in ({"foreach": False}, {"fused": True}):
        torch.manual_seed(0)
        model = with_parameter(torch.rand(4, 5).t())
        optimizer = kind(model.parameters(), lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.rand(2, 2, 5, 5)).square().mean() + model.other.square().sum()).backward()
            optimizer.step()
        models.append(model)
    for left, right in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(left, right)
