"""What flows through the network: units that are never on, and values that grow or vanish from layer to layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lightkit.assembly import Learner
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.probing import compute, named, percent, plain_batch, sized

_ROWS = 256
_FEWEST = 32
"""Rows below which units may be off by chance."""
_DEAD, _ALL_DEAD = 0.5, 0.95
"""Share of units of a layer that are never on from which on it is worth a warning, and from which on it is dead."""
_LARGE = 1e4
"""Size of values from which on they explode."""
_LOST = 1e-5
"""Share of the largest difference between rows below which that of the outputs is lost."""
_DROPPED = 0.8
"""Share of values that a dropout leaves out above which it is a mistake more often than a wish."""
_IMAGES = (4, 5)
"""Dimensions of tensors whose channels come second; those of others come last."""


class _Rectified(TorchDispatchMode):
    """Notes which units of each ReLU are on for some sample, also of `torch.relu`, while inside."""

    def __init__(self) -> None:
        super().__init__()
        self.modules = [""]
        self.alive: dict[str, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.relu, torch.ops.aten.relu_):
            self._note(result)
        return result

    def _note(self, result: Tensor) -> None:
        channels = 1 if result.ndim in _IMAGES else result.ndim - 1
        others = [axis for axis in range(result.ndim) if axis != channels]
        alive = (result.detach() > 0).sum(others) > 0 if others else result.detach() > 0
        name = self.modules[-1]
        before = self.alive.get(name)
        self.alive[name] = alive if before is None or before.shape != alive.shape else before | alive


def check(patient: Patient) -> Iterator[Finding]:
    """Compute one batch in training mode and look at what each layer gives."""
    learner = patient.learner()
    learner.network.train()
    rows = patient.rows(_ROWS, seconds=4.0)
    sizes: dict[str, float] = {}
    spreads: dict[str, float] = {}
    watch = _Rectified()
    with torch.no_grad(), ExitStack() as stack:
        for name, module in learner.model.named_modules():
            _hook(stack, name, module, watch, sizes, spreads)
        batch = plain_batch(learner, rows)
        stack.enter_context(watch)
        compute(learner, batch)
    if rows >= _FEWEST:
        yield from _dead(watch.alive, rows)
    yield _size(sizes)
    if rows >= _FEWEST:
        yield from _lost(learner, spreads)
    heavy = [
        f"{name or 'the model'} ({percent(module.p)})"
        for name, module in learner.model.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > _DROPPED
    ]
    if heavy:
        measured = f"layers that drop more than {percent(_DROPPED)} of what they get: {named(heavy)}"
        why = "so little comes through that the network learns slowly or not at all"
        yield Finding("dropout", "warning", measured, why, "model.dropout", "a dropout between 0.1 and 0.5")


def _hook(
    stack: ExitStack,
    name: str,
    module: nn.Module,
    watch: _Rectified,
    sizes: dict[str, float],
    spreads: dict[str, float],
) -> None:
    def before(_module: nn.Module, _inputs: Any) -> None:
        watch.modules.append(name)

    def after(_module: nn.Module, _inputs: Any, output: Any) -> None:
        watch.modules.pop()
        if isinstance(output, Tensor) and output.is_floating_point() and output.numel() and not [*module.children()]:
            largest = float(output.detach().float().square().mean().sqrt())
            sizes[name] = max(sizes.get(name, 0.0), largest) if math.isfinite(largest) else largest
            if output.ndim > 1 and len(output) > 1:
                spreads[name] = float(output.detach().double().std(0).mean())

    for handle in (module.register_forward_pre_hook(before), module.register_forward_hook(after)):
        stack.callback(handle.remove)


def _lost(learner: Learner, spreads: dict[str, float]) -> Iterator[Finding]:
    """Find networks in which what tells rows apart is lost on the way: no output depends on the input any more."""
    values = [*spreads.values()]
    if len(values) < 4 or not 0 < values[-1] < _LOST * max(values) or not all(map(math.isfinite, values)):
        return
    largest = values.index(max(values))
    names = [*spreads][largest:]
    lost = next(name for name in names if spreads[name] < 1e-2 * values[largest])
    kinds = [type(learner.model.get_submodule(name)) for name in names]
    squashing = [kind.__name__ for kind in (nn.Sigmoid, nn.Tanh, nn.Softmax, nn.Hardtanh) if kind in kinds]
    of = (
        f", through {len([kind for kind in kinds if kind.__name__ == squashing[0]])} {squashing[0]}"
        if squashing
        else ""
    )
    measured = (
        f"outputs are nearly the same for all rows: what tells them apart falls from {values[largest]:.2g} behind "
        f"`{names[0]}` below a hundredth of that behind `{lost}` and to {values[-1]:.2g} behind `{names[-1]}`{of}"
    )
    why = "the signal vanishes on its way through the layers, and the gradient on its way back"
    fix = (
        "nn.ReLU or nn.GELU in place of nn.Sigmoid and nn.Tanh, a norm after each layer, skip connections, or larger "
        "weights to begin with (nn.init.kaiming_normal_)"
    )
    yield Finding("signal", "warning", measured, why, "model", fix, {"spreads": spreads})


def _dead(alive: dict[str, Tensor], rows: int) -> Iterator[Finding]:
    shares = {name: float((~units).float().mean()) for name, units in alive.items()}
    if not shares:
        return
    dead = {name: share for name, share in shares.items() if share > _DEAD}
    units = sum(int((~each).sum()) for each in alive.values())
    of = sum(each.numel() for each in alive.values())
    numbers = {"rows": rows, "dead": shares}
    if not dead:
        yield Finding(
            "ReLUs", "ok", f"{units:,} of {sized(of, 'unit')} are off for all of {rows} rows", numbers=numbers
        )
        return
    worst = max(dead.values())
    layers = named([f"{name or 'the model'} ({100 * share:.0f} %)" for name, share in dead.items()])
    measured = f"units that are off for all of {sized(rows, 'row')}: {layers}"
    why = "a ReLU that is always off has no gradient: such units never learn" + (
        ", and nothing behind them does" if worst >= _ALL_DEAD else ""
    )
    fix = "begin biases at 0, scale the inputs, add a norm in front; or model.activation=leaky_relu or gelu"
    yield Finding("ReLUs", "error" if worst >= _ALL_DEAD else "warning", measured, why, "model", fix, numbers)


def _size(sizes: dict[str, float]) -> Finding:
    broken = [name for name, size in sizes.items() if not math.isfinite(size)]
    name = "activations"
    if broken:
        why = "from there on everything is NaN"
        fix = "look at that layer: a division, log or square root of 0, or weights that begin too large"
        return Finding(name, "error", f"not finite from {broken[0]} on", why, "model", fix, {"not_finite": broken})
    large = [f"{each} ({size:.2g})" for each, size in sizes.items() if size > _LARGE]
    if large:
        why = "values this large drown what is learnt, overflow in half precision, and make gradients explode"
        fix = "data.normalize=standard for unscaled inputs; smaller weights to begin with, or norm layers"
        return Finding(name, "warning", f"typical sizes of {named(large)}", why, "model", fix, {"sizes": sizes})
    some = [size for size in sizes.values() if size > 0]
    span = f"typical sizes lie between {min(some):.2g} and {max(some):.2g}" if some else "all of them are 0"
    return Finding(name, "ok", span, numbers={"sizes": sizes})
