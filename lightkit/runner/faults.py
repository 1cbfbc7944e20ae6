"""Failures of the machine a run is on, told as what they are."""

from __future__ import annotations

import errno

from lightkit.common.errors import UserError

OUT_OF_MEMORY = 4
CANNOT_WRITE = 1
_DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would be larger than the limit for files (`ulimit -f`)",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the disk reports an error",
}
_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")


def explained(error: BaseException) -> UserError | None:
    """The user's view of an error of the machine; None for any other error."""
    if isinstance(error, UserError):
        return None
    if isinstance(error, OSError) and error.errno in _DISK:
        return UserError(
            f"cannot write: {_DISK[error.errno]}",
            key=str(error.filename) if error.filename else None,
            fix="make room, then `lightkit resume RUN`: the last checkpoint is whole",
            exit_code=CANNOT_WRITE,
        )
    return _memory(error) if is_out_of_memory(error) else None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the GPU or of the machine."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _MEMORY_TEXTS)


def _memory(error: BaseException) -> UserError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(
        f"out of memory: {reason}",
        fix="a smaller data.batch_size with trainer.accumulate to make up for it, device.precision=bf16, or a smaller "
        "model; then `lightkit resume RUN` goes on from the last checkpoint",
        exit_code=OUT_OF_MEMORY,
    )
