"""Fixtures of several tests of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lightkit.data import Data
from tests.data.pictures import make


@pytest.fixture
def made() -> Iterator[Any]:
    opened: list[Data] = []

    def maker(*args: Any, **settings: Any) -> Data:
        opened.append(make(*args, **settings))
        return opened[-1]

    yield maker
    for data in opened:
        data.close()
