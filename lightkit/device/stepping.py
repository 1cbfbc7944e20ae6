"""Optimizers without PyTorch's compiler.

What PyTorch wraps around the methods of an optimizer imports `torch._dynamo`, so that they behave inside of
`torch.compile`. That import takes longer than importing torch itself, in a program that compiles nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as hooks

_WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def leave_compiler_out() -> None:
    """Let optimizers be built and saved from now on without importing the compiler; nothing where it is loaded already.

    PyTorch looks for the attribute set here before it imports the compiler to get the function to call. A version
    that does not look imports it as before.
    """
    if "torch._dynamo" in sys.modules:
        return
    for name in _WRAPPED:
        code = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if code is not None and not hasattr(code, "__dynamo_disable"):
            setattr(code, "__dynamo_disable", code)


def take_step(optimizer: Optimizer) -> None:
    """Take `optimizer.step()`, straight to the optimizer's own code and the hooks of this one.

    With hooks of all optimizers, a profiler, a step replaced by a scheduler of PyTorch's, or a step written in another
    way than PyTorch's own optimizers, it is the usual call. The numbers are the same.
    """
    code = _own_code(type(optimizer).step)
    if (
        code is None
        or "step" in vars(optimizer)
        or hooks._global_optimizer_pre_hooks
        or hooks._global_optimizer_post_hooks
        or optimizer.defaults.get("differentiable")
        or torch.autograd._profiler_enabled()
    ):
        optimizer.step()
        return
    call: tuple[Any, Any] = (optimizer,), {}
    for before in optimizer._optimizer_step_pre_hooks.values():
        call = before(optimizer, *call) or call
    with torch.no_grad():
        code(*call[0], **call[1])
    for after in optimizer._optimizer_step_post_hooks.values():
        after(optimizer, *call)


def begin_momentum(optimizer: Optimizer) -> None:
    """Give parameters that a fused SGD is about to step for the first time a momentum of zeros.

    PyTorch gives them memory that the first step is to fill. Where the loss scale leaves that step out nothing fills
    it, and the next step takes whatever was in the memory for the momentum.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not (trained and group["fused"] and group["momentum"]):
            continue
        if optimizer.state[trained[0]].get("momentum_buffer") is None:
            for parameter in trained:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


@functools.lru_cache(maxsize=16)
def _own_code(step: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return what PyTorch's optimizers have inside their wrappers for hooks and the compiler; None for others."""
    inner = getattr(step, "__wrapped__", None) if getattr(step, "hooked", False) else None
    code = getattr(inner, "__code__", None)
    return inner.__wrapped__ if code is not None and code.co_name == "_use_grad" else None  # type: ignore[union-attr]
