"""Whether inputs and targets have a scale from which a network learns.

Shapes in this file: N rows, F features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient

INPUTS, TARGETS = "input scale", "target scale"
_LARGE, _SMALL = 10.0, 0.01
"""Deviations of all inputs outside of which they are not scaled."""
_OFFSET = 10.0
"""How many deviations the mean may lie from 0."""
_UNEVEN = 100.0
"""How many times wider one feature of a table may be than another."""
_FAR = 100.0
"""Largest size of regression targets that a network, which starts near 0, reaches soon."""


def check(patient: Patient) -> Iterator[Finding]:
    """Look at the numbers that reach the network."""
    yield from find_unscaled_inputs(patient.sample)
    yield from find_far_targets(patient.sample)


def find_unscaled_inputs(sample: DataSample) -> Iterator[Finding]:
    """Find inputs that are large, tiny, far from 0, or of very different widths."""
    x = sample.train.x
    if x is None or not x.is_floating_point():
        yield Finding(INPUTS, "skipped", "inputs are no tensors of fractional numbers")
        return
    x = x.to(torch.float32)
    mean, deviation, largest = float(x.mean()), float(x.std()), float(x.abs().max())
    numbers = {"mean": mean, "deviation": deviation, "largest": largest}
    measured = f"training inputs have mean {mean:.3g}, deviation {deviation:.3g}, and reach {largest:.3g}"
    fault, told = _fault_of_scale(sample, x, numbers)
    if not fault:
        yield Finding(INPUTS, "ok", measured, numbers=numbers)
        return
    same = deviation == 0
    fix = "look at what the data set gives: `lightkit show data`"
    yield Finding(
        INPUTS,
        "error" if same else "warning",
        measured + told,
        why=fault,
        key="data.normalize",
        fix=fix if same else f"data.normalize={'image' if x.ndim == 4 else 'standard'}",
        numbers=numbers,
    )


def _fault_of_scale(sample: DataSample, x: Tensor, numbers: dict[str, float]) -> tuple[str, str]:
    """Return what is wrong with the scale of inputs, and what more was measured; empty where it is fine."""
    mean, deviation = numbers["mean"], numbers["deviation"]
    if deviation == 0:
        return "every input is the same number", ""
    if deviation > _LARGE:
        return "large inputs make large gradients in the first layer and small steps in all others", ""
    if deviation < _SMALL:
        return "tiny inputs hardly change what the first layer gives", ""
    if abs(mean) > _OFFSET * deviation:
        return "inputs differ by little compared with how far they lie from 0", ""
    widths = _widths(x) if sample.is_table else x[:0]
    numbers["width_ratio"] = float(widths.max() / widths.min()) if len(widths) else 1.0
    if numbers["width_ratio"] > _UNEVEN:
        told = f"; the widest feature is {numbers['width_ratio']:,.0f} times as wide as the narrowest"
        return "the widest features decide what is learned, and one learning rate does not suit all", told
    return "", ""


def _widths(x: Tensor) -> Tensor:
    """Return the deviations of features of a table that are neither constant nor yes or no."""
    spread, varied = x.std(0), (x != x[:1]).any(0)
    plain = torch.tensor([len(column[:500].unique()) > 2 for column in x.unbind(1)])
    return spread[varied & plain & (spread > 0)]


def find_far_targets(sample: DataSample) -> Iterator[Finding]:
    """Find regression targets that a network, which starts near 0, takes long to reach."""
    y = sample.targets("train")
    if sample.data.info.task != "regression" or y is None:
        return
    y = y.double()
    mean, deviation, largest = float(y.mean()), float(y.std()), float(y.abs().max())
    bad = largest >= _FAR or 0 < deviation < _SMALL
    measured = f"targets have mean {mean:.3g}, deviation {deviation:.3g}, and reach {largest:.3g}"
    why = "a network starts near 0, and errors of this size make its first steps too large or too small" if bad else ""
    key = sample.key("target_scale") if bad else ""
    fix = _target_fix(sample, deviation) if bad else ""
    numbers = {"mean": mean, "deviation": deviation, "largest": largest}
    yield Finding(TARGETS, "warning" if bad else "ok", measured, why, key, fix, numbers)


def _target_fix(sample: DataSample, deviation: float) -> str:
    """Say by what to divide targets: a number that is easy to read."""
    unit = 10.0 ** round(math.log10(deviation)) if deviation > 0 else 1.0
    if sample.takes("target_scale"):
        return f"divide them, so that their deviation is near 1: data.dataset.target_scale={unit:g}"
    return f"divide them by {unit:g} in the data set, so that their deviation is near 1"
