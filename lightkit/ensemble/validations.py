"""What members put out at each validation while they train, kept so that the ensemble has a curve over epochs, too.

A file holds a record for each validation: a line of JSON, and the numbers of a tensor in float32. It grows by
appending; a record that a kill has torn is no record, and of two for the same step the later counts.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightkit.metrics import Gathered
from lightkit.processes.files import write_whole
from lightkit.trainer.state import Timetable

MOST_BYTES = 64 << 20
"""What the validations of one member may take; of a member that would need more none is kept."""
KEPT_BYTES = 1 << 20
"""What they may still take once the ensemble is combined: a larger file is removed then."""
_ALIGNED = 64


class Validation(NamedTuple):
    """The outputs of one validation."""

    step: int
    """Optimizer steps taken before it."""
    epoch: float
    """Epochs done before it, with the part done of the one under way."""
    outputs: Tensor
    """`(N, ...)` in the order of the split's rows; of members that train at once `(M, N, ...)`."""
    members: tuple[str, ...] = ()
    """Names of these members."""

    def packed(self) -> bytes:
        """Return the record."""
        head = {"step": self.step, "epoch": self.epoch, "shape": list(self.outputs.shape), "members": self.members}
        line = json.dumps(head)
        line += " " * (-(len(line) + 1) % _ALIGNED)  # the numbers are read where they lie in the file
        return line.encode() + b"\n" + self.outputs.contiguous().numpy().tobytes()


def read_validations(path: Path) -> list[Validation]:
    """Read the whole records of a file, one for each step, in the order of the steps; none where there is no file."""
    found: dict[int, Validation] = {}
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # only what is used is read
            while line := content.readline():
                head, begin = json.loads(line), content.tell()
                count = math.prod(head["shape"])
                outputs = torch.frombuffer(content, dtype=torch.float32, count=count, offset=begin)
                own = head["step"], head["epoch"], outputs.reshape(head["shape"]), tuple(head["members"])
                found[head["step"]] = Validation(*own)
                content.seek(begin + 4 * count)
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):
        pass  # empty, or torn here: what comes before is whole
    return [found[step] for step in sorted(found)]


def write_validations(path: Path, records: Sequence[Validation]) -> None:
    """Write a file anew; without records there is none."""
    if records:
        write_whole(path, b"".join(record.packed() for record in records))
    else:
        path.unlink(missing_ok=True)


def of_member(records: Sequence[Validation], name: str) -> list[Validation]:
    """Return the validations of one of several members that have trained at once."""
    rows = [(record, record.members.index(name)) for record in records if name in record.members]
    return [Validation(record.step, record.epoch, record.outputs[row]) for record, row in rows]


class ValidationOutputs:
    """Writes the outputs of every validation to a file; see `lightkit.trainer.evaluate.ValidationMeter`.

    Args:
        path: The file.
        timetable: That of the training, which tells how many validations there will be.
        names: Returns the names of the members in training where several train at once.
        tell: Called with a line where the file would be too large, and nothing is kept.
    """

    def __init__(
        self,
        path: Path,
        timetable: Timetable,
        *,
        names: Callable[[], Sequence[str]] = tuple,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._path, self._names, self._tell = path, names, tell
        every = timetable.validate_every * (1 if timetable.validate_unit == "step" else timetable.steps_per_epoch)
        self._count = math.ceil(timetable.total_steps / every)
        self._parts, self._bytes, self._full = list[Tensor](), 0, False

    def start(self, step: int) -> None:
        """Forget what was kept after the step that training goes on from."""
        if self._path.exists():
            write_validations(self._path, [record for record in read_validations(self._path) if record.step <= step])

    def reset(self) -> None:
        """Forget the outputs of a validation that did not come to its end."""
        self._parts, self._bytes = [], 0

    def update(self, preds: Any, target: Any, loss: Tensor, size: int, *_more: Any) -> None:
        """Take in one batch; see `Meter.update`."""
        if not isinstance(preds, Tensor) or self._full:
            return
        self._parts.append(preds.detach())
        self._bytes += 4 * preds.numel()
        allowed = MOST_BYTES * max(1, len(self._names()))
        if self._bytes * self._count > allowed:
            self._full = True
            self.reset()
            self._path.unlink(missing_ok=True)
            limit = f"{allowed >> 20} MB for all validations"
            self._tell(f"predictions of the validations are not kept: they would take more than {limit}")

    def validated(self, step: int, epoch: float) -> None:
        """Write the record of a validation that has come to its end."""
        if self._parts:
            names = tuple(self._names())
            outputs = torch.cat(self._parts, 1 if names else 0).float().cpu()
            with self._path.open("ab") as file:
                file.write(Validation(step, epoch, outputs, names).packed())
        self.reset()


class SharedValidationOutputs(Gathered):
    """`ValidationOutputs` of several processes: the first one writes, all of them call it."""

    def reset(self) -> None:
        """See `ValidationOutputs.reset`."""
        self._forget()
        self.meter.reset()

    def validated(self, step: int, epoch: float) -> None:
        """See `ValidationOutputs.validated`."""
        self.exchange()
        if self._ranks.main:
            self.meter.validated(step, epoch)
