"""Limits on the gradients before an optimizer step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.argument_checks import check_norm
from lightkit.common.errors import UserError, keys_under
from lightkit.common.modules import is_shard

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
        return _whole(nn.utils.clip_grad_norm_(_parameters(optimizer), self.limit, self.order))

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
    return _whole(nn.utils.get_total_norm([p.grad for p in _parameters(optimizer) if p.grad is not None]))


def each_norm(optimizer: Optimizer, order: float = 2.0) -> Tensor:
    """Compute a norm of the gradients of each of many models, which are dimension 0, `(M,)`."""
    norms = [torch.linalg.vector_norm(gradient.flatten(1), order, dim=1) for gradient in _gradients(optimizer, least=2)]
    norms += [gradient.abs() for gradient in _gradients(optimizer) if gradient.ndim == 1]
    return torch.linalg.vector_norm(torch.stack(norms), order, dim=0)


def _whole(norm: Tensor) -> Tensor:
    """Return the norm over all processes, where each has a part of the gradients."""
    found: Tensor = norm.full_tensor() if is_shard(norm) else norm  # type: ignore[attr-defined]
    return found


def _gradients(optimizer: Optimizer, *, least: int = 1) -> Iterator[Tensor]:
    """Yield the gradients with so many dimensions at least."""
    found = (parameter.grad for parameter in _parameters(optimizer))
    return (gradient for gradient in found if gradient is not None and gradient.ndim >= least)


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
