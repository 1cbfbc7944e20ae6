"""Optimizer steps: without PyTorch's compiler, with limits on the gradients, and by which kernels.

What PyTorch wraps around the methods of an optimizer imports `torch._dynamo`, so that they behave inside of
`torch.compile`. That import takes longer than importing torch itself, in a program that compiles nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.argument_checks import check_norm
from lightkit.common.errors import UserError, keys_under
from lightkit.common.modules import everywhere, is_shard

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


_CLIP_EPS = 1e-6
"""What PyTorch's `clip_grad_norm_` adds to the norm that it divides by."""


class Clip:
    """The plain case: gradients are left alone, and only measured when asked."""

    def __call__(self, optimizer: Optimizer, *, want_norm: bool) -> Tensor | None:
        """Limit the gradients of all parameters of an optimizer, in place.

        Args:
            optimizer: Its gradients are complete and unscaled.
            want_norm: Whether the caller wants the norm; measuring costs a pass over the gradients.

        Returns:
            Norm of all gradients together before the limit, a 0-d tensor on the device; None where it was not measured.
        """
        return total_norm(optimizer) if want_norm else None

    def each(self, optimizer: Optimizer, *, want_norm: bool) -> Tensor | None:
        """Limit the gradients of many models at once, each model by itself, in place.

        Args:
            optimizer: Its gradients have the models in dimension 0, `(M, ...)`.
            want_norm: Whether the caller wants the norms.

        Returns:
            Norms of the gradients of each model before the limit, `(M,)`; None where they were not measured.
        """
        return each_norm(optimizer) if want_norm else None


class ClipNorm(Clip):
    """Scales all gradients down together when their norm is larger (Pascanu et al. 2013, https://arxiv.org/abs/1211.5063).

    Args:
        limit: Largest norm.
        order: Which norm: 2 is the Euclidean one, 1 the sum of all absolute values, infinity the largest of them.
    """

    def __init__(self, limit: float, order: float = 2.0) -> None:
        self.limit, self.order = limit, order

    def __call__(self, optimizer: Optimizer, *, want_norm: bool) -> Tensor | None:
        """See `Clip`; the norm is a by-product here and always returned."""
        return everywhere(nn.utils.clip_grad_norm_(_parameters(optimizer), self.limit, self.order))

    def each(self, optimizer: Optimizer, *, want_norm: bool) -> Tensor | None:
        """See `Clip.each`; the norms are always returned."""
        norms = each_norm(optimizer, self.order)
        factors = (self.limit / (norms + _CLIP_EPS)).clamp(max=1.0)
        for gradient in _gradients(optimizer):
            gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)))
        return norms


class ClipValue(Clip):
    """Cuts every gradient element to `[-limit, limit]`.

    Args:
        limit: Largest absolute value.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def __call__(self, optimizer: Optimizer, *, want_norm: bool) -> Tensor | None:
        """See `Clip`."""
        norm = super().__call__(optimizer, want_norm=want_norm)
        if with_gradient := [p for p in _parameters(optimizer) if p.grad is not None]:  # torch refuses an empty list
            nn.utils.clip_grad_value_(with_gradient, self.limit)
        return norm

    def each(self, optimizer: Optimizer, *, want_norm: bool) -> Tensor | None:
        """See `Clip.each`."""
        norms = super().each(optimizer, want_norm=want_norm)
        for gradient in _gradients(optimizer):
            gradient.clamp_(-self.limit, self.limit)
        return norms


def make_clip(*, norm: float | None = None, value: float | None = None, order: float = 2.0) -> Clip:
    """Make the limit that is set; at most one may be.

    Args:
        norm: Largest norm of all gradients together.
        value: Largest absolute value of a gradient element.
        order: Which norm; see `ClipNorm`.

    Raises:
        UserError: Both are set, or a number is not above 0.
    """
    if norm is not None and value is not None:
        raise UserError(
            "set either this or trainer.clip_value", key="trainer.clip_norm", received=norm, family="contradiction"
        )
    for key, limit in (("trainer.clip_norm", norm), ("trainer.clip_value", value)):
        if limit is not None and not limit > 0:
            raise UserError("no such limit", key=key, expected="a number above 0, or null", received=limit)
    with keys_under("trainer"):
        check_norm(order)
    if norm is not None:
        return ClipNorm(norm, order)
    return Clip() if value is None else ClipValue(value)


def total_norm(optimizer: Optimizer) -> Tensor:
    """Compute the Euclidean norm of all gradients of an optimizer together, a 0-d tensor on the device."""
    return everywhere(nn.utils.get_total_norm([p.grad for p in _parameters(optimizer) if p.grad is not None]))


def each_norm(optimizer: Optimizer, order: float = 2.0) -> Tensor:
    """Compute a norm of the gradients of each of many models, which are dimension 0, `(M,)`."""
    norms = [torch.linalg.vector_norm(gradient.flatten(1), order, dim=1) for gradient in _gradients(optimizer, least=2)]
    norms += [gradient.abs() for gradient in _gradients(optimizer) if gradient.ndim == 1]
    return torch.linalg.vector_norm(torch.stack(norms), order, dim=0)


def _gradients(optimizer: Optimizer, *, least: int = 1) -> Iterator[Tensor]:
    """Yield the gradients with so many dimensions at least."""
    found = (parameter.grad for parameter in _parameters(optimizer))
    return (gradient for gradient in found if gradient is not None and gradient.ndim >= least)


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


NAMES = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
"""Arguments that ask for an implementation."""
FLAGS = ("fused", "foreach")
"""Arguments and group settings that tell of one; they belong to the machine, not to what was learnt."""
_KERNELS = ("cuda", "cpu")
SHARED_OUT = ("Adam", "AdamW")
"""Optimizers of PyTorch with a kernel for parameters of which each process holds a part."""


def arguments(name: str, model: nn.Module, device: torch.device, *, kind: str = "AdamW") -> dict[str, bool]:
    """Return arguments for an optimizer, as far as it takes them.

    `auto` asks for one kernel for all parameters on NVIDIA's GPUs and on the CPU. Elsewhere, and for gradients that it
    does not take, PyTorch chooses. Of parameters that are shared out not every optimizer has such a kernel.

    Args:
        name: `auto`, `fused`, `foreach` or `loop`.
        model: Its parameters are those of the optimizer.
        device: Where they are.
        kind: Name of the optimizer's class.

    Raises:
        UserError: `fused` is asked for where there is no such kernel.
    """
    if kind not in SHARED_OUT and any(map(is_shard, model.parameters())):
        if name == "fused":
            what = f"PyTorch has no kernel of {kind} for parameters of which each process holds a part"
            raise UserError(what, argument="optimizer", received=name, choices=("auto", "foreach", "loop"))
        return dict(NAMES["foreach" if name == "auto" else name])
    if name != "auto":
        return dict(NAMES[name])
    parameters = list(model.parameters())
    if device.type not in _KERNELS or any(getattr(module, "sparse", False) for module in model.modules()):
        return {}
    if any(nn.parameter.is_lazy(parameter) or not parameter.is_floating_point() for parameter in parameters):
        return {}
    return {"fused": True} if all(_fills_its_memory(parameter) for parameter in parameters) else {}


def _fills_its_memory(tensor: Tensor) -> bool:
    """Tell whether its elements lie side by side, in whatever order; gradients then lie in the same order."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def implementation_of(optimizer: Optimizer) -> str:
    """Return `fused`, `foreach` or `loop` where one was asked for; empty where PyTorch chooses or has no choice."""
    if optimizer.defaults.get("fused"):
        return "fused"
    chosen = optimizer.defaults.get("foreach")
    return "" if chosen is None else "foreach" if chosen else "loop"
