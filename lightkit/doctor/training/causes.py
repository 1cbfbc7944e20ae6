"""Why a network learns nothing: what other checks found of it, its learning rate, its weight decay."""

from __future__ import annotations

import math
from dataclasses import replace

from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.course import Course, same, train_briefly

_BETTER = 0.1
"""Share of the loss by which another rate has to be better than what learnt nothing."""
_CAUSES = (
    "training step",
    "kept graph",
    "optimizer",
    "unregistered layers",
    "shared memory of weights",
    "norm layers",
    "evaluation",
    "batch size",
    "outputs",
    "loss",
    "signal",
    "gradients",
    "ReLUs",
    "activations",
    "target scale",
    "one batch",
)
"""Checks whose findings say why nothing is learnt, before the data are blamed."""
_RATES = {
    0.1: "a tenth of",
    10.0: "ten times",
    0.01: "a hundredth of",
    100.0: "a hundred times",
    0.001: "a thousandth of",
    1000.0: "a thousand times",
}


def explained(patient: Patient, split: str, judged: Finding, plain: Course) -> Finding:
    """Say why nothing was learnt, where that can be shown; otherwise return the judgement as it is.

    Args:
        patient: The run.
        split: The split that was judged by.
        judged: What was found.
        plain: How the training went.
    """
    cause = patient.cause(*_CAUSES)
    if cause is not None:
        told = f"{judged.measured}; what {cause.check!r} found is reason enough"
        return replace(judged, status="note", measured=told, why="", key="", fix="")
    limit = min(judged.numbers[name] for name in ("loss", "without_inputs", "constant") if _is_number(judged, name))
    optim, steps = patient.cfg.optim, plain.steps
    if float(optim.get("weight_decay") or 0.0) > 0.05:
        course = train_briefly(patient, split, same, steps=steps, decay=False)
        if course.beats(limit, _BETTER):
            return replace(
                judged,
                measured=f"{judged.measured}; without weight decay {course.told()}",
                why=f"a weight decay of {optim.weight_decay:g} pulls the weights to 0 faster than they learn",
                key="optim.weight_decay",
                fix="optim.weight_decay=0.01",
            )
    rate = float(optim.get("lr") or 0.0)
    for factor, words in _RATES.items():
        if not rate or patient.seconds_left() < 1:
            break
        course = train_briefly(patient, split, same, steps=steps, rate=factor)
        if math.isfinite(course.loss) and course.beats(limit, _BETTER):
            size = "large: a smaller" if factor < 1 else "small: a larger"
            return replace(
                judged,
                measured=f"{judged.measured}; at {words} the rate, {factor * rate:g}, {course.told()}",
                why=f"the steps are too {size} optim.lr learns in as many steps",
                key="optim.lr",
                fix=f"optim.lr={factor * rate:g}, or what `lightkit find lr` measures",
            )
    return judged


def _is_number(judged: Finding, name: str) -> bool:
    value = judged.numbers.get(name)
    return value is not None and math.isfinite(value)
