"""Which rows of values a run has logged, in eight bytes a row: so that what happens to their file later shows."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MACHINE = ("speed/", "system/")
"""Beginnings of names of what no two runs have in common."""
FACTS = ("step", "epoch", "time")
"""What a row holds besides values."""
_MARK = struct.Struct("<IHH")
"""Step, checksum of the names, checksum of the values."""
_SHOWN = 8
"""Steps that a message names."""

Mark = tuple[int, int, int]


class Ledger:
    """Step and checksums of every logged row, in their order.

    The time and the values of the machine are left out: of two runs that do the same the checksums are the same.

    Args:
        marks: What `hex` gave.
    """

    def __init__(self, marks: str = "") -> None:
        self._marks = bytearray.fromhex(marks)

    def __len__(self) -> int:
        return len(self._marks) // _MARK.size

    def hex(self) -> str:
        """Return the ledger as text, for a checkpoint: of empty bytes `torch.load` makes an error."""
        return self._marks.hex()

    def __iter__(self) -> Iterator[Mark]:
        return iter(_MARK.iter_unpack(self._marks))

    def cut(self, count: int) -> None:
        """Forget all rows but so many."""
        del self._marks[count * _MARK.size :]

    def add(self, values: Mapping[str, Any], *, step: int, epoch: int) -> None:
        """Note a row.

        Args:
            values: Its values by name.
            step: Optimizer steps taken.
            epoch: Epochs done.
        """
        self._marks += _MARK.pack(*_mark(values, step, epoch))

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Ledger:
        """Make the ledger of rows of `metrics.jsonl`."""
        made = cls()
        for row in rows:
            made._marks += _MARK.pack(*_mark(row, row["step"], row.get("epoch")))
        return made


@dataclass
class RowsAudit:
    """What became of the rows in a file.

    Args:
        rows: Those that a run goes on from.
        missing: Steps of rows that are gone, one entry a row.
        changed: Steps of rows with other values than were logged.
        foreign: Steps of rows that the run did not log.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    foreign: list[int] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Describe what is wrong; empty where all is as it was logged."""
        found = []
        for steps, one, many in (
            (self.missing, "1 row is missing", "{} rows are missing"),
            (self.changed, "1 row has other values than were logged", "{} rows have other values than were logged"),
            (self.foreign, "1 row was not logged by this run", "{} rows were not logged by this run"),
        ):
            if not steps:
                continue
            distinct = sorted(set(steps))
            shown = f"step{'s' if len(distinct) > 1 else ''} {', '.join(map(str, distinct))}"
            if len(distinct) > _SHOWN:
                shown = f"steps {distinct[0]} to {distinct[-1]}"
            found.append((one if len(steps) == 1 else many.format(len(steps))) + f" ({shown})")
        return found


def audit(rows: Sequence[Mapping[str, Any]], ledger: Ledger, *, step: int) -> RowsAudit:
    """Compare the rows of a file with those that a checkpoint counts as logged.

    Rows after the checkpoint, also those of its very step, come from the part of the run that is repeated: they are
    left out without a word. A row that was changed stays as it is now.

    Args:
        rows: What the file holds.
        ledger: What was logged up to the checkpoint.
        step: Optimizer steps of the checkpoint.
    """
    found, expected = RowsAudit(), Counter(ledger)
    marks = [_mark(row, row["step"], row.get("epoch")) for row in rows]
    here = expected & Counter(marks)
    lost = Counter(mark[:2] for mark in (expected - here).elements())
    for row, mark in zip(rows, marks):
        if here[mark]:
            here[mark] -= 1
            found.rows.append(dict(row))
        elif lost[mark[:2]]:
            lost[mark[:2]] -= 1
            found.changed.append(row["step"])
            found.rows.append(dict(row))
        elif row["step"] < step:
            found.foreign.append(row["step"])
    found.missing = sorted(number for number, _ in lost.elements())
    return found


def _mark(values: Mapping[str, Any], step: int, epoch: Any) -> Mark:
    told = {name: value for name, value in values.items() if not name.startswith(MACHINE) and name not in FACTS}
    for name, value in told.items():
        if isinstance(value, float) and not math.isfinite(value):
            told[name] = None
    return step & 0xFFFFFFFF, _checksum([epoch, *told]), _checksum(list(told.values()))


def _checksum(content: list[Any]) -> int:
    return zlib.crc32(json.dumps(content).encode()) & 0xFFFF
