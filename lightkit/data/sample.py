"""One sample of a data set of the user's, and the random numbers that code of the user's draws for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, is_dead_worker, is_out_of_memory, user_frame


def read_sample(base: Any, row: int) -> Any:
    """Read a sample of a data set.

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
            argument="",
            origin=user_frame(error),
            fix="LIGHTKIT_DEBUG=1 shows the whole traceback",
            family="data-unreadable",
        ) from error


def seed_generators(key: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch, from which code of the user's draws, for one sample."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Put the generators of Python, NumPy and PyTorch back afterwards as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
