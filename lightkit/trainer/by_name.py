"""A task for losses that take more, or other things, than one output and one target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.modules import shape_of
from lightkit.trainer.tasks import Criterion, StepOutput, Task, fit_shape

_KEY = "trainer.task"


def _indexes(target: Tensor, _output: Tensor) -> Tensor:
    """Turn labels `(B, C)` of 0 and 1 into the numbers of those that are 1, then -1."""
    found, order = target.sort(dim=-1, descending=True, stable=True)
    return torch.where(found > 0, order, -1)


ENCODINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "signs": lambda target, _output: target * 2 - 1,
    "one_hot": lambda target, output: F.one_hot(target, output.shape[1]).to(output.dtype),
    "indexes": _indexes,
}
"""What may become of the entry `target`, from it and the first output."""


class ByName(Task):
    """Gives a loss its arguments by name, such as `(input, target, var)` or `(anchor, positive, negative)`.

    Each entry of a sample that the model does not get is an argument of the loss, and so is each output. Metrics get
    the first output, as the model gives it, and the entry `target`; with `each` they get nothing.

    Args:
        batch: Names of what a sample consists of, in its order; a sample that is a mapping has its own.
        inputs: Which of these the model gets, together.
        each: Which of these the model gets instead, one at a time; its output takes the place of each.
        outputs: Argument of the loss → which of the model's outputs it gets: its name in a mapping, its place in a
            tuple. A model that gives a single tensor gives it for any name.
        activation: What an output goes through before the loss, such as `torch.nn.LogSoftmax`; None: nothing.
        encoding: What the loss gets for the entry `target`: `signs` (-1 and 1 for 0 and 1), `one_hot` (class numbers as
            rows of chances), `indexes` (labels as the numbers of those that hold); None: the target itself.

    Raises:
        UserError: There is no such encoding, or the model is to get an entry that is not in `batch`.
    """

    def __init__(
        self,
        batch: Sequence[str] = ("x", "target"),
        inputs: Sequence[str] = ("x",),
        each: Sequence[str] = (),
        outputs: Mapping[str, str | int] | None = None,
        activation: nn.Module | None = None,
        encoding: Literal["signs", "one_hot", "indexes"] | None = None,
    ) -> None:
        if encoding is not None and encoding not in ENCODINGS:
            raise UserError("no such encoding", argument="encoding", received=encoding, choices=ENCODINGS)
        self.batch, self.inputs, self.each = tuple(batch), () if each else tuple(inputs), tuple(each)
        strange = [name for name in (*self.inputs, *self.each) if name not in self.batch]
        if strange:
            what = "the model is to get what no sample has"
            raise UserError(what, argument="each" if each else "inputs", received=strange, choices=self.batch)
        self.outputs, self.activation = dict(outputs or {"input": "logits"}), activation
        self.encoding = ENCODINGS[encoding] if encoding is not None else None

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute the loss of a batch, and what metrics get; see `Task.step`."""
        entries = self._entries(batch)
        if self.each:
            found = {name: self._taken(model(entries[name]), "logits") for name in self.each}
        else:
            given = model(*(entries[name] for name in self.inputs))
            found = {name: self._taken(given, place) for name, place in self.outputs.items()}
        rest = {name: value for name, value in entries.items() if name not in (*self.inputs, *self.each)}
        target = rest.get("target")
        if isinstance(target, Tensor):
            found = {name: fit_shape(output, target) for name, output in found.items()}
        first = next(iter(found.values()))
        if self.encoding is not None and isinstance(target, Tensor):
            rest["target"] = self.encoding(target, first)
        arguments = {name: self.activation(each) for name, each in found.items()} if self.activation else found
        loss: Tensor = criterion(**arguments, **rest)  # type: ignore[call-arg]
        told = not self.each and isinstance(target, Tensor) and len(first) == len(target)
        return StepOutput(loss, first, target) if told else StepOutput(loss)

    def _entries(self, batch: Any) -> dict[str, Any]:
        """Return what a batch consists of, by name."""
        if isinstance(batch, Mapping) and set(batch) >= set(self.batch):
            return {name: batch[name] for name in self.batch}
        if not isinstance(batch, (tuple, list)) or len(batch) != len(self.batch):
            expected = f"{', '.join(self.batch)} (trainer.task.batch names them)"
            what = "the samples are not what the task takes apart"
            raise UserError(what, key=_KEY, expected=expected, received=shape_of(batch))
        return dict(zip(self.batch, batch))

    def _taken(self, given: Any, place: str | int) -> Tensor:
        """Return one of the outputs of the model."""
        if isinstance(given, Tensor):
            return given
        try:
            found: Tensor = given[place]
        except (KeyError, IndexError, TypeError) as error:
            choices = [*map(str, given if isinstance(given, Mapping) else range(len(given)))]
            what = "the model has no such output"
            raise UserError(what, key=f"{_KEY}.outputs", received=place, choices=choices) from error
        return found
