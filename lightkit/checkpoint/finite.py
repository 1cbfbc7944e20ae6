"""Weights with values that are no numbers, as a run that diverged leaves them: no start for anything."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lightkit.common.errors import UserError

_SHOWN = 5


def check_finite(
    values: Mapping[str, torch.Tensor], *, built: Mapping[str, torch.Tensor], source: str, fix: str | None = None
) -> None:
    """Refuse NaN and infinities.

    Args:
        values: Tensors by name.
        built: Those of the model as it was built; an infinity that stands there too belongs there, as in a causal mask.
        source: Where the values come from, for the message.
        fix: What else can be done than to take other weights.

    Raises:
        UserError: There are some; the message names the tensors and counts the values.
    """
    faults = [text for name, tensor in values.items() if (text := _fault(name, tensor, built[name]))]
    if faults:
        lines = "".join(f"\n    {text}" for text in faults[:_SHOWN])
        more = f"\n    … and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        what = f"the weights were not loaded: {len(faults)} tensor(s) with values that are not finite{lines}{more}"
        other = "weights from before they diverged"
        raise UserError(what, key=source, fix=f"{other}, or {fix}" if fix else other, family="weights")


def _fault(name: str, tensor: torch.Tensor, built: torch.Tensor) -> str | None:
    """Say what is wrong with the values of a tensor; None where nothing is."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    if tensor.element_size() == 1:
        tensor = tensor.float()
    else:  # the sum is not finite where a value is not: one pass without a copy
        wide = None if tensor.is_complex() or tensor.element_size() > 4 else torch.float32
        if torch.isfinite(tensor.sum(dtype=wide)):
            return None
    odd = ~torch.isfinite(tensor)
    if built.shape == tensor.shape:
        odd &= tensor != built.to(tensor)
    nan = torch.isnan(tensor) & odd
    kinds = [kind for kind, found in (("NaN", nan), ("infinite", odd & ~nan)) if found.any()]
    return f"{name}: {int(odd.sum()):,} of {tensor.numel():,} values are {' or '.join(kinds)}" if kinds else None
