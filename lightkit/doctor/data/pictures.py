"""Whether pictures are as convolutions take them: channels first, each of which says something, and no byte overflowed.

Shapes in this file: N pictures, C channels, H and W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn

from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient

LAYOUT, CHANNELS, WRAPPED = "layout", "constant channel", "overflow"
_CHANNELS = (1, 3, 4)
_FEWEST_PIXELS = 5
_MOST_NUMBERS = 4_000_000
_JUMP, _MIDDLE, _SMOOTH = 200.0, (80.0, 170.0), 64.0
"""Steps from pixel to pixel, of 255: of an overflow, of an edge, and of what is no edge."""
_SHARE, _FEWEST_JUMPS, _AGREEING = 0.002, 20, 0.7


def check(patient: Patient) -> Iterator[Finding]:
    """Look at the channels and the edges of pictures, and at what the first convolution gets."""
    x = patient.sample.train.x
    if x is None or x.ndim not in (3, 4):
        return
    last = x.ndim == 4 and x.shape[3] in _CHANNELS and min(x.shape[1:3]) >= _FEWEST_PIXELS
    if last:
        yield from find_wrong_layout(patient, x)
    axis = (3 if last else 1) if x.ndim == 4 else 1 if x.shape[1] <= x.shape[2] else 2
    yield from find_constant_channels(patient.sample, x, axis)
    if x.ndim == 4:
        yield from find_overflow(x.movedim(axis, 1))


def find_wrong_layout(patient: Patient, x: Tensor) -> Iterator[Finding]:
    """Find pictures `(N, H, W, C)` whose rows a convolution takes for channels."""
    given, learner = list[tuple[int, ...]](), patient.learner()
    convolutions = [each for each in learner.model.modules() if isinstance(each, nn.Conv2d)]
    handles = [
        each.register_forward_pre_hook(lambda _module, inputs: given.append(tuple(inputs[0].shape[1:])))
        for each in convolutions
    ]
    with suppress(Exception), torch.no_grad():  # that it cannot take them is told elsewhere
        learner.model(x[:2].to(next(learner.model.parameters())))
    for handle in handles:
        handle.remove()
    shape = tuple(x.shape[1:])
    if not given or given[0] != shape:
        return
    size = " x ".join(map(str, shape))
    measured = f"pictures are {size}, as H x W x C, and the first convolution takes their {shape[0]} rows for channels"
    why = "PyTorch has channels first, C x H x W: filters slide over columns and colours now"
    fix = "image.permute(2, 0, 1) in the data set, or ToTensor() of torchvision"
    yield Finding(LAYOUT, "warning", measured, why, "data.dataset", fix, {"shape": shape})


def find_constant_channels(sample: DataSample, x: Tensor, axis: int) -> Iterator[Finding]:
    """Find channels that are the same number in all inputs, though others are not."""
    channels = x.movedim(axis, 0).flatten(1)
    if not 1 < len(channels) < 64:
        return
    fixed = (channels == channels[:, :1]).all(1)
    if not fixed.any() or fixed.all():
        return
    numbers = fixed.nonzero()[:, 0].tolist()
    named = f"channel {numbers[0]}" if len(numbers) == 1 else f"channels {', '.join(map(str, numbers))}"
    yield Finding(
        CHANNELS,
        "note" if x.ndim == 3 else "warning",
        f"{named} of {len(channels)} (counted from 0) {'is' if len(numbers) == 1 else 'are'} the same number, "
        f"{float(channels[numbers[0], 0]):.3g}, in all {len(x):,} inputs that were read",
        why="it tells inputs apart in no way; where it should, reading or joining channels went wrong",
        key="data.dataset",
        fix="look at how the data set reads this channel (`lightkit show data`), or leave it out: convert('RGB'), "
        f"x[{[each for each in range(len(channels)) if each not in numbers]}]",
        numbers={"channels": numbers},
    )


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
