"""A record of what a run does, step by step, and the means to end the process at any line of it.

Two runs that do the same write the same lines, whatever the clock says.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig
from torch import Tensor, nn

from lightkit.assembly import Learner
from lightkit.checkpoint.compare import leaves
from lightkit.checkpoint.optimizer_state import packed
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.modules import mapped, tensors
from lightkit.metrics import SplitMetrics
from lightkit.runner.comparison import digest
from lightkit.runner.fit import Observer
from lightkit.runner.run import Runner
from lightkit.trainer.callbacks import Callback, Training
from lightkit.trainer.tasks import Criterion, StepOutput, Task

CALLBACK = "verify_resume"
_MOMENTS = {
    "micro": "before batch {} of step {}",
    "step": "after step {1}",
    "save": "at moment {} of the save of step {}",
    "validation": "before batch {} of the validation after step {}",
    "test": "before batch {} of the test after step {}",
}
PHASES = (*_MOMENTS,)


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
        text = _MOMENTS[self.phase].format(self.number + 1, self.step)
        return f"{text} of member {self.member}" if self.member else text


_SAVING: list[RunTrace] = []
"""The trace of the run that saves, or saved last; one at most."""


@cache
def _listen() -> None:
    """Have Python tell that trace of file operations: for good, so that it is done once in a process."""
    sys.addaudithook(_on_event)


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    if _SAVING and event in ("open", "os.rename", "os.remove"):
        _SAVING[0].on_file(event, args)


class RunTrace(Callback, Observer):
    """Writes a line of JSON for every moment of a run, and may end the process at one.

    Args:
        path: The file; appended to, each line at once, so that it is whole up to the moment of a crash.
        checkpoints: Folder whose file operations are moments of a save.
        rows: Rows to keep of each split, so that the run is short.
        blocks: Blocks of an epoch in which metrics count at least: one that counts nothing before the end of a short
            epoch loses nothing in a resume.
        end_at: Moment at which the process ends.
        end: How it ends.
    """

    def __init__(
        self,
        path: Path,
        checkpoints: Path,
        *,
        rows: Mapping[str, int] | None = None,
        blocks: int | None = None,
        end_at: Moment | None = None,
        end: Callable[[], None] | None = None,
    ) -> None:
        self.rows, self._blocks, self._end_at, self._end = dict(rows or {}), blocks, end_at, end or kill
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._counts: dict[tuple[str, str, int], int] = {}
        self._batch = Moment("", -1, 0)
        self._follow(checkpoints)
        _listen()
        _SAVING.clear()

    def _follow(self, checkpoints: Path) -> None:
        """Go over to a model, of several the next one, by the folder of its checkpoints."""
        run = checkpoints.parent
        self._member = run.name if run.parent.name == run_files.MEMBERS else ""
        self._folder, self._saving = f"{checkpoints.absolute()}{os.sep}", -1
        self._trainer: Training | None = None
        self._evaluates = "test"

    def watch(self, learner: Learner) -> Learner:
        """Add a callback and a task that write down what they see."""
        if learner.store:
            self._follow(learner.store.folder)
        counted = learner.metrics["train"]
        if self._blocks is not None and isinstance(counted, SplitMetrics):
            batches = learner.timetable.steps_per_epoch * learner.timetable.accumulate
            counted.block = max(1, min(counted.block, batches // self._blocks))
        return replace(learner, task=TracedTask(learner.task, self), callbacks={**learner.callbacks, CALLBACK: self})

    @contextmanager
    def saving(self, learner: Learner) -> Iterator[None]:
        """Write down the moments of a save; it is on the disk before the run goes on."""
        self._saving, _SAVING[:] = self._step(), [self]
        self.moment("save", self._saving, what="begin")
        yield
        if learner.store:
            learner.store.flush()  # otherwise the moments of the writing would fall anywhere
        self.moment("save", self._saving, what="handed over")

    def on_fit_start(self, trainer: Training) -> None:
        """Write down the state the run begins or goes on with."""
        self._trainer, self._evaluates = trainer, "validation"
        self.moment("start", trainer.state.step, **_state(trainer))

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

    def batch(self, model: nn.Module, batch: Any) -> None:
        """Write down a batch that is about to be computed."""
        phase = "micro" if model.training else self._evaluates
        self._batch = self.moment(phase, self._step() + (phase == "micro"), batch=digest(batch))

    def result(self, step: Any) -> Any:
        """Write down the loss of the batch before, and return what a task gave for it."""
        self._write({**self._batch._asdict(), "loss": digest(getattr(step, "loss", None))})
        return step

    def _step(self) -> int:
        return self._trainer.state.step if self._trainer else -1

    def on_file(self, event: str, args: tuple[Any, ...]) -> None:
        """Take a file operation in the folder of checkpoints for a moment of the save under way."""
        if self._saving < 0:
            return
        path = os.fsdecode(args[0]) if isinstance(args[0], (str, bytes, os.PathLike)) else ""
        reads = event == "open" and not str(args[1] or "").startswith("w")
        if path.startswith(self._folder) and not reads:
            self.moment("save", self._saving, what=f"{event} {path.removeprefix(self._folder)}")

    def _write(self, row: dict[str, Any]) -> None:
        os.write(self._file, f"{json.dumps({**row, 'member': self._member})}\n".encode())


class ModuleTrace(RunTrace):
    """Writes a line for each output of a module, and for the gradient of each, of some steps, too.

    Args:
        path: See `RunTrace`.
        checkpoints: See `RunTrace`.
        after: The step after which modules are listened to.
        keep: Phase, step, number and module of a line, and a fact in it, whose values are saved beside the trace, which
            ends the process.
        **options: Others of `RunTrace`.
    """

    def __init__(self, path: Path, checkpoints: Path, *, after: int, keep: Sequence[Any] = (), **options: Any) -> None:
        super().__init__(path, checkpoints, **options)
        self._kept, self._after, self._keep, self._learns = path.with_suffix(".kept"), after, [*keep], False
        self._value: Any = None

    def watch(self, learner: Learner) -> Learner:
        """See `RunTrace.watch`; listens to each module, too."""
        for name, module in learner.model.named_modules():
            module.register_forward_hook(partial(self._output, name))
        return super().watch(learner)

    def on_before_update(self, trainer: Training) -> None:
        """Write down the gradients of the weights, those of the last ones first."""
        self._see("gradient", "", dict(reversed(trainer.gradients().items())))

    def batch(self, model: nn.Module, batch: Any) -> None:
        """See `RunTrace.batch`; from now on modules are listened to."""
        if self._trainer and model.training:
            self._learns, self._value = True, {"rows": self._trainer.rows(), **dict(leaves(batch))}
        super().batch(model, batch)

    def result(self, step: Any) -> Any:
        """Write down the loss of the batch; modules are not listened to any more."""
        if self._learns:
            self._see("output", "loss", [getattr(step, "loss", None)])
        self._learns = False
        return step

    def _output(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._learns:
            self._see("output", name, [*tensors(output)])
            for tensor in tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(lambda gradient: self._see("gradient", name, [gradient]))

    def _see(self, phase: str, name: str, value: Any) -> None:
        place = name, phase, self._step() + 1
        if place[2] > self._after:
            self._counts[place] = number = self._counts.get(place, -1) + 1
            self._value = mapped(Tensor.detach, value)
            self._write({"phase": phase, "step": place[2], "number": number, "module": name, "value": digest(value)})

    def _write(self, row: dict[str, Any]) -> None:
        super()._write(row)
        key, self._value, value = [row["phase"], row["step"], row["number"], row.get("module", "")], None, self._value
        if self._trainer and key == self._keep[:-1] and self._keep[-1] in row:
            CheckpointStore(self._kept).save(dict(leaves(value or self._trainer.model.state_dict())), step=0)
            self._end()


class TracedTask(Task):
    """A task whose batches and losses are written down.

    Args:
        inner: The task itself.
        trace: Where to.
    """

    def __init__(self, inner: Task, trace: RunTrace) -> None:
        self.inner, self._trace, self.parts = inner, trace, inner.parts

    def part(self, name: str, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """See `Task.part`."""
        return self._traced(partial(self.inner.part, name), model, batch, criterion)

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """See `Task.step`."""
        return self._traced(self.inner.step, model, batch, criterion)

    def _traced(self, step: Callable[..., Any], model: nn.Module, batch: Any, criterion: Criterion) -> Any:
        self._trace.batch(model, batch)
        return self._trace.result(step(model, batch, criterion))


def traced_runner(cfg: DictConfig, folder: Path, *, trace: Path, **options: Any) -> Runner:
    """Return a run that writes down what it does, and may end at a moment of it.

    Args:
        cfg: See `Runner`.
        folder: See `Runner`.
        trace: File of the trace; appended to.
        **options: Others of `RunTrace`, or of `ModuleTrace` with `after`.
    """
    kind = ModuleTrace if "after" in options else RunTrace
    observer = kind(trace, Path(folder) / run_files.CHECKPOINTS, **options)
    return Runner(cfg, folder, observer=observer, on_end=False)


def kill() -> None:
    """End this process as a power cut would, and the loader processes with it where it leads a group of its own."""
    number = getattr(signal, "SIGKILL", signal.SIGTERM)
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), number)
    os.kill(os.getpid(), number)


def _state(trainer: Training) -> dict[str, Any]:
    """Hash what a step changes."""
    optimizer = trainer.optimizer.state_dict()
    return {
        "weights": digest(trainer.model.state_dict()),
        "optimizer": digest(packed(optimizer["state"])),
        "rates": [float(group["lr"]) for group in trainer.optimizer.param_groups],
    }
