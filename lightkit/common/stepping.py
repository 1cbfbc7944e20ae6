"""The step of an optimizer: without PyTorch's compiler, and with a closure where it needs one.

What PyTorch wraps around the methods of an optimizer imports `torch._dynamo`, so that they behave inside of
`torch.compile`. That import takes longer than importing torch itself, in a program that compiles nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Adam, AdamW, Optimizer
from torch.optim import optimizer as hooks

_ONE = torch.ones((), dtype=torch.float32, device="cpu")


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
        if call != ((optimizer,), {}) or not _step_fused(optimizer):
            code(*call[0], **call[1])
    for after in optimizer._optimizer_step_post_hooks.values():
        after(optimizer, *call)


def _step_fused(optimizer: Any) -> bool:
    """Step as Adam and AdamW do over fused groups on a CPU, past what takes as long there as a small model's step.

    Returns:
        False, and nothing is done, where that is another case.
    """
    if type(optimizer) not in (Adam, AdamW) or not vars(optimizer).keys().isdisjoint(("grad_scale", "found_inf")):
        return False
    calls, state = list[tuple[Any, list[Any]]](), optimizer.state
    for group in optimizer.param_groups:
        usual = group["fused"] and not group["amsgrad"] and not isinstance(group["lr"], torch.Tensor)
        if not usual or any(isinstance(beta, torch.Tensor) for beta in group["betas"]):
            return False
        used = [(p, p.grad, state.get(p)) for p in group["params"] if p.grad is not None]
        if not all(own and p.is_cpu and p.dtype is torch.float32 and not grad.is_sparse for p, grad, own in used):
            return False
        calls += [(group, used)] if used else []
    for group, used in calls:
        parameters, gradients, states = zip(*used)
        mean, square = ([own[name] for own in states] for name in ("exp_avg", "exp_avg_sq"))
        steps = [own["step"].add_(_ONE) for own in states]  # a number would be made a tensor for each
        settings = {name: group[name] for name in ("lr", "weight_decay", "eps", "maximize", "amsgrad")}
        settings["beta1"], settings["beta2"] = group["betas"]
        step: Any = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        step(parameters, gradients, mean, square, [], steps, **settings)
    return True


@functools.lru_cache(maxsize=16)
def _own_code(step: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return what PyTorch's optimizers have inside their wrappers for hooks and the compiler; None for others."""
    inner = getattr(step, "__wrapped__", None) if getattr(step, "hooked", False) else None
    code = getattr(inner, "__code__", None)
    return inner.__wrapped__ if code is not None and code.co_name == "_use_grad" else None  # type: ignore[union-attr]


def needs_closure(optimizer: Optimizer) -> bool:
    """Tell whether the step of an optimizer cannot do without a function that computes loss and gradients anew."""
    parameters = [*inspect.signature(type(optimizer).step).parameters.values()][1:]
    return any(one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters)


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Give a group its rate; where it has it as a tensor, which may be part of a compiled step, that stays the same."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
