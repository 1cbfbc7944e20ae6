"""What a data set is, as far as models, losses and metrics need to know."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from lightkit.common.errors import UserError

TASKS = ("multiclass", "binary", "multilabel", "regression", "language_modeling", "custom")
"""Kinds of target. `custom`: samples that are not (input, target) pairs; a task class of the user's knows them."""


@dataclass(frozen=True)
class DataInfo:
    """Facts about a data set that other parts are sized by.

    Args:
        task: One of `TASKS`.
        input_shape: Shape of one input without the batch dimension.
        num_classes: Size of the output layer: classes, labels, regression targets; 1 for `binary`.
        class_names: Names of the classes or labels, in order of their numbers; empty where there are none.
        vocab_size: Number of tokens, for language modelling.
        context_length: Tokens of one sample, for language modelling.
        fingerprint: blake2b of the content or of what identifies it; changes when the data changes.
        vocabulary: The tokens in order of their numbers, for language modelling; empty where they are not known.
        target_scale: What regression targets were divided by; predictions are written in the unit from before.
    """

    task: str
    input_shape: tuple[int, ...]
    num_classes: int
    class_names: tuple[str, ...] = ()
    vocab_size: int | None = None
    context_length: int | None = None
    fingerprint: str = ""
    vocabulary: tuple[str, ...] = ()
    target_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UserError("not a kind of task", argument="", received=self.task, choices=TASKS)

    def sizes(self) -> dict[str, Any]:
        """Return the arguments that models, losses and metrics may take from the data, those that apply here."""
        found: dict[str, Any] = {"task": self.task}
        if self.num_classes:
            found |= {"num_classes": self.num_classes, "num_labels": self.num_classes}
        if self.input_shape:
            found["input_shape"] = self.input_shape
        if self.input_shape and self.vocab_size is None:
            found |= {"in_channels": self.input_shape[0], "in_features": math.prod(self.input_shape)}
        optional = {"vocab_size": self.vocab_size, "context_length": self.context_length}
        return found | {name: value for name, value in optional.items() if value is not None}


def fingerprint(parts: Iterable[object]) -> str:
    """Hash tensors (their bytes) and anything else (its text) by blake2b, to 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, torch.Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.detach().contiguous().cpu().numpy().reshape(-1).view("uint8").data)
        else:
            digest.update(f"{part!r}\x1f".encode())
    return digest.hexdigest()
