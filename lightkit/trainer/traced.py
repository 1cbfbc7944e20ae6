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
from lightkit.trainer.audit.observations import fingerprint
from lightkit.trainer.callbacks import Callback, Training


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
            self._write(trainer, "start")

    def on_before_update(self, trainer: Training) -> None:
        """Take note of what the step under way is made of."""
        if (trainer.state.step + 1) % self.every == 0:
            rows, gradients = fingerprint(trainer.rows()), _fingerprint(trainer.gradients().values())
            self._facts = {"rows": rows, "loss": trainer.stepper.loss.detach(), "gradients": gradients}

    def on_step(self, trainer: Training) -> None:
        """Write the line of a step that was taken, once."""
        if self._facts:
            if trainer.state.step <= self._last:  # the run has gone back to an earlier step
                self._cut(trainer, trainer.state.step - 1)
            self._write(trainer, "step")

    def _write(self, trainer: Training, phase: str) -> None:
        weights = _fingerprint([*trainer.model.parameters(), *trainer.model.buffers()])
        facts, self._facts, self._last = {**self._facts, "weights": weights}, {}, trainer.state.step
        if (path := _path(trainer)) is not None:
            row = {
                "phase": phase,
                "step": self._last,
                "number": 0,
                **{name: _short(value) for name, value in facts.items()},
            }
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(row)}\n")

    def _cut(self, trainer: Training, step: int) -> None:
        if (path := _path(trainer)) is not None and path.exists():
            rows = [row for row in read_lines(path, parse_object) if is_whole(row.get("step"))]
            write_whole(path, "".join(f"{json.dumps(row)}\n" for row in rows if row["step"] <= step))


def _path(trainer: Training) -> Path | None:
    """Return the file, where this process writes one."""
    folder = trainer.run.folder
    return folder / run_files.TRACE if folder is not None and is_main() else None


def _fingerprint(tensors: Iterable[Tensor]) -> Tensor:
    """Compute one fingerprint of several tensors, of which each process may hold a part."""
    sums = [fingerprint(whole(tensor.detach())) for tensor in tensors] or [torch.zeros(2, dtype=torch.int64)]
    return fingerprint(torch.stack([each.to(sums[0].device) for each in sums]))


def _short(value: Tensor) -> str | float:
    """Write a fingerprint as hexadecimal digits, and a loss as a number."""
    if not value.is_floating_point():
        return "".join(f"{number % (1 << 64):016x}" for number in value.tolist())
    return float(value) if math.isfinite(value) else str(float(value))
