"""`logger.trace`: what a run computes, as a line of short numbers every so many steps, by which runs are compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightkit.common import run_files
from lightkit.common.modules import whole
from lightkit.common.reading import is_whole, parse_object, read_lines
from lightkit.device.ranks import is_main
from lightkit.processes.files import write_whole
from lightkit.trainer.callbacks import Callback, Training

KEY = "logger.trace"
"""Name among the callbacks; with its dot it can be nobody else's."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LARGE, _BLOCK, _ODD = 1 << 14, 1 << 8, 0x1E3779B97F4A7C15


def fingerprint(tensors: Iterable[Tensor]) -> Tensor:
    """Reduce tensors to one whole number, 0-d on their device: a single bit that is another gives another number.

    The bits are added as whole numbers of 64 bits, those of large tensors in blocks, and the sums are scrambled and
    weighed by their places. All of it is exact, so that the number is the same on each device.

    Args:
        tensors: Of one device; their order counts.
    """
    flat = [_integers(tensor) for tensor in tensors]
    numbers = torch.cat(flat or [torch.zeros(1, dtype=torch.int64)]).to(torch.int64) * _ODD
    places = torch.arange(1, 2 * len(numbers), 2, device=numbers.device)
    return ((numbers ^ (numbers >> 29)) * places).sum()


def _integers(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as whole numbers in a row, of a large one the sums of blocks."""
    plain = whole(tensor.detach())  # in every process, of which each may hold a part
    plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    flat, size = plain.reshape(-1), plain.element_size()
    if len(flat) < _LARGE:
        return flat.view(_INTEGERS[size])
    flat = flat.clone() if flat.storage_offset() * size % 8 else flat
    blocks = len(flat) - len(flat) % (_BLOCK * 8 // size)
    sums = flat[:blocks].view(torch.int64).view(-1, _BLOCK).sum(1)
    return torch.cat([sums, flat[blocks:].view(_INTEGERS[size])])


class StepTrace(Callback):
    """Writes rows, loss, gradients and weights of each so many steps into `trace.jsonl` of the run's folder.

    Two runs that do the same write the same lines, also where one of them was killed and resumed.

    Args:
        every: Optimizer steps between two lines.
    """

    def __init__(self, every: int) -> None:
        self.every, self._last = every, 0
        self._facts: dict[str, Any] = {}

    def on_fit_start(self, trainer: Training) -> None:
        """Cut what was written after the checkpoint; begin a new file with the weights before the first step."""
        self._cut(trainer, trainer.state.step or -1)
        if not trainer.state.step:
            self._write(trainer, phase="start", weights=fingerprint(_weights(trainer)))

    def on_before_update(self, trainer: Training) -> None:
        """Take note of what the step under way is made of."""
        if (trainer.state.step + 1) % self.every == 0:
            rows, gradients = fingerprint([trainer.rows()]), fingerprint(trainer.gradients().values())
            self._facts = {"rows": rows, "loss": trainer.stepper.loss.detach(), "gradients": gradients}

    def on_step(self, trainer: Training) -> None:
        """Write the line of a step that was taken, once."""
        if self._facts:
            facts, self._facts = self._facts, {}
            if trainer.state.step <= self._last:  # the run has gone back to an earlier step
                self._cut(trainer, trainer.state.step - 1)
            self._write(trainer, phase="step", **facts, weights=fingerprint(_weights(trainer)))

    def _write(self, trainer: Training, *, phase: str, **facts: Tensor) -> None:
        path, self._last = _path(trainer), trainer.state.step
        if path is not None:
            row = {"phase": phase, "step": self._last, "number": 0}
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps({**row, **{name: _short(value) for name, value in facts.items()}})}\n")

    def _cut(self, trainer: Training, step: int) -> None:
        path = _path(trainer)
        if path is not None and path.exists():
            rows = (row for row in read_lines(path, parse_object) if is_whole(row.get("step")))
            write_whole(path, "".join(f"{json.dumps(row)}\n" for row in rows if row["step"] <= step))


def _path(trainer: Training) -> Path | None:
    """Return the file, where this process writes one."""
    folder = trainer.run.folder
    return folder / run_files.TRACE if folder is not None and is_main() else None


def _weights(trainer: Training) -> list[Tensor]:
    return [*trainer.model.parameters(), *trainer.model.buffers()]


def _short(value: Tensor) -> str | float:
    """Write a fingerprint as hexadecimal digits, and a loss as a number."""
    if not value.is_floating_point():
        return f"{int(value) % (1 << 64):016x}"
    return float(value) if math.isfinite(value) else str(float(value))
