"""Number formats of the forward and backward pass, exactness of fp32, and the one place that steps an optimizer."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.errors import UserError
from lightkit.common.stepping import take_step
from lightkit.device.casting import FullLoss, FullOutputs, InputsAs, floats_as, weights_as
from lightkit.device.stepping import Clip, begin_momentum

MATMUL = ("highest", "high", "medium")
"""How exact products of fp32 matrices may be; see `set_matmul`."""
_PLAIN_ZERO_GRAD = Optimizer.zero_grad


class Precision:
    """Full precision: the plain case. Variants override what differs.

    Args:
        device: Where the model computes.
    """

    name = "fp32"
    matmul = "highest"
    """How exact fp32 matrix products are unless something else is asked for; see `set_matmul`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._context = nullcontext()

    @classmethod
    def set_matmul(cls, device: torch.device, level: str | None = None) -> None:
        """Set for the whole process how exact products of fp32 matrices are; None goes by the precision."""
        set_matmul(level or cls.matmul, convolutions=cls.name == "tf32")

    def place(self, module: nn.Module) -> nn.Module:
        """Move whatever computes beside the model: a loss, a teacher."""
        return module.to(self.device)

    def place_model(self, model: nn.Module) -> nn.Module:
        """Move the model; its weights get the format they are trained in."""
        return self.place(model)

    def place_loss(self, loss: Any) -> Any:
        """Move a loss where it has tensors of its own; it is computed in fp32 at least."""
        return self.place(loss) if isinstance(loss, nn.Module) else loss

    def prepare(self, model: nn.Module) -> nn.Module:
        """Let a model take and give what this precision wants; its parameter names stay."""
        return model

    def batch(self, batch: Any) -> Any:
        """Turn a batch into the format it is computed in."""
        return batch

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context for the forward pass."""
        return self._context

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to the parameters."""
        loss.backward()

    def step(self, optimizer: Optimizer, *, clip: Clip, want_norm: bool = False) -> Tensor | None:
        """Unscale, clip, step, clear the gradients: in this order, whatever the precision.

        Returns:
            Norm of the gradients before clipping, or None where neither asked for nor a by-product.
        """
        self.unscale(optimizer)
        norm = clip(optimizer, want_norm=want_norm)
        self.update(optimizer)
        clear_gradients(optimizer)
        return norm

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring the gradients back to their true size; here they have it."""

    def beside(self, name: str) -> Precision:
        """Return what steps a further optimizer of that name: the same, where there is no loss scale."""
        return self

    def true_size(self, gradient: Tensor) -> Tensor:
        """Return a gradient that `unscale` has not seen yet in its true size."""
        return gradient

    def update(self, optimizer: Optimizer) -> None:
        """Let the optimizer take its step."""
        take_step(optimizer)

    def discard(self, optimizer: Optimizer) -> None:
        """Clear the gradients without a step."""
        clear_gradients(optimizer)

    def skipped(self) -> int:
        """Count the steps left out because gradients overflowed; waits for the device where there may be some."""
        return 0

    def vitals(self) -> dict[str, float]:
        """Return what is worth logging beside a loss; waits for the device."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: nothing without a loss scale."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint kept."""


class Tf32(Precision):
    """fp32 throughout, with matrix products and convolutions rounded to 10 bits of mantissa where the GPU can."""

    name = "tf32"
    matmul = "high"

    @classmethod
    def set_matmul(cls, device: torch.device, level: str | None = None) -> None:
        """See `Precision.set_matmul`; a CPU keeps its fp32."""
        if device.type == "cuda":
            super().set_matmul(device, level)
        else:
            set_matmul(level or "highest", convolutions=False)


class Bf16(Precision):
    """Matrix products in bfloat16 by autocast; weights, gradients, outputs and losses stay in fp32."""

    name = "bf16"
    dtype = torch.bfloat16

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context for the forward pass; a new one each time, as a nested use of the same one would not end."""
        return torch.autocast(self.device.type, dtype=self.dtype)

    def place_loss(self, loss: Any) -> Any:
        """Move a loss, which is not rounded."""
        return FullLoss(super().place_loss(loss), self.device)

    def prepare(self, model: nn.Module) -> nn.Module:
        """Let the model give its outputs in fp32, so that losses and metrics are computed in it."""
        model.register_forward_hook(FullOutputs())
        return model


class Fp16(Bf16):
    """Matrix products in float16, with a loss scale that keeps small gradients from vanishing.

    A step whose gradients overflow is left out and the scale halved (Micikevicius et al. 2018,
    https://arxiv.org/abs/1710.03740); the scale is part of a checkpoint, and so is the number of such steps. They are
    counted on the device: nothing waits for it.
    """

    name = "fp16"
    dtype = torch.float16

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.scaler = torch.amp.GradScaler(device.type)
        self._skipped = torch.zeros((), device=device)
        self._beside: dict[str, Fp16] = {}

    def beside(self, name: str) -> Fp16:
        """Return what steps a further optimizer of that name, with a loss scale of its own."""
        return self._beside.setdefault(name, Fp16(self.device))

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the scaled loss."""
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale, so that clipping sees their true size."""
        self.scaler.unscale_(optimizer)

    def true_size(self, gradient: Tensor) -> Tensor:
        """Return a gradient divided by the scale; the same one stays as it is. Waits for the device."""
        return gradient / self.scaler.get_scale()

    def update(self, optimizer: Optimizer) -> None:
        """Step where all gradients are finite, count where not, and adapt the scale."""
        found = list(self.scaler._found_inf_per_device(optimizer).values())  # on every device with parameters
        self._skipped += sum(overflowed.to(self.device, non_blocking=True) for overflowed in found) > 0
        begin_momentum(optimizer)
        self.scaler.step(optimizer)
        self.scaler.update()

    def skipped(self) -> int:
        """Count the steps left out because gradients overflowed; waits for the device."""
        return int(self._skipped.item())

    def vitals(self) -> dict[str, float]:
        """Return the loss scale and the steps left out so far."""
        return {"amp/scale": self.scaler.get_scale(), "amp/skipped_steps": float(self.skipped())}

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, how long it has held, and the steps left out."""
        beside = {name: one.state_dict() for name, one in self._beside.items()}
        return {**self.scaler.state_dict(), "skipped": self.skipped(), **({"beside": beside} if beside else {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a saved scale."""
        if state:
            own = ("skipped", "beside")
            self.scaler.load_state_dict({name: value for name, value in state.items() if name not in own})
            self._skipped.fill_(state.get("skipped", 0))
            for name, saved in state.get("beside", {}).items():
                self.beside(name).load_state_dict(saved)


class Bf16True(Precision):
    """Weights, gradients and the optimizer's state in bfloat16: half the memory of fp32. Losses are computed in fp32.

    An update below 1/256 of a weight is rounded away, so rates must not be small, and averages of squares with a long
    memory (`betas` of Adam near 1) hardly move.
    """

    name = "bf16-true"
    dtype = torch.bfloat16

    def place_model(self, model: nn.Module) -> nn.Module:
        """Move the model and turn its weights into bfloat16."""
        return weights_as(self.dtype, super().place_model(model))

    def prepare(self, model: nn.Module) -> nn.Module:
        """Let the model take bfloat16 and give fp32."""
        model.register_forward_pre_hook(InputsAs(self.dtype), with_kwargs=True)
        model.register_forward_hook(FullOutputs())
        return model


class Fp64(Precision):
    """Everything in double precision, losses and metrics too: to find out what rounding does."""

    name = "fp64"
    dtype = torch.float64

    def place(self, module: nn.Module) -> nn.Module:
        """Move a module and turn its weights into float64."""
        return weights_as(self.dtype, super().place(module))

    def prepare(self, model: nn.Module) -> nn.Module:
        """Let the model take any floats."""
        model.register_forward_pre_hook(InputsAs(self.dtype), with_kwargs=True)
        return model

    def batch(self, batch: Any) -> Any:
        """Turn inputs and targets into float64; whole numbers stay."""
        return floats_as(self.dtype, batch)


def set_matmul(level: str, *, convolutions: bool) -> None:
    """Set for the whole process how fp32 matrix products and convolutions are computed.

    PyTorch has newer names for this (`torch.backends.cuda.matmul.fp32_precision`), which the calls here set as well.
    Setting only those makes it refuse to read the older ones, with an error in the middle of whatever library asks.

    Args:
        level: `highest` computes in fp32, `high` in TF32 where there is one, `medium` in bfloat16 where that pays.
        convolutions: Let convolutions and recurrent layers of cuDNN use TF32; PyTorch does by default.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions recommend the newer names
        torch.set_float32_matmul_precision(level)
        torch.backends.cudnn.allow_tf32 = convolutions


def clear_gradients(optimizer: Optimizer) -> None:
    """Set the gradients to None: `optimizer.zero_grad` without its profiler record, which costs more than the rest."""
    if type(optimizer).zero_grad is not _PLAIN_ZERO_GRAD:
        optimizer.zero_grad(set_to_none=True)
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


_KINDS: dict[str, type[Precision]] = {kind.name: kind for kind in (Precision, Tf32, Bf16, Fp16, Bf16True, Fp64)}


def precision_named(name: str) -> type[Precision]:
    """Return the class of a precision.

    Raises:
        UserError: There is no such precision.
    """
    if name not in _KINDS:
        raise UserError("no such precision", argument="precision", received=name, choices=_KINDS)
    return _KINDS[name]


def make_precision(name: str, device: torch.device) -> Precision:
    """Make the precision of that name; see `check_support` for what a device makes of it.

    Raises:
        UserError: There is no such precision.
    """
    return precision_named(name)(device)
