"""What flows through the network and back: units that are never on, values that grow or vanish, and gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lightkit.assembly import Learner
from lightkit.common.modules import hooked
from lightkit.common.stepping import needs_closure
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.finding import Finding, named, percent, sized
from lightkit.doctor.training.probing import compute, plain_batch, train_step, training_batches

ACTIVATIONS, GRADIENTS = "activations", "gradients"
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
_STEPS = 3
"""Steps after which a gradient has to have come: what begins behind a zero, as in LoRA, gets its first one late."""
_VANISHED = 1e-7
"""Share of the median norm of the other matrices below which nothing is learnt."""


class _Flow(TorchDispatchMode):
    """Notes what modules give, and which units of each ReLU are on for some sample, also of `torch.relu`."""

    _should_skip_dynamo = classmethod(lambda _: False)  # that would import the compiler

    def __init__(self) -> None:
        super().__init__()
        self.modules = [""]
        self.alive: dict[str, Tensor] = {}
        self.sizes: dict[str, float] = {}
        self.spreads: dict[str, float] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.relu, torch.ops.aten.relu_):
            channels = 1 if result.ndim in _IMAGES else result.ndim - 1
            others = [axis for axis in range(result.ndim) if axis != channels]
            alive = (result.detach() > 0).sum(others) > 0 if others else result.detach() > 0
            before = self.alive.get(self.modules[-1])
            self.alive[self.modules[-1]] = alive if before is None or before.shape != alive.shape else before | alive
        return result

    def enter(self, name: str, _module: nn.Module, _inputs: Any) -> None:
        self.modules.append(name)

    def leave(self, name: str, module: nn.Module, _inputs: Any, output: Any) -> None:
        self.modules.pop()
        if isinstance(output, Tensor) and output.is_floating_point() and output.numel() and not [*module.children()]:
            size = float(output.detach().float().square().mean().sqrt())
            self.sizes[name] = max(self.sizes.get(name, 0.0), size) if math.isfinite(size) else size
            if output.ndim > 1 and len(output) > 1:
                self.spreads[name] = float(output.detach().double().std(0).mean())


def check_activations(run: ExaminedRun) -> Iterator[Finding]:
    """Compute one batch in training mode and look at what each layer gives."""
    learner, rows, flow = run.learner(), run.rows(_ROWS, seconds=4.0), _Flow()
    learner.network.train()
    batch = plain_batch(learner, rows)
    with torch.no_grad(), hooked(learner.model, flow.enter, flow.leave), flow:
        compute(learner, batch)
    if rows >= _FEWEST:
        yield from _dead(flow.alive, rows)
    yield _size(flow.sizes)
    if rows >= _FEWEST:
        yield from _lost(learner, flow.spreads)
    heavy = [
        f"{name or 'the model'} ({percent(module.p)})"
        for name, module in learner.model.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > _DROPPED
    ]
    if heavy:
        measured = f"layers that drop more than {percent(_DROPPED)} of what they get: {named(heavy)}"
        why = "so little comes through that the network learns slowly or not at all"
        yield Finding("dropout", "warning", measured, why, "model.dropout", "a dropout between 0.1 and 0.5")


def _lost(learner: Learner, spreads: dict[str, float]) -> Iterator[Finding]:
    """Find networks in which what tells rows apart is lost on the way: no output depends on the input any more."""
    values = [*spreads.values()]
    if len(values) < 4 or not 0 < values[-1] < _LOST * max(values) or not all(map(math.isfinite, values)):
        return
    largest = values.index(max(values))
    names = [*spreads][largest:]
    lost = next(name for name in names if spreads[name] < 1e-2 * values[largest])
    kinds = [type(learner.model.get_submodule(name)) for name in names]
    squashing = next((kind for kind in (nn.Sigmoid, nn.Tanh, nn.Softmax, nn.Hardtanh) if kind in kinds), None)
    through = f", through {kinds.count(squashing)} {squashing.__name__}" if squashing else ""
    measured = (
        f"outputs are nearly the same for all rows: what tells them apart falls from {values[largest]:.2g} behind "
        f"`{names[0]}` below a hundredth of that behind `{lost}` and to {values[-1]:.2g} behind `{names[-1]}`{through}"
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
    numbers = {"rows": rows, "dead": shares}
    if not dead:
        units = torch.cat([each.flatten() for each in alive.values()])
        measured = f"{int((~units).sum()):,} of {sized(len(units), 'unit')} are off for all of {rows} rows"
        yield Finding("ReLUs", "ok", measured, numbers=numbers)
        return
    worst = max(dead.values())
    layers = named([f"{name or 'the model'} ({100 * share:.0f} %)" for name, share in dead.items()])
    measured = f"units that are off for all of {sized(rows, 'row')}: {layers}"
    why = "a ReLU that is always off has no gradient: such units never learn"
    why += ", and nothing behind them does" if worst >= _ALL_DEAD else ""
    fix = "begin biases at 0, scale the inputs, add a norm in front; or model.activation=leaky_relu or gelu"
    yield Finding("ReLUs", "error" if worst >= _ALL_DEAD else "warning", measured, why, "model", fix, numbers)


def _size(sizes: dict[str, float]) -> Finding:
    broken = [name for name, size in sizes.items() if not math.isfinite(size)]
    if broken:
        why = "from there on everything is NaN"
        fix = "look at that layer: a division, log or square root of 0, or weights that begin too large"
        measured, numbers = f"not finite from {broken[0]} on", {"not_finite": broken}
        return Finding(ACTIVATIONS, "error", measured, why, "model", fix, numbers)
    large = [f"{each} ({size:.2g})" for each, size in sizes.items() if size > _LARGE]
    if large:
        why = "values this large drown what is learnt, overflow in half precision, and make gradients explode"
        fix = "data.normalize=standard for unscaled inputs; smaller weights to begin with, or norm layers"
        return Finding(ACTIVATIONS, "warning", f"typical sizes of {named(large)}", why, "model", fix, {"sizes": sizes})
    some = [size for size in sizes.values() if size > 0]
    span = f"typical sizes lie between {min(some):.2g} and {max(some):.2g}" if some else "all of them are 0"
    return Finding(ACTIVATIONS, "ok", span, numbers={"sizes": sizes})


def check_gradients(run: ExaminedRun) -> Iterator[Finding]:
    """Make some training steps and look at what each parameter gets in them."""
    learner = run.learner()
    learner.network.train()
    trained = {name: each for name, each in learner.model.named_parameters() if each.requires_grad}
    norms, steps = dict.fromkeys(trained, 0.0), 0
    for batch in training_batches(learner, _STEPS, run.rows(learner.data.train.batch_size)):
        loss = compute(learner, batch, key=steps).loss
        if not loss.requires_grad:
            measured = f"none of the {sized(len(trained), 'tensor')} that train gets one: the loss depends on no weight"
            fix = "no .detach(), .item(), argmax, torch.no_grad() or NumPy between the weights and the loss"
            yield Finding(GRADIENTS, "error", measured, "nothing can be learnt", "model", fix)
            return
        learner.engine.backward(loss)
        norms = {name: max(norms[name], _norm(each.grad)) for name, each in trained.items()}
        steps += 1
        if math.inf in norms.values() or run.seconds_left() < 0:
            break
        if needs_closure(learner.optimizer):
            learner.engine.discard(learner.optimizer)
            train_step(learner, batch, key=steps - 1)
        else:
            learner.engine.step(learner.optimizer)
    yield _judged(learner, norms, steps)


def _norm(gradient: Tensor | None) -> float:
    """Return the norm of a gradient: 0 where there is none, infinity where it is not finite."""
    norm = 0.0 if gradient is None else float(gradient.detach().float().norm())
    return norm if math.isfinite(norm) else math.inf


def _judged(learner: Learner, norms: dict[str, float], steps: int) -> Finding:
    parameters, is_fp16 = dict(learner.model.named_parameters()), learner.engine.precision.name == "fp16"
    broken = [name for name, norm in norms.items() if norm == math.inf]
    without = [name for name, norm in norms.items() if norm == 0]
    matrices = {name: norm for name, norm in norms.items() if parameters[name].ndim > 1 and 0 < norm < math.inf}
    median = sorted(matrices.values())[len(matrices) // 2] if matrices else 0.0
    vanished = [name for name, norm in matrices.items() if norm < _VANISHED * median]
    numbers = {"tensors": len(norms), "without": without, "vanished": vanished, "not_finite": broken}
    if broken and not is_fp16:  # a loss scale begins too large, and comes down
        why = "the first optimizer step fills the weights with NaN"
        fix = "look for a square root, a norm, a division or a log of 0 in the model; trainer.clip_norm does not help"
        return Finding(GRADIENTS, "error", f"that of {named(broken)} is not finite", why, "model", fix, numbers)
    if without:
        share = sum(parameters[name].numel() for name in without) / sum(parameters[name].numel() for name in norms)
        measured = f"{named(without)} got none in {sized(steps, 'step')} ({percent(share)} of what trains)"
        why = "these parameters stay as they were drawn: they are not used, or cut off from the loss"
        fix = "use them in forward, without .detach() behind them; or freeze them (finetune.freeze)"
        return Finding(GRADIENTS, "error" if share > 0.5 else "warning", measured, why, "model", fix, numbers)
    if vanished:
        measured = f"that of {named(vanished)} is {_VANISHED:g} times the usual one or less"
        why = "the first layers learn nothing: on its way through the network the gradient vanishes"
        fix = "model.activation=relu or gelu in place of sigmoid, norm layers, residual connections, fewer layers"
        return Finding(GRADIENTS, "warning", measured, why, "model", fix, numbers)
    frozen = len(parameters) - len(norms)
    measured = f"each of the {sized(len(norms), 'tensor')} that train gets one"
    measured += f"; {sized(frozen, 'other tensor')} frozen" if frozen else ""
    if not is_fp16:  # whose gradients are scaled
        measured += f"; norm {sum(value**2 for value in norms.values() if value < math.inf) ** 0.5:.3g}"
    return Finding(GRADIENTS, "ok", measured, numbers=numbers)
