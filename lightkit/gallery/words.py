"""Targets and predictions in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightkit.data import DataInfo
from lightkit.trainer.evaluate import in_unit

_SHARES = 2
"""Classes that a mixed target names."""
_NUMBERS = 4
"""Numbers that a target of several shows."""


@dataclass(frozen=True)
class Prediction:
    """What a model says of a sample."""

    text: str
    """The class, the labels, the numbers, or the text."""
    confidence: float | None = None
    """Probability of the class it chose; None where there is none."""
    is_right: bool | None = None
    """Whether it is the target; None where nothing is simply right."""
    pieces: tuple[str, ...] = ()
    """Of a text, each token that was predicted."""


def target_words(target: Tensor, info: DataInfo, decode: Callable[[Tensor], str] | None = None) -> str:
    """Put the target of a sample in words.

    Args:
        target: A class `()`, shares of classes `(C,)` as mixup makes them, labels `(L,)`, numbers, or tokens `(T,)`.
        info: What the data is.
        decode: Makes text of tokens; None shows their numbers.
    """
    if info.task == "language_modeling":
        return decode(target) if decode else _numbers(target)
    if info.task == "binary":
        value = float(target)
        return _binary(value, info) if value in (0.0, 1.0) else f"{value:.2f} {_named(info, 0)}"
    if info.task == "multilabel":
        return _labels(target, info)
    if info.task == "multiclass":
        return _named(info, int(target)) if not target.ndim else _mixed(target, info)
    return _numbers(target, info)


def answer(output: Tensor, target: Tensor | None, info: DataInfo, decode: Callable[[Tensor], str] | None) -> Prediction:
    """Put what a model gives for a sample in words.

    Args:
        output: Raw output: scores `(C,)` or `(L,)`, numbers, or scores of tokens `(T, V)`.
        target: The target; None where there is none.
        info: What the data is.
        decode: Makes text of tokens; None shows their numbers.
    """
    if info.task == "multiclass" and output.ndim == 1:
        chosen = int(output.argmax())
        right = None if target is None or target.ndim else chosen == int(target)
        return Prediction(_named(info, chosen), float(output.softmax(0)[chosen]), right)
    if info.task == "binary":
        p = float(output.reshape(()).sigmoid())
        right = None if target is None else (p > 0.5) == bool(float(target) > 0.5)
        return Prediction(_binary(float(p > 0.5), info), max(p, 1 - p), right)
    if info.task == "multilabel" and output.ndim == 1:
        found = (output.sigmoid() > 0.5).to(torch.float32)
        right = None if target is None else bool((found == target.to(torch.float32)).all())
        return Prediction(_labels(found, info), None, right)
    if info.task == "language_modeling" and output.ndim == 2:
        tokens = output.argmax(-1)
        pieces = tuple(decode(token.reshape(1)) if decode else str(int(token)) for token in tokens)
        return Prediction(decode(tokens) if decode else _numbers(tokens), pieces=pieces)
    return Prediction(_numbers(output, info))


def _named(info: DataInfo, number: int) -> str:
    return info.class_names[number] if 0 <= number < len(info.class_names) else str(number)


def _binary(value: float, info: DataInfo) -> str:
    if not info.class_names:
        return f"{value:g}"
    return info.class_names[0] if value else f"not {info.class_names[0]}"


def _labels(values: Tensor, info: DataInfo) -> str:
    chosen = [_named(info, int(place)) for place in (values > 0.5).nonzero()[:, 0]]
    return ", ".join(chosen) or "none"


def _mixed(shares: Tensor, info: DataInfo) -> str:
    """Name the largest shares of a mixed target: `0.70 cat + 0.30 dog`."""
    values, places = shares.sort(descending=True)
    named = [(float(share), _named(info, int(place))) for share, place in zip(values, places) if share > 0]
    if len(named) == 1:
        return named[0][1]
    return " + ".join(f"{share:.2f} {name}" for share, name in named[:_SHARES])


def _numbers(values: Tensor, info: DataInfo | None = None) -> str:
    unit = info.target_scale if info is not None and info.task == "regression" else 1.0
    flat: Sequence[float] = in_unit(values.flatten(), unit).tolist()
    return ", ".join(f"{value:.4g}" for value in flat[:_NUMBERS]) + (", …" if len(flat) > _NUMBERS else "")
