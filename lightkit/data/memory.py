"""A data set that a program holds in memory, for a run that it starts itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

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


class WeightedData(TensorData):
    """Inputs and targets with what each sample counts: batches are `(x, y, weight)`."""

    weight: Tensor
    """`(N,)`, above 0."""
    exact = False  # blocks of batches are of pairs

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Return inputs `(B, ...)`, targets and weights of `rows`, `(B,)` int64."""
        return (*super().take(rows), self.weight.index_select(0, rows))
