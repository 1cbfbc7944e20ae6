"""A record of what a run does, step by step, and the means to end the process at any line of it.

Two runs that do the same write the same lines, whatever the clock says. The first line that differs tells where they
part, and what is the same on the lines before tells why.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightkit.common import run_files
from lightkit.trainer.callbacks import Callback, Training
from lightkit.trainer.tasks import Criterion, StepOutput, Task

PHASES = ("micro", "step", "save", "validation", "test")


class Moment(NamedTuple):
    """A point in a run: before a batch, after an optimizer step, within a save, before a batch of an evaluation."""

    phase: str
    """One of `PHASES`."""
    step: int
    """Optimizer step under way (`micro`) or done (all others), counted from 1."""
    number: int
    """Which of several of this phase at this step, from 0."""
    member: str = ""
    """The member of an ensemble that is trained; empty in a plain run."""

    def describe(self) -> str:
        """Return the moment in words, such as `before batch 2 of step 3`."""
        texts = {
            "micro": "before batch {} of step {}",
            "step": "after step {1}",
            "save": "at moment {} of the save of step {}",
            "validation": "before batch {} of the validation after step {}",
            "test": "before batch {} of the test after step {}",
        }
        text = texts[self.phase].format(self.number + 1, self.step)
        return f"{text} of member {self.member}" if self.member else text


class RunTrace(Callback):
    """Writes a line of JSON for every moment of a run.

    Args:
        path: The file; appended to, each line at once, so that it is whole up to the moment of a crash.
        checkpoints: Folder whose file operations are moments of a save.
        end_at: Moment at which the process ends.
        end: How it ends.
    """

    def __init__(
        self, path: Path, checkpoints: Path, *, end_at: Moment | None = None, end: Callable[[], None] | None = None
    ) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._end_at, self._end, self._member = end_at, end or kill, ""
        self._folder = f"{checkpoints.absolute()}{os.sep}"
        self._counts: dict[tuple[str, str, int], int] = {}
        self._batch, self._saving, self._evaluates = Moment("", -1, 0), -1, "test"
        self._trainer: Training | None = None
        sys.addaudithook(self._watch_files)

    def follow(self, checkpoints: Path) -> None:
        """Go over to a model: of several the next one.

        Args:
            checkpoints: Folder of its checkpoints.
        """
        run = checkpoints.parent
        self._member = run.name if run.parent.name == run_files.MEMBERS else ""
        self._folder, self._saving = f"{checkpoints.absolute()}{os.sep}", -1
        self._trainer, self._evaluates = None, "test"

    def on_fit_start(self, trainer: Training) -> None:
        """Write down the state the run begins or goes on with."""
        self._trainer, self._evaluates = trainer, "validation"
        step = trainer.state.step
        self._write({"phase": "start", "step": step, "number": 0, **_state(trainer)})

    def on_step(self, trainer: Training) -> None:
        """Write down the state after an optimizer step."""
        self.moment("step", trainer.state.step, **_state(trainer))

    def on_epoch(self, trainer: Training, values: dict[str, float]) -> None:
        """Write down that an epoch, or the run, has come to its end."""
        if not trainer.state.samples_done:
            self._write({"phase": "epoch", "step": trainer.state.step, "number": 0})

    def on_fit_end(self, trainer: Training) -> None:
        """Write down what the run ends with."""
        self._evaluates = "test"
        self._write({"phase": "end", "step": trainer.state.step, "number": 0})

    def moment(self, phase: str, step: int, **facts: Any) -> Moment:
        """Write a line, then end here if this is the moment for it."""
        number = self._counts.get((self._member, phase, step), 0)
        self._counts[self._member, phase, step] = number + 1
        now = Moment(phase, step, number, self._member)
        self._write({**now._asdict(), **facts})
        if now == self._end_at:
            self._end()
        return now

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Write down the moments of a save while inside; the checkpoint may still be written afterwards."""
        self._saving = self._step()
        self.moment("save", self._saving, what="begin")
        yield
        self.moment("save", self._saving, what="handed over")

    def batch(self, model: nn.Module, batch: Any) -> None:
        """Write down a batch that is about to be computed."""
        phase = "micro" if model.training else self._evaluates
        self._batch = self.moment(phase, self._step() + (phase == "micro"), batch=digest(batch))

    def loss(self, value: Tensor) -> None:
        """Write down the loss of the batch before."""
        self._write({**self._batch._asdict(), "loss": digest(value)})

    def _step(self) -> int:
        return self._trainer.state.step if self._trainer else -1

    def _watch_files(self, event: str, args: tuple[Any, ...]) -> None:
        """Take a file operation in the folder of checkpoints for a moment of the save under way."""
        if self._saving < 0 or event not in ("open", "os.rename", "os.remove"):
            return
        path = os.fsdecode(args[0]) if isinstance(args[0], (str, bytes, os.PathLike)) else ""
        reads = event == "open" and not str(args[1] or "").startswith("w")
        if path.startswith(self._folder) and not reads:
            self.moment("save", self._saving, what=f"{event} {path.removeprefix(self._folder)}")

    def _write(self, row: dict[str, Any]) -> None:
        os.write(self._file, f"{json.dumps({**row, 'member': self._member})}\n".encode())


class TracedTask(Task):
    """A task whose batches and losses are written down.

    Args:
        inner: The task itself.
        trace: Where to.
    """

    def __init__(self, inner: Task, trace: RunTrace) -> None:
        self.inner, self._trace = inner, trace

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """See `Task.step`."""
        self._trace.batch(model, batch)
        step = self.inner.step(model, batch, criterion)
        self._trace.loss(step.loss)
        return step


def kill() -> None:
    """End this process as a power cut would, and the loader processes with it where it leads a group of its own."""
    number = getattr(signal, "SIGKILL", signal.SIGTERM)
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), number)
    os.kill(os.getpid(), number)


def digest(value: Any) -> str:
    """Hash nested tensors, arrays and plain values; the same bits give the same short text."""
    found = hashlib.blake2b(digest_size=8)
    for piece in _pieces(value):
        found.update(piece)
    return found.hexdigest()


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        flat = value.detach().cpu().reshape(-1) if value.layout is torch.strided else value.detach().cpu().to_dense()
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield flat.contiguous().view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key).encode()
            yield from _pieces(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _pieces(item)
    else:
        yield repr(value).encode()


def _state(trainer: Training) -> dict[str, Any]:
    """Hash what a step changes."""
    optimizer = trainer.optimizer.state_dict()
    return {
        "weights": digest(trainer.model.state_dict()),
        "optimizer": digest(optimizer["state"]),
        "rates": [float(group["lr"]) for group in trainer.optimizer.param_groups],
    }
