from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from lightkit.device.stepping import leave_compiler_out, take_step
from tests.waiting import PATIENCE_SECONDS

KINDS = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam"]


class Plain(torch.optim.Optimizer):
    """Written as many optimizers outside of PyTorch are."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.5})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad


def trained(kind, advance) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = kind(model.parameters(), lr=0.1) if kind is not Plain else Plain(model.parameters())
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


def one(**options) -> tuple[nn.Parameter, torch.optim.SGD]:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return weight, torch.optim.SGD([weight], lr=0.1, **options)


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_are_called(register):
    calls: list[str] = []
    _, optimizer = one()
    handle = getattr(optimizer, register)(lambda *_: calls.append(register))
    take_step(optimizer)
    handle.remove()
    take_step(optimizer)
    assert calls == [register]


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


def test_hooks_on_all_optimizers_are_called():
    from torch.optim.optimizer import register_optimizer_step_post_hook

    calls: list[str] = []
    _, optimizer = one()
    handle = register_optimizer_step_post_hook(lambda *_: calls.append("global"))
    take_step(optimizer)
    handle.remove()
    take_step(optimizer)
    assert calls == ["global"]


def test_a_scheduler_of_pytorchs_sees_the_step():
    _, optimizer = one()
    scheduler = StepLR(optimizer, 1)
    take_step(optimizer)
    scheduler.step()  # warns, and a warning is an error here, where it saw none
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_a_profiler_sees_the_step():
    _, optimizer = one()
    with torch.autograd.profiler.profile() as profile:
        take_step(optimizer)
    assert any(event.key.startswith("Optimizer.step#SGD") for event in profile.key_averages())


def test_a_differentiable_optimizer_keeps_its_graph():
    weight = nn.Parameter(torch.ones(2))
    moved = weight.clone()
    optimizer = torch.optim.SGD([moved], lr=0.1, differentiable=True)
    moved.grad = weight * 2
    take_step(optimizer)
    moved.sum().backward(inputs=[weight])
    assert weight.grad.tolist() == pytest.approx([0.8, 0.8])


def test_a_step_without_gradients_changes_nothing():
    weight, optimizer = one()
    weight.grad = None
    take_step(optimizer)
    assert weight.tolist() == [1.0, 1.0]


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
