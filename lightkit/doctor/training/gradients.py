"""Whether every parameter that is to train gets a gradient, and one of a sensible size."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from lightkit.assembly import Learner
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.probing import compute, named, percent, sized, training_batches

NAME = "gradients"
_STEPS = 3
"""Steps after which a gradient has to have come: what begins behind a zero, as in LoRA, gets its first one late."""
_VANISHED = 1e-7
"""Share of the median norm of the other matrices below which nothing is learnt."""


def check(patient: Patient) -> Iterator[Finding]:
    """Make some training steps and look at what each parameter gets in them."""
    learner = patient.learner()
    learner.network.train()
    trained = {name: each for name, each in learner.model.named_parameters() if each.requires_grad}
    norms = dict.fromkeys(trained, 0.0)
    steps = 0
    size = patient.rows(learner.data.train.batch_size)
    for number, batch in enumerate(training_batches(learner, _STEPS, size)):
        loss = compute(learner, batch, key=number).loss
        if not loss.requires_grad:
            measured = f"none of the {sized(len(trained), 'tensor')} that train gets one: the loss depends on no weight"
            fix = "no .detach(), .item(), argmax, torch.no_grad() or NumPy between the weights and the loss"
            yield Finding(NAME, "error", measured, "nothing can be learnt", "model", fix)
            return
        learner.engine.backward(loss)
        norms = {name: max(norms[name], _norm(each.grad)) for name, each in trained.items()}
        steps += 1
        if math.inf in norms.values() or patient.seconds_left() < 0:
            break
        learner.engine.step(learner.optimizer)
    yield _judged(learner, norms, steps)


def _norm(gradient: Tensor | None) -> float:
    """Return the norm of a gradient: 0 where there is none, infinity where it is not finite."""
    if gradient is None:
        return 0.0
    norm = float(gradient.detach().float().norm())
    return norm if math.isfinite(norm) else math.inf


def _judged(learner: Learner, norms: dict[str, float], steps: int) -> Finding:
    parameters = dict(learner.model.named_parameters())
    broken = [name for name, norm in norms.items() if norm == math.inf]
    without = [name for name, norm in norms.items() if norm == 0]
    matrices = {name: norm for name, norm in norms.items() if parameters[name].ndim > 1 and 0 < norm < math.inf}
    median = sorted(matrices.values())[len(matrices) // 2] if matrices else 0.0
    vanished = [name for name, norm in matrices.items() if norm < _VANISHED * median]
    numbers = {"tensors": len(norms), "without": without, "vanished": vanished, "not_finite": broken}
    tensors = sized(len(norms), "tensor")
    if broken and learner.engine.precision.name != "fp16":  # a loss scale begins too large, and comes down
        why = "the first optimizer step fills the weights with NaN"
        fix = "look for a square root, a norm, a division or a log of 0 in the model; trainer.clip_norm does not help"
        return Finding(NAME, "error", f"that of {named(broken)} is not finite", why, "model", fix, numbers)
    if without:
        share = sum(parameters[name].numel() for name in without) / sum(parameters[name].numel() for name in norms)
        measured = f"{named(without)} got none in {sized(steps, 'step')} ({percent(share)} of what trains)"
        why = "these parameters stay as they were drawn: they are not used, or cut off from the loss"
        fix = "use them in forward, without .detach() behind them; or freeze them (finetune.freeze)"
        return Finding(NAME, "error" if share > 0.5 else "warning", measured, why, "model", fix, numbers)
    if vanished:
        measured = f"that of {named(vanished)} is {_VANISHED:g} times the usual one or less"
        why = "the first layers learn nothing: on its way through the network the gradient vanishes"
        fix = "model.activation=relu or gelu in place of sigmoid, norm layers, residual connections, fewer layers"
        return Finding(NAME, "warning", measured, why, "model", fix, numbers)
    norm = sum(value**2 for value in norms.values() if value < math.inf) ** 0.5
    size = f"; norm {norm:.3g}" if learner.engine.precision.name != "fp16" else ""  # whose gradients are scaled
    frozen = sized(len(parameters) - len(norms), "other tensor")
    rest = f"; {frozen} frozen" if len(parameters) > len(norms) else ""
    return Finding(NAME, "ok", f"each of the {tensors} that train gets one{rest}{size}", numbers=numbers)
