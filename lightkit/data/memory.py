"""A data set that a program holds in memory, for a run that it starts itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from lightkit.common.errors import UserError
from lightkit.data.tensors import TensorData

_HELD: ContextVar[TensorData] = ContextVar("held")


@contextmanager
def holding(data: TensorData) -> Iterator[None]:
    """Let `held` return a data set inside, in this thread alone."""
    token = _HELD.set(data)
    try:
        yield
    finally:
        _HELD.reset(token)


def held() -> TensorData:
    """Return the data set of the program that started the run.

    Raises:
        UserError: The run was not started with one, or is in another process than that program.
    """
    try:
        return _HELD.get()
    except LookupError as error:
        what = "this data set was in the memory of the program that started the run"
        raise UserError(
            what, argument="", fix="a data set that a configuration can name", family="data-not-found"
        ) from error
