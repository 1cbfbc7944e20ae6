"""One sample of a data set of the user's."""

from __future__ import annotations

from typing import Any

from lightkit.common.blame import blame, in_short
from lightkit.common.errors import UserError
from lightkit.common.lost import is_dead_worker
from lightkit.common.memory import is_out_of_memory


def read_sample(base: Any, row: int) -> Any:
    """`base[row]`.

    Raises:
        UserError: The data set raises; its line is named, the error is the `__cause__`.
    """
    try:
        return base[row]
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error) or is_dead_worker(error):
            raise
        raise UserError(
            f"sample {row} of the data set could not be read: {in_short(error)}",
            key="data.dataset",
            origin=blame(error),
            fix="LIGHTKIT_DEBUG=1 shows the whole traceback",
        ) from error
