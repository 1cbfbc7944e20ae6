"""Failures of the machine a run is on, told as what they are."""

from __future__ import annotations

import errno
import logging
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightkit.assembly import Learner
from lightkit.common.errors import FAILED, LOST_RANK, OUT_OF_MEMORY, UserError
from lightkit.common.failures import is_dead_worker, is_out_of_memory
from lightkit.common.strategies import strategy_of
from lightkit.common.text import counted
from lightkit.data.loaders import small_batch, small_size
from lightkit.device.ranks import is_lost
from lightkit.diagnostics.footprint import activations, bytes_of, measured, origins, repeated_blocks, state_bytes
from lightkit.diagnostics.memory import Memory, available_memory, in_gib, memory_of
from lightkit.trainer import State

_LOG = logging.getLogger(__name__)
_ROOM = "make room, then `lightkit resume RUN`: the last checkpoint is whole"
_DISK = {
    errno.ENOSPC: ("the disk is full", _ROOM),
    errno.EDQUOT: ("the disk quota is used up", _ROOM),
    errno.EFBIG: (
        "a file would be larger than the limit for files",
        "`ulimit -f unlimited`, then `lightkit resume RUN`: the last checkpoint is whole",
    ),
    errno.EROFS: ("the file system is read-only", "hydra.run.dir=FOLDER writes elsewhere"),
    errno.EIO: ("the disk reports an error", "have the disk looked at; `lightkit resume RUN` takes what can be read"),
}

_REFUSED = {
    "Expected more than 1 value per channel when training": (
        "data.batch_size",
        "batch norm cannot be trained with a batch of one sample, as the last one of an epoch may be",
        "data.drop_last=true, another data.batch_size, or a model without batch norm",
    ),
    "could not create a primitive": (
        "device.precision",
        "this processor cannot compute the model in this number format",
        "device.precision=bf16, or fp32",
    ),
    "element 0 of tensors does not require grad": (
        "model",
        "the loss depends on no weight that trains",
        "no .detach(), .item(), argmax, torch.no_grad() or NumPy between the weights and the loss",
    ),
    "index out of range in self": ("data.dataset", "a token is beyond the vocabulary", "a larger model.vocab_size"),
    "Trying to backward through the graph a second time": (
        "model",
        "a tensor of an earlier step takes part in this one",
        "detach what the model or the task keeps between steps: state = state.detach()",
    ),
    "one of the variables needed for gradient computation has been modified by an inplace operation": (
        "model",
        "a value was changed that the backward pass still needs",
        "x = x + y in place of x += y, and no inplace=True behind it",
    ),
}
"""What PyTorch says of a setting or a model that does not do: the key, what it means, and what helps."""

Report = Callable[[BaseException], UserError]


@contextmanager
def translate_errors(folder: Path | None = None, memory: Report | None = None) -> Iterator[None]:
    """Turn failures of the machine into errors that say what to do, while inside.

    Args:
        folder: Whatever goes wrong with a file in here is told too; elsewhere it may be the user's own code.
        memory: Knows more of memory that ran out; see `MemoryReport.report`.

    Raises:
        UserError: Memory ran out (exit code 4), a disk is full or broken, a loader process died (exit code 1), or
            another process of the run is gone (exit code 7), or PyTorch refuses a setting or a model (exit code 2).
    """
    try:
        yield
    except Exception as error:
        shown = as_user_error(error, folder, memory)
        if shown is None:
            raise
        raise shown from error


def as_user_error(error: BaseException, folder: Path | None = None, memory: Report | None = None) -> UserError | None:
    """Translate a failure of the machine into an error for the user; None for any other error."""
    if isinstance(error, UserError):
        return None
    if is_out_of_memory(error):
        if memory is not None:
            return memory(error)
        return UserError(
            f"out of memory: {reason(error)}",
            fix="a smaller data.batch_size with trainer.accumulate to make up for it, device.precision=bf16, or a "
            "smaller model; then `lightkit resume RUN` goes on from the last checkpoint, if it got as far as one",
            exit_code=OUT_OF_MEMORY,
        )
    if is_dead_worker(error):  # of a data loader of the user's own
        return UserError(
            f"a worker process of a data loader died: {str(error).strip().splitlines()[0]}",
            key="data.dataset",
            fix="if it was killed, memory may have run out: fewer workers, or num_workers=0 in that data loader; "
            "`lightkit resume RUN` goes on from the last checkpoint, if it got as far as one",
            exit_code=FAILED,
            family="loader-process",
        )
    if is_lost(error):
        _LOG.info("what PyTorch says of the other processes: %s", str(error).strip())
        return UserError(
            "another process of this run has ended or does not answer",
            key="device.parallel",
            fix="see what it says below, or in its own output; `lightkit resume RUN` goes on from the last checkpoint",
            exit_code=LOST_RANK,
        )
    return _of_file(error, folder) if isinstance(error, OSError) else _refused(str(error))


def _of_file(error: OSError, folder: Path | None) -> UserError | None:
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes, os.PathLike)) else None
    if error.errno in _DISK:
        what, fix = _DISK[error.errno]
    elif name and folder is not None and Path(name).absolute().is_relative_to(folder.absolute()):
        what, fix = error.strerror or str(error), "see to the folder, then `lightkit resume RUN`"
    else:
        return None
    return UserError(f"cannot write: {what}", key=name, fix=fix, exit_code=FAILED, family="cannot-write")


def _refused(message: str) -> UserError | None:
    for start, (key, what, fix) in _REFUSED.items():
        if message.startswith(start):
            return UserError(what, key=key, received=message.splitlines()[0].partition(". ")[0], fix=fix)
    return None


_SHOWN = 4
"""Modules that are named, the largest first."""
_SHARE = 0.02
"""Share of the activations below which a module is not worth a word."""
_LARGEST = 2**30
"""Bytes of weights up to which a step is done again with values on the CPU, where it cannot be done without them."""
_TIMES_FREE = 4
"""How many times the weights must be free there."""
_FROM_WORKER = "Caught "
_OPTIMIZER = {"optimizer": "state of the optimizer"}
_VALIDATION, _EVALUATION = "trainer.services.run", ("trainer.evaluate.evaluate", "runner.evaluation.evaluate_split")
_STEP = "trainer.loop._step"
_DOING = {
    "trainer.loop._next": "reading a batch",
    "device.engine.backward": "backward pass",
    "device.precision.backward": "backward pass",
    "device.engine.step": "optimizer step",
    "trainer.step.micro": "forward pass",
}
"""Functions on the way to an error, the innermost first, and what they do in words."""


@dataclass
class MemoryReport:
    """What is known of a run when its memory runs out.

    Args:
        cfg: The configuration.
        parts: Its parts; None while they are being built.
        memory: The book of its devices; None asks those of the parts.
    """

    cfg: DictConfig
    parts: Learner | None = None
    memory: Memory | None = None

    @property
    def state(self) -> State:
        """Return the counters of the run; zero while it is built."""
        return State() if self.parts is None else self.parts.state

    def report(self, error: BaseException) -> UserError:
        """Make the error as the user sees it. Whatever cannot be found out is left out: this never raises."""
        names, trace = list[str](), error.__traceback__
        while trace is not None:  # functions of lightkit on the way to the error
            module = str(trace.tb_frame.f_globals.get("__name__", ""))
            if module.startswith("lightkit."):
                names.append(f"{module.removeprefix('lightkit.')}.{trace.tb_frame.f_code.co_name}")
            trace = trace.tb_next
        rows, pattern = [f"out of memory{self._where(names)}: {reason(error)}"], None
        evaluating = any(name in names for name in (_VALIDATION, *_EVALUATION))
        release_frames(error)
        if self.parts is not None:
            with suppress(Exception):
                memory = self.memory or memory_of(self.parts.engine.parallel.devices)
                rows.append(_row("memory", memory.usage().in_words()))
            with suppress(Exception):
                fixed = state_bytes(self.parts.model, self.parts.optimizer, self.parts.average.state_dict())
                named = {_OPTIMIZER.get(name, name): count for name, count in fixed.items() if count}
                rows.append(_row("made of", ", ".join(f"{name} {in_gib(n)}" for name, n in named.items())))
            with suppress(Exception):
                activation_bytes = self._origins(self.parts, evaluating)
                pattern = None if evaluating else repeated_blocks(self.parts.model, activation_bytes)
                words = "outputs" if evaluating else f"activations of {counted(_samples(self.parts), 'sample')}"
                rows.append(_row("of these", _listed(activation_bytes, words)))
        fix = self._fix(evaluating, pattern)
        self.parts = None  # frames that are cleared keep their functions, one of which may lead to here
        return UserError("\n".join(rows), fix=fix, exit_code=OUT_OF_MEMORY)

    def _where(self, names: list[str]) -> str:
        """Say what the run was doing, from the functions it was in."""
        if _VALIDATION in names:
            return f" in the validation after step {self.state.step}"
        if any(name in names for name in _EVALUATION):
            return " in an evaluation"
        if self.parts is None:
            return " while the run was built"
        if _STEP not in names:
            return f" after step {self.state.step}" if self.state.step else ""
        doing = next((words for name, words in _DOING.items() if name in names), "")
        sizes = counted(self.cfg.data.batch_size, "sample")
        if self.cfg.trainer.accumulate > 1:
            sizes += f" x {self.cfg.trainer.accumulate} accumulated"
        return f" in training step {self.state.step + 1} ({doing + ', ' if doing else ''}{sizes})"

    def _origins(self, parts: Learner, evaluating: bool) -> dict[str, int]:
        """Count bytes of activations by module, of outputs in an evaluation; nothing where processes have to talk."""
        if not parts.engine.parallel.forward_is_local:
            return {}
        engine, batch = parts.engine, small_batch(parts.data.train)
        samples, size = small_size(parts.data.train), _samples(parts)
        if evaluating:
            size = int(self.cfg.data.eval_batch_size or self.cfg.data.batch_size)

        def step(model: Any, given: Any) -> Any:
            return parts.task.step(model, given, parts.criterion)

        known: dict[str, Any] = {"samples": samples, "size": size, "keeps": not evaluating}
        known["recomputed"] = list(self.cfg.device.activation_checkpointing)
        with suppress(Exception):
            return activations(parts.model, batch, step, device=engine.device, context=engine.autocast, **known)
        weights, room = bytes_of([*parts.model.parameters()]), available_memory() or 0
        if weights > _LARGEST or _TIMES_FREE * weights > room:
            return {}
        return measured(parts.model, batch, step, **known)

    def _fix(self, evaluating: bool, pattern: str | None) -> str:
        """Say what to change, in values that suit this run."""
        data, trainer, device = self.cfg.data, self.cfg.trainer, self.cfg.device
        size, changes, accumulate = int(data.batch_size), list[str](), int(trainer.accumulate)
        half = int(data.eval_batch_size or size) // 2
        if evaluating and half:
            changes.append(f"data.eval_batch_size={half}")
        elif not evaluating and size > 1 and self.parts is not None:
            part = size // 2 if size % 2 == 0 else 1
            changes.append(f"data.batch_size={part} trainer.accumulate={accumulate * size // part}")
            changes.append("trainer.find_batch_size=auto, which finds the largest for a new run")
        if device.precision in ("fp32", "tf32"):
            changes.append("device.precision=bf16")
        if pattern is not None and not device.activation_checkpointing:
            changes.append(f'device.activation_checkpointing=["{pattern}"]')
        if (lighter := strategy_of(device.parallel).lighter) is not None:
            changes.append(f"device.parallel={lighter}")
        if self.state.step:
            override = "" if evaluating else "; trainer.accumulate needs resume.override=[trainer.accumulate]"
            changes.append(f"`lightkit resume RUN` with some of these goes on from the last checkpoint{override}")
        return ("\n" + " " * 14).join(changes or ["a smaller model"])


def reason(error: BaseException) -> str:
    """Return the line that says most: the first, but of an error from a loader process the last."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[-1]} (in a loader process)" if lines[0].startswith(_FROM_WORKER) else lines[0]


def release_frames(error: BaseException) -> None:
    """Let go of the tensors in the functions that have ended with an error about memory.

    Whoever keeps the error, as a launcher of many runs does, would keep them too.
    """
    current: BaseException | None = error
    while current is not None and (is_out_of_memory(error) or getattr(error, "exit_code", 0) == OUT_OF_MEMORY):
        with suppress(Exception):
            traceback.clear_frames(current.__traceback__)
        current = current.__cause__


def _samples(parts: Learner) -> int:
    """Count the samples that one process computes at once in training."""
    train = parts.data.train
    return min(train.num_samples, -(-train.batch_size // parts.engine.ranks.replicas))


def _row(label: str, text: str) -> str:
    return f"    {label + ':':<10}{text}"


def _listed(activation_bytes: Mapping[str, int], words: str) -> str:
    """Put the largest origins in words."""
    total = sum(activation_bytes.values())
    if not total:
        raise ValueError("nothing is known")
    worth = [origin for origin in origins(activation_bytes) if origin.bytes >= _SHARE * total][:_SHOWN]
    texts = []
    for origin in worth:
        times = f" ({origin.count} x)" if origin.count > 1 else ""
        texts.append(f"{origin.name or 'the model itself'} {in_gib(origin.bytes)}{times}")
    return f"{words} about {in_gib(total)}: {', '.join(texts)}"
