"""Features that say nothing or too much at once, and pictures that are not as convolutions take them.

Constant features, numbers that stand for a missing value, a scale from which no network learns, images without a
picture, channels that come last, and bytes that overflowed.

Shapes in this file: N rows, F features; of pictures C channels, H and W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn

from lightkit.common.modules import hooked
from lightkit.data.tensors import TensorData
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding, Status, named

CONSTANT, MISSING = "constant features", "missing values"
_SENTINEL_SHARE = 0.01
_APART = 3.0
"""How far a number that stands for a missing value lies from all others, in widths of these."""
_FILLED = 0.5
"""Share of a column from which filling it in makes most of it up."""
_BLANK = 0.01
_ENOUGH_ROWS = 20_000
_MANY = 32
"""Features from which on some that are always 0 (pixels at the rim, words that are rare) are no surprise."""


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Look at the features of the training rows."""
    yield from find_constant_features(run.sample)
    yield from find_missing_values(run.sample)


def find_constant_features(sample: DataSample) -> Iterator[Finding]:
    """Find columns of a table that never change, and images of one colour."""
    x = sample.train.x
    if x is None or not x.is_floating_point():
        yield Finding(CONSTANT, "skipped", "inputs are no tensors of fractional numbers")
        return
    if not sample.is_table:
        yield _blank_samples(x)
        return
    columns = _whole(sample)
    fixed = (columns == columns[:1]).all(0)
    names = [name for name, is_fixed in zip(sample.columns(), fixed.tolist()) if is_fixed]
    numbers = {"constant": names, "features": columns.shape[1]}
    if not names:
        yield Finding(CONSTANT, "ok", f"none of {columns.shape[1]:,} features is constant", numbers=numbers)
        return
    values = sample.unscaled(columns[:1])[0, fixed]
    # Pixels at the rim and words that do not occur are 0 in every row, and nobody takes them for information.
    is_rim = columns.shape[1] >= _MANY and bool((values.abs() < 1e-6).all()) and len(names) < columns.shape[1] / 2
    measured = f"{len(names)} of {columns.shape[1]:,} features are the same in all training rows: {named(names, 8)}"
    why = "they tell rows apart in no way; where they should, reading or joining them went wrong"
    fix = "look at where the columns come from, or leave them out"
    yield Finding(CONSTANT, "note" if is_rim else "warning", measured, why, sample.key("features"), fix, numbers)


def _blank_samples(x: Tensor) -> Finding:
    flat = x.flatten(1)
    blank = (flat == flat[:, :1]).all(1) if flat.shape[1] > 1 else torch.zeros(len(flat), dtype=torch.bool)
    count, share = int(blank.sum()), float(blank.float().mean())
    status: Status = "warning" if share >= _BLANK and count >= 3 else "ok"
    measured = f"{count:,} of {len(x):,} training inputs ({share:.1%}) hold one number only, as blank images do"
    why = "their labels cannot be learned from nothing; the files may be broken"
    fix, numbers = "look at them with `lightkit show data`, and leave them out", {"blank": count, "share": share}
    return Finding(CONSTANT, status, measured, why, "data.dataset", fix, numbers)


def find_missing_values(sample: DataSample) -> Iterator[Finding]:
    """Find numbers that stand for a missing value (-999), and columns most of which was filled in."""
    if not sample.is_table:
        yield Finding(MISSING, "skipped", "inputs are no table")
        return
    rows, generator = _whole(sample), torch.Generator().manual_seed(0)
    columns = sample.unscaled(rows[torch.randperm(len(rows), generator=generator)[:_ENOUGH_ROWS]])
    pairs = zip(sample.columns(), columns.unbind(1))
    marks = {name: mark for name, column in pairs if (mark := _sentinel(column)) is not None}
    if marks:
        shown = ", ".join(f"{value:g} in {share:.0%} of {name}" for name, (value, share) in list(marks.items())[:5])
        measured = f"numbers far from all others, which may stand for a missing value: {shown}"
        why = "the network takes them for measurements, and scaling squeezes the true ones together"
        fix = "put what is usual in their place, with a feature that says where"
        if sample.takes("missing"):
            fix = "leave such cells empty in the file, and fill them: data.dataset.missing=median"
        numbers = {"columns": {name: {"value": value, "share": share} for name, (value, share) in marks.items()}}
        yield Finding(MISSING, "warning", measured, why, sample.key("missing"), fix, numbers)
        return
    filled = _filled(sample)
    shares = {name: f"{share:.0%} of {name}" for name, share in filled.items()}
    most = [shares[name] for name, share in filled.items() if share >= _FILLED]
    measured = "no number stands for a missing value"
    measured += f", and filled in: {', '.join(shares.values())}" if filled else ""
    if most:
        measured = f"most of a column was filled in: {', '.join(most[:5])}"
    why = "such a column tells more about what was asked for than about what was measured"
    key, fix = "data.dataset.features", "leave the column out, or data.dataset.add_indicator=true"
    yield Finding(MISSING, "warning" if most else "ok", measured, why, key, fix, {"filled": filled})


def _whole(sample: DataSample) -> Tensor:
    """Return all training rows of a table in memory, otherwise those that were read."""
    source, x = sample.data.source, sample.train.x
    assert x is not None, "asked before"
    if isinstance(source, TensorData) and source.x.is_floating_point() and source.x.numel() <= 50_000_000:
        return source.x[sample.data.rows["train"]]
    return x


def _sentinel(column: Tensor) -> tuple[float, float] | None:
    """Return the number that stands for a missing value in a column, and its share; None where none does."""
    values, counts = column.unique(return_counts=True)
    if len(values) < 10:
        return None
    for at, rest in ((0, values[1:]), (-1, values[:-1])):
        share, width = float(counts[at]) / len(column), float(rest[-1] - rest[0])
        gap = float((values[at] - rest).abs().min())
        # A measured number does not come back to the digit, far from all others.
        if share >= _SENTINEL_SHARE and counts[at] >= 3 and gap > _APART * width > 0:
            return float(f"{values[at]:.4g}"), share
    return None


def _filled(sample: DataSample) -> dict[str, float]:
    """Return the share of each column that was filled in, as far as the data know it."""
    filling, source = sample.data.filling, sample.data.source
    if filling is None or not isinstance(source, TensorData):
        return {}
    shares, x = dict[str, float](), sample.unscaled(_whole(sample))
    for gaps in filling.columns:
        value = filling.values[gaps.name]
        if gaps.kinds is None and gaps.strategy != "most_frequent":
            same = (x[:, gaps.first] - value[0]).abs() <= 1e-4 * max(abs(value[0]), 1e-3)
            shares[gaps.name] = float(same.float().mean())
    return {name: share for name, share in shares.items() if share >= 0.05}


INPUTS, TARGETS = "input scale", "target scale"
_LARGE, _SMALL = 10.0, 0.01
"""Deviations of all inputs outside of which they are not scaled."""
_OFFSET = 10.0
"""How many deviations the mean may lie from 0."""
_UNEVEN = 100.0
"""How many times wider one feature of a table may be than another."""
_FAR = 100.0
"""Largest size of regression targets that a network, which starts near 0, reaches soon."""


def check_scale(run: ExaminedRun) -> Iterator[Finding]:
    """Look at the numbers that reach the network."""
    if getattr(run.sample.data.source, "scales_itself", False):
        yield Finding(INPUTS, "skipped", "the task gives the network each series in a scale of its own")
        return
    yield from find_unscaled_inputs(run.sample)
    yield from find_far_targets(run.sample)


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
    why, more = _fault_of_scale(sample, x, numbers)
    status: Status = "error" if deviation == 0 else "warning" if why else "ok"
    fix = f"data.normalize={'image' if x.ndim == 4 else 'standard'}"
    if deviation == 0:
        fix = "look at what the data set gives: `lightkit show data`"
    yield Finding(INPUTS, status, measured + more, why, "data.normalize", fix, numbers)


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
        more = f"; the widest feature is {numbers['width_ratio']:,.0f} times as wide as the narrowest"
        return "the widest features decide what is learned, and one learning rate does not suit all", more
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
    status: Status = "warning" if largest >= _FAR or 0 < deviation < _SMALL else "ok"
    measured = f"targets have mean {mean:.3g}, deviation {deviation:.3g}, and reach {largest:.3g}"
    why = "a network starts near 0, and errors of this size make its first steps too large or too small"
    unit = 10.0 ** round(math.log10(deviation)) if deviation > 0 else 1.0  # a number that is easy to read
    fix = f"divide them by {unit:g} in the data set, so that their deviation is near 1"
    if sample.takes("target_scale"):
        fix = f"divide them, so that their deviation is near 1: data.dataset.target_scale={unit:g}"
    numbers = {"mean": mean, "deviation": deviation, "largest": largest}
    yield Finding(TARGETS, status, measured, why, sample.key("target_scale"), fix, numbers)


LAYOUT, CHANNELS, WRAPPED = "layout", "constant channel", "overflow"
_CHANNELS = (1, 3, 4)
_FEWEST_PIXELS = 5
_MOST_NUMBERS = 4_000_000
_JUMP, _MIDDLE, _SMOOTH = 200.0, (80.0, 170.0), 64.0
"""Steps from pixel to pixel, of 255: of an overflow, of an edge, and of what is no edge."""
_SHARE, _FEWEST_JUMPS, _AGREEING = 0.002, 20, 0.7


def check_pictures(run: ExaminedRun) -> Iterator[Finding]:
    """Look at the channels and the edges of pictures, and at what the first convolution gets."""
    x = run.sample.train.x
    if x is None or x.ndim not in (3, 4):
        return
    last = x.ndim == 4 and x.shape[3] in _CHANNELS and min(x.shape[1:3]) >= _FEWEST_PIXELS
    if last:
        yield from find_wrong_layout(run, x)
    axis = (3 if last else 1) if x.ndim == 4 else 1 if x.shape[1] <= x.shape[2] else 2
    yield from find_constant_channels(x, axis)
    if x.ndim == 4:
        yield from find_overflow(x.movedim(axis, 1))


def find_wrong_layout(run: ExaminedRun, x: Tensor) -> Iterator[Finding]:
    """Find pictures `(N, H, W, C)` whose rows a convolution takes for channels."""
    given, learner = list[tuple[int, ...]](), run.learner()

    def note(_name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if isinstance(module, nn.Conv2d):
            given.append(tuple(inputs[0].shape[1:]))

    # That it cannot take them is told elsewhere.
    with suppress(Exception), torch.no_grad(), hooked(learner.model, note):
        learner.model(x[:2].to(next(learner.model.parameters())))
    shape = tuple(x.shape[1:])
    if not given or given[0] != shape:
        return
    size = " x ".join(map(str, shape))
    measured = f"pictures are {size}, as H x W x C, and the first convolution takes their {shape[0]} rows for channels"
    why = "PyTorch has channels first, C x H x W: filters slide over columns and colours now"
    fix = "image.permute(2, 0, 1) in the data set, or ToTensor() of torchvision"
    yield Finding(LAYOUT, "warning", measured, why, "data.dataset", fix, {"shape": shape})


def find_constant_channels(x: Tensor, axis: int) -> Iterator[Finding]:
    """Find channels that are the same number in all inputs, though others are not."""
    channels = x.movedim(axis, 0).flatten(1)
    if not 1 < len(channels) < 64:
        return
    fixed = (channels == channels[:, :1]).all(1)
    if not fixed.any() or fixed.all():
        return
    numbers = fixed.nonzero()[:, 0].tolist()
    who = f"channel {numbers[0]}" if len(numbers) == 1 else f"channels {', '.join(map(str, numbers))}"
    measured = (
        f"{who} of {len(channels)} (counted from 0) {'is' if len(numbers) == 1 else 'are'} the same number, "
        f"{float(channels[numbers[0], 0]):.3g}, in all {len(x):,} inputs that were read"
    )
    why = "it tells inputs apart in no way; where it should, reading or joining channels went wrong"
    others = [each for each in range(len(channels)) if each not in numbers]
    fix = "look at how the data set reads this channel (`lightkit show data`), or leave it out: convert('RGB'), "
    status: Status = "note" if x.ndim == 3 else "warning"
    yield Finding(CHANNELS, status, measured, why, "data.dataset", f"{fix}x[{others}]", {"channels": numbers})


def find_overflow(x: Tensor) -> Iterator[Finding]:
    """Find pictures in which bright pixels next to dark ones go on where those ended, as after an overflow of a byte.

    At an edge pixels jump by any amount. Where 8 bits overflow they jump by nearly all there is, and count round: the
    step over the border goes the way of the steps on both sides of it.
    """
    x = x[: max(1, _MOST_NUMBERS // max(x[0].numel(), 1))].float()
    low, high = (edge(x.movedim(1, 0).flatten(1), 1).view(1, -1, 1, 1) for edge in (torch.amin, torch.amax))
    values = (x - low) / (high - low).clamp(min=1e-12) * 255
    jumps = middle = agreeing = total = 0
    for axis in (2, 3):
        a, b, c, d = (
            (values.narrow(axis, at, values.shape[axis] - 3) for at in range(4))
            if values.shape[axis] > 3
            else [values[:0]] * 4
        )
        step, slope = c - b, (b - a) + (d - c)
        smooth = ((b - a).abs() < _SMOOTH) & ((d - c).abs() < _SMOOTH)
        wrapped = smooth & (step.abs() > _JUMP) & (b - 127.5).abs().lt(127) & (c - 127.5).abs().lt(127)
        jumps += int(wrapped.sum())
        agreeing += int((wrapped & (slope * step < 0)).sum())
        middle += int((smooth & (step.abs() > _MIDDLE[0]) & (step.abs() < _MIDDLE[1])).sum())
        total += step.numel()
    share = jumps / max(total, 1)
    if jumps < _FEWEST_JUMPS or share < _SHARE or middle * 2 > jumps or agreeing < _AGREEING * jumps:
        return
    measured = (
        f"at {share:.1%} of the borders between pixels the brightest meet the darkest, and go on as if counted round"
    )
    why = "an arithmetic of 8 bits overflowed (uint8: 250 + 10 = 4), so bright places turned dark"
    fix = "image.float() (or astype('float32')) before + - *, and clamp(0, 255) before it becomes uint8 again"
    yield Finding(WRAPPED, "warning", measured, why, "data.dataset", fix, {"share": share})
