"""Failures of the machine a run is on, told as what they are."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lightkit.common.errors import UserError
from lightkit.common.exit_codes import FAILED, LOST_RANK, OUT_OF_MEMORY
from lightkit.common.failures import is_dead_worker, is_out_of_memory
from lightkit.device.ranks import is_lost
from lightkit.runner.memory.oom import reason

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
        memory: Knows more of memory that ran out; see `lightkit.runner.memory.oom.MemoryReport.report`.

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
    if error.errno in _DISK:
        what, fix = _DISK[error.errno]
        return _disk(error, what, fix)
    file = error.filename
    if folder is None or not isinstance(file, (str, bytes, os.PathLike)):
        return None
    if Path(os.fsdecode(file)).absolute().is_relative_to(folder.absolute()):
        return _disk(error, error.strerror or str(error), "see to the folder, then `lightkit resume RUN`")
    return None


def _refused(said: str) -> UserError | None:
    found = next((facts for start, facts in _REFUSED.items() if said.startswith(start)), None)
    if found is None:
        return None
    key, what, fix = found
    return UserError(what, key=key, received=said.splitlines()[0].partition(". ")[0], fix=fix)


def _disk(error: OSError, what: str, fix: str) -> UserError:
    key = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else None
    return UserError(f"cannot write: {what}", key=key, fix=fix, exit_code=FAILED, family="cannot-write")
