"""How the new inputs of a data set are read for a trained model: the base of all readers, and what they give.

Shapes: N rows, `...` the shape of one input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightkit.common.errors import UserError

_SHOWN = 10
_MEND = "mend them, or leave them out: --skip-bad (in Python skip_bad=True)"
NUMBERS = "fiub"
"""Kinds of arrays of NumPy that hold numbers."""


class NewRows(NamedTuple):
    """Some of the rows that were given."""

    numbers: list[int]
    """The place of each row in what was given, from 0."""
    inputs: Any
    """A tensor `(N, ...)`, as in the data set; NaN where a value is missing that the run fills in. Or a list of inputs
    of unlike shapes, of which the `collate_fn` of the reader makes batches."""
    kept: dict[str, list[Any]]
    """Columns that the model does not look at, such as ids, and the names of files."""


class Faults:
    """Rows that cannot be used: an error, or left out and remembered.

    Args:
        skip: Whether to leave them out.
        fix: What to do about them.
    """

    def __init__(self, *, skip: bool = False, fix: str = _MEND) -> None:
        self.skip, self.fix = skip, fix
        self.lines: list[str] = []
        """What is wrong with each row that was left out, with its place."""
        self.notes: dict[str, None] = {}
        """What else is worth telling about the rows."""

    def take(self, found: Sequence[tuple[str, str]]) -> None:
        """Note rows that cannot be used.

        Args:
            found: The place of each, and what is wrong with it.

        Raises:
            UserError: They are not to be left out.
        """
        lines = [f"{place}: {why}" for place, why in found]
        if lines and not self.skip:
            more = f"\n{len(lines) - _SHOWN:,} more rows cannot be read" if len(lines) > _SHOWN else ""
            what = lines[0] if len(lines) == 1 else f"{len(lines):,} rows cannot be read:\n" + "\n".join(lines[:_SHOWN])
            raise UserError(what + more, argument="", fix=self.fix, family="data-unreadable")
        self.lines += lines


class Reader:
    """Says how the new inputs of a data set are read from files; this one reads none.

    A data set has it as its attribute `reader`. Derive a class of your own for another kind of files.
    """

    kind = ""
    """Under what name a run keeps it; a class of your own is built anew with its data set."""

    targets: Sequence[str] = ()
    """Names of the columns that the run predicts."""
    words: Sequence[str] = ()
    """Both values of a binary target, the one that stands for 0 first; empty where they are 0 and 1."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a run keeps of it, in plain values: the fields of a dataclass."""
        return asdict(self) if is_dataclass(self) else {}

    def read(self, given: Any, most: int, faults: Faults) -> Iterator[NewRows]:
        """Yield the rows of a file, folder or table, at most so many at once.

        Args:
            given: A path, `-` for the standard input, or a table in memory.
            most: Rows at once, about.
            faults: Takes the rows that cannot be used.

        Raises:
            UserError: It is nothing that can be read.
        """
        what = "the data set of this run does not say how new inputs are read from files or tables"
        expected = "in Python an array of inputs: a tensor, or one of NumPy"
        fix = "a data set of your own may have an attribute `reader` (lightkit.data.reader.Reader)"
        raise UserError(what, argument="", received=called(given), expected=expected, fix=fix, family="data-setting")


def called(given: Any) -> str:
    """Return what messages call what was given."""
    return str(given) if isinstance(given, (str, Path)) else type(given).__name__


def in_pieces(found: Iterator[NewRows], size: int) -> Iterator[NewRows]:
    """Join and cut rows into pieces of a size, but for the last one."""
    held = list[NewRows]()
    for piece in found:
        held.append(piece)
        while sum(len(one.numbers) for one in held) >= size:
            whole = _joined(held)
            yield _cut(whole, slice(size))
            held = [_cut(whole, slice(size, None))]
    rest = _joined(held) if held else None
    if rest is not None and rest.numbers:
        yield rest


def join_inputs(pieces: Sequence[Any]) -> Any:
    """Join the inputs of pieces: tensors, or lists."""
    return torch.cat([*pieces]) if isinstance(pieces[0], Tensor) else [*chain.from_iterable(pieces)]


def _joined(pieces: Sequence[NewRows]) -> NewRows:
    kept = {name: [cell for piece in pieces for cell in piece.kept[name]] for name in pieces[0].kept}
    numbers = [number for piece in pieces for number in piece.numbers]
    return NewRows(numbers, join_inputs([piece.inputs for piece in pieces]), kept)


def _cut(piece: NewRows, part: slice) -> NewRows:
    return NewRows(piece.numbers[part], piece.inputs[part], {name: cells[part] for name, cells in piece.kept.items()})


def natural(words: Sequence[str]) -> np.ndarray:
    """Return names `(C,)` as what they were in the data: numbers where all are written as these.

    Args:
        words: The names.
    """
    for kind in (int, float):
        try:
            numbers = [kind(word) for word in words]
        except ValueError:
            continue
        if words and [str(number) for number in numbers] == [*words]:
            return np.array(numbers)
    return np.array(words, dtype=object)
