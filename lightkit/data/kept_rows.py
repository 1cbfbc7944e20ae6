"""Which rows a run has in which split, as they are kept with it, and a data set that has changed under its old numbers.

N rows of the data set at the time when the split was drawn.
"""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.data.groups import row_marks
from lightkit.data.orders import NEWEST, OLDEST, ORDERS
from lightkit.data.sources import SampleData
from lightkit.data.tensors import Taker, TensorData

_FORMAT, _VERSION = "lightkit.rows", 1
_NAMES = ("train", "val", "test")
_NONE = len(_NAMES)
_MOST_MARKS = 4_000_000
"""Rows up to which what tells them apart is kept too: 8 bytes a row, or its name."""
_PIECE_BYTES = 1 << 25


@dataclass(frozen=True, eq=False)
class KeptRows:
    """The splits of a run, and what its rows are known by when the data set has changed.

    Args:
        split: `(N,)` uint8: 0 for train, 1 for val, 2 for test, 3 for none of them.
        fingerprint: That of the data set.
        names: `(N,)` names of the rows, such as files; None where they have none.
        marks: `(N,)` int64 hashes of inputs and targets, of data in memory without names; None for others.
        gone: Numbers of the rows that are no longer there.
        order: How many rows are shuffled, a name of `lightkit.data.orders.ORDERS`.
        drawn: Whether the split has just been drawn, and has to be kept.

    Raises:
        ValueError: The parts do not fit together.
    """

    split: Tensor
    fingerprint: str
    names: tuple[str, ...] | None = None
    marks: Tensor | None = None
    gone: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    drawn: bool = True
    order: str = NEWEST

    def __post_init__(self) -> None:
        lengths = {len(part) for part in (self.split, self.names, self.marks) if part is not None}
        if len(lengths) != 1 or self.split.ndim != 1 or bool((self.split > _NONE).any()):
            raise ValueError("the numbers of rows and splits do not fit together")

    def __len__(self) -> int:
        return len(self.split)

    @staticmethod
    def of(source: Any, rows: Mapping[str, Tensor]) -> KeptRows:
        """Return the splits that have been drawn of a data set."""
        split = torch.full((len(source),), _NONE, dtype=torch.uint8)
        for name, own in rows.items():
            split[own] = _NAMES.index(name)
        return KeptRows(split, source.info.fingerprint, names=_names(source), marks=_marks(source))

    def rows(self) -> dict[str, Tensor]:
        """Return the rows of each split that are there, rising; without splits of which none is left."""
        found = {name: (self.split == number).nonzero().reshape(-1) for number, name in enumerate(_NAMES)}
        found = {name: own[~torch.isin(own, self.gone)] for name, own in found.items()}
        return {name: own for name, own in found.items() if len(own)}

    def missing(self, name: str) -> Tensor:
        """Return the rows of a split that are no longer there."""
        return self.gone[self.split[self.gone] == _NAMES.index(name)]

    def find(self, source: Any) -> Tensor | None:
        """Find the rows of a data set that has changed since.

        Returns:
            `(N,)` their numbers now, -1 for those that are gone; None where its rows cannot be told apart.
        """
        names, marks = (_names(source), None) if self.names is not None else (None, _marks(source))
        if self.names is not None and names is not None:
            places = {name: place for place, name in enumerate(names)}
            return torch.tensor([places.get(name, -1) for name in self.names])
        if self.marks is None or marks is None:
            return None
        return _matched(self.marks, marks)

    def to_bytes(self) -> bytes:
        """Return the content of the file that keeps this."""
        facts = {"format": _FORMAT, "version": _VERSION, "data": self.fingerprint, "order": self.order}
        arrays: dict[str, Any] = {"split": self.split.numpy(), "facts": _text(json.dumps(facts))}
        arrays |= {"names": _text(json.dumps(self.names))} if self.names is not None else {}
        arrays |= {"marks": self.marks.numpy()} if self.marks is not None else {}
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        return content.getvalue()

    @staticmethod
    def from_bytes(content: bytes) -> KeptRows:
        """Read what `to_bytes` gave.

        Raises:
            ValueError: It is something else, or damaged.
        """
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
            facts = json.loads(found["facts"].tobytes())
            if (facts["format"], facts["version"]) != (_FORMAT, _VERSION):
                raise ValueError(f"it is of version {facts['version']}")
            order = facts.get("order", OLDEST)
            if order not in ORDERS:
                raise ValueError(f"its order of an epoch is {order!r}, which this version does not know")
            names = json.loads(found["names"].tobytes()) if "names" in found else None
            marks = torch.from_numpy(found["marks"].astype(np.int64)) if "marks" in found else None
            split, data = torch.from_numpy(found["split"].astype(np.uint8)), str(facts["data"])
            told = None if names is None else tuple(names)
            return KeptRows(split, data, names=told, marks=marks, drawn=False, order=order)
        except Exception as error:  # of a damaged archive zipfile, zlib and NumPy raise many kinds
            raise ValueError(str(error) or type(error).__name__) from error


class Renumbered:
    """A data set under the row numbers that it had before it changed; attributes with a value for each row, too.

    Args:
        base: The data set.
        now: `(N,)` the number that each row has in it, -1 for those that are gone.
    """

    def __init__(self, base: Any, now: Tensor) -> None:
        self.base, self.now = base, now

    def __len__(self) -> int:
        return len(self.now)

    def __getitem__(self, row: int) -> Any:
        return self.base[self._present(torch.tensor([row]))[0].item()]

    def __getattr__(self, name: str) -> Any:
        if name in ("base", "now") or name.startswith("__"):  # while it is being copied
            raise AttributeError(name)
        return by_row(getattr(self.base, name), len(self.base), self.now)

    def _present(self, rows: Tensor) -> Tensor:
        found = self.now[rows]
        if (found < 0).any():
            raise IndexError(f"row {rows[found < 0][0].item()} is no longer in the data set")
        return found


class RenumberedTaker(Renumbered):
    """The same of a data set that makes whole batches."""

    def take(self, rows: Tensor) -> Any:
        """Return inputs and targets of rows."""
        return self.base.take(self._present(rows))


def renumbered(source: Any, now: Tensor, fingerprint: str) -> Any:
    """Return a data set under its old row numbers, and with its old fingerprint: for a run it is the same.

    Args:
        source: What `as_source` has returned.
        now: See `Renumbered`.
        fingerprint: The old one.
    """
    count, known = len(source), now.clamp(min=0)
    changed: Any = copy.copy(source)
    if isinstance(source, TensorData):
        changed.x, changed.y = source.x.index_select(0, known), source.y.index_select(0, known)
        for name, value in vars(source).items():
            if name not in ("x", "y"):
                setattr(changed, name, by_row(value, count, now))
        changed.numbers = now
    elif isinstance(source, SampleData):
        changed.base, changed.strata = Renumbered(source.base, now), by_row(source.strata, count, now)
        changed.numbers = now
    else:
        kind = RenumberedTaker if isinstance(source, Taker) else Renumbered
        changed = kind(source, now)
    changed.info = replace(source.info, fingerprint=fingerprint)
    return changed


def by_row(value: Any, count: int, now: Tensor) -> Any:
    """Return a value with an entry for each row in the order of the old numbers; others as they are."""
    if not isinstance(value, (list, tuple, np.ndarray, Tensor)) or len(value) != count:
        return value
    known = now.clamp(min=0)
    if isinstance(value, Tensor):
        return value[known]
    return (
        value[known.numpy()] if isinstance(value, np.ndarray) else type(value)([value[row] for row in known.tolist()])
    )


def _names(source: Any) -> tuple[str, ...] | None:
    """Return the names that a data set has for its rows (`row_names`); None where two rows have one name."""
    base = source.base if isinstance(source, SampleData) else source
    names = getattr(base, "row_names", None)
    if not isinstance(names, Sequence) or not len(base) == len(names) <= _MOST_MARKS:
        return None
    found = tuple(map(str, names))
    return found if len({*found}) == len(found) else None


def _marks(source: Any) -> Tensor | None:
    """Hash inputs and targets of each row of data in memory, `(N,)`."""
    if not isinstance(source, TensorData) or len(source) > _MOST_MARKS or _names(source) is not None:
        return None
    x, y = source.x, source.y
    if x.is_complex() or x.is_sparse or x.is_nested:
        return None
    size = max(1, x[:1].numel() * x.element_size())
    pieces = [row_marks(piece) for piece in x.split(max(1, _PIECE_BYTES // size))]
    return torch.cat(pieces) * 3 + row_marks(y)


def _matched(before: Tensor, now: Tensor) -> Tensor:
    """Find each of some marks among others: the first of equal ones is the first there, and so on."""
    found = torch.full_like(before, -1)
    old, new = before.argsort(stable=True), now.argsort(stable=True)
    marks = now[new].contiguous()
    rank = torch.arange(len(before)) - torch.searchsorted(before[old].contiguous(), before[old].contiguous())
    place = torch.searchsorted(marks, before[old].contiguous()) + rank
    there = place < len(marks)
    same = torch.zeros_like(there)
    same[there] = marks[place[there]] == before[old][there]
    found[old[same]] = new[place[same]]
    return found


def _text(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), dtype=np.uint8)
