"""Steps of a run at chosen batch sizes, in a process of their own, to find out what memory they need."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import torch
from omegaconf import DictConfig

from lightkit.assembly import build
from lightkit.common.errors import OUT_OF_MEMORY
from lightkit.common.failures import is_out_of_memory
from lightkit.data.loaders import Loader
from lightkit.device import Engine
from lightkit.device.engine import Batches
from lightkit.device.switches import Compiler
from lightkit.diagnostics.footprint import bytes_of
from lightkit.diagnostics.memory import MARGIN, memory_of
from lightkit.diagnostics.spans import NoSpans
from lightkit.finders.child import Answer, MeasuringProcess, begin, failure
from lightkit.processes.children import lightkit_command
from lightkit.runner.faults import MemoryReport
from lightkit.trainer.evaluate import evaluate
from lightkit.trainer.step import AnyLoss, make_stepper

STEPS = 2
"""Optimizer steps at each size: with the second one the optimizer has its state from the beginning."""
_MOST_SKIPPED = 16
"""Steps that a loss scale may take to come down to where the optimizer steps at all."""
_LIBRARIES = 256 << 20
"""Bytes of memory of the machine that a run takes for what it imports and these steps do not: TensorBoard, figures."""
KEY = "trainer.find_batch_size"


class Bench:
    """The parts of a run, and what its steps need.

    Args:
        cfg: The configuration, for one process.
        ranks: Processes that the run itself will have: each computes its part of every batch.
        sharing: Of those, the ones that share the memory of this device.
        limit: Bytes that may be used; None takes what there is.
    """

    def __init__(self, cfg: DictConfig, *, ranks: int = 1, sharing: int = 1, limit: int | None = None) -> None:
        self.cfg, self._ranks = cfg, ranks
        with tempfile.TemporaryDirectory() as folder:
            self.parts = build(cfg, Path(folder))
        if self.parts.made.prepared is not None:  # let everything train that ever will: the last phase needs most
            trained = frozenset[str]().union(*(phase.trainable for phase in self.parts.made.prepared.phases))
            for name, parameter in self.parts.model.named_parameters():
                parameter.requires_grad_(name in trained)
        engine = self.parts.engine
        self.memory = memory_of(engine.parallel.devices)
        self._base, self._on_cpu = self.memory.in_use(), engine.device.type == "cpu"
        free = self.memory.free() if limit is None else limit
        self.free = None if free is None else free // (sharing if self._on_cpu and limit is None else 1)

    def facts(self) -> dict[str, Any]:
        """Return what the search has to know of the run."""
        train = self.parts.data.train
        limit = None if self.free is None else int(self.free * (1 - MARGIN))
        return {"rows": train.num_samples, "free": self.free, "limit": limit, "bold": not self._on_cpu}

    def measure(self, size: int, *, window: int) -> dict[str, Any]:
        """Measure what optimizer steps and an evaluation need.

        Args:
            size: Samples per batch, over all processes.
            window: Batches per optimizer step.

        Returns:
            `size`, and `peak` and `fixed` in bytes; see `lightkit.diagnostics.memory.Probe`.
        """
        if isinstance(self.parts.engine.compiler, Compiler):
            torch.compiler.reset()  # else a second size is compiled for any size, which the run itself does not do
            self.parts.engine.compiler.next_step()  # which that has forgotten
        self.memory.release()
        self.memory.restart()
        train = self.parts.data.train  # in the order of its first epoch, the part of the size for this process
        own = -(-min(size, train.num_samples) // self._ranks)
        order, count = train.order(0), own * window * STEPS
        rows = order.repeat(-(-count // len(order)))[:count]
        loader = train.with_rows(rows, batch_size=own, shuffle=False, drop_last=False, num_workers=0)
        with closing(_iterated(loader)) as batches:
            batch_bytes = bytes_of(next(batches))
        self._steps(loader, window)
        tries = 0
        while not self.parts.optimizer.state and tries < _MOST_SKIPPED:
            self._steps(loader, window)
            tries += 1
        self._evaluate(size)
        beside = self._beside(batch_bytes)
        trained = [parameter for parameter in self.parts.model.parameters() if parameter.requires_grad]
        fixed = self._base + bytes_of(trained) + bytes_of(dict(self.parts.optimizer.state))
        return {"size": size, "peak": self.memory.usage().peak + beside, "fixed": fixed + beside}

    def _steps(self, loader: Loader, window: int) -> None:
        parts, engine, size = self.parts, self.parts.engine, loader.batch_size
        stepper = make_stepper(parts, AnyLoss(engine.device), NoSpans())
        parts.network.train()
        with closing(_iterated(loader, engine)) as batches:
            for _ in range(STEPS):
                stepper.begin()
                for left in reversed(range(window)):
                    batch = engine.move(next(batches))
                    stepper.micro(batch, position=0, size=size, window=size * window, more=left > 0)
                stepper.update(usable=True, want_norm=True)
        parts.metrics["train"].reset()

    def _evaluate(self, size: int) -> None:
        """Evaluate one batch of the validation, or of the test."""
        parts = self.parts
        named = {name: loader for name, loader in parts.data.loaders().items() if name != "train"}
        for name, loader in [*named.items()][:1]:
            own = -(-(self.cfg.data.eval_batch_size or size) // self._ranks)
            some = loader.with_rows(loader.rows[:own], batch_size=own, num_workers=0)
            meter = parts.metrics[name]
            with parts.average.applied():
                evaluate(parts, some, [meter])
            meter.reset()

    def _beside(self, batch_bytes: int) -> int:
        """Count the bytes that the run needs and these steps do not: copies of the state, batches ahead, libraries."""
        cfg, parts = self.cfg, self.parts
        state = bytes_of([*parts.model.state_dict().values(), dict(parts.optimizer.state), parts.average.state_dict()])
        copies = 3 if cfg.trainer.nonfinite.action == "rollback" else 0
        gradients = bytes_of([parameter for parameter in parts.model.parameters() if parameter.requires_grad])
        exchanged = gradients if self._ranks > 1 else 0
        if not self._on_cpu:
            return copies * state + exchanged
        copies += bool(cfg.checkpoint.enabled and cfg.checkpoint.asynchronous)
        ahead = cfg.data.num_workers * cfg.data.prefetch_factor * batch_bytes
        return copies * state + exchanged + ahead + _LIBRARIES


def _iterated(loader: Loader, engine: Engine | None = None) -> Batches:
    batches = (batch for batch in loader.epoch(0))
    yield from batches if engine is None else engine.prefetch(batches)


def work() -> int:
    """Measure in this process: read the job, then sizes, from standard input; write what they need to standard output.

    It ends where memory ran out: what an error leaves behind would count with the next size.
    """
    job, cfg, answer = begin()
    return serve(cfg, sys.stdin, answer, **job["options"])


def serve(cfg: DictConfig, asked: IO[str], answer: Answer, **options: Any) -> int:
    """Measure every size that is asked for.

    Args:
        cfg: The configuration, for one process.
        asked: One JSON object a line: the arguments of `Bench.measure`.
        answer: Takes first the facts, then what each size needs.
        options: See `Bench`.

    Returns:
        0.
    """
    scene = MemoryReport(cfg)
    try:
        bench = Bench(cfg, **options)
    except Exception as error:
        answer(_failure(error, scene))
        return 0
    scene.parts = bench.parts
    answer(bench.facts())
    for line in asked:
        try:
            answer(bench.measure(**json.loads(line)))
        except Exception as error:
            answer({"size": json.loads(line)["size"], **_failure(error, scene)})
            break
    bench.parts.data.close()
    return 0


def _failure(error: Exception, scene: MemoryReport) -> dict[str, Any]:
    """Say what went wrong; `peak` is there, and null, where it was the memory."""
    if is_out_of_memory(error):
        return {"peak": None, "error": str(scene.report(error)), "exit_code": OUT_OF_MEMORY}
    return failure(error)


class BenchProcess(MeasuringProcess):
    """A process that measures sizes, while inside; it does not outlive that.

    Args:
        job: What it has to know, in one line.
        command: Arguments of Python; none starts the process that measures.
    """

    def __init__(self, job: str, command: Sequence[str] = ()) -> None:
        super().__init__(job, command or lightkit_command("train", "--measure")[1:], key=KEY, fix=f"{KEY}=null")

    def __enter__(self) -> BenchProcess:
        super().__enter__()
        return self

    def ask(self, *, size: int, window: int) -> dict[str, Any]:
        """Ask what a size needs; `peak` is null where it did not fit.

        Raises:
            UserError: The process ended, and not because memory ran out.
        """
        self.write(json.dumps({"size": size, "window": window}))
        answer = self.read()
        if answer is not None:
            return answer
        if self.was_killed():  # by the system, which had no memory left
            return {"size": size, "peak": None}
        raise self.lost()
