"""Fixtures of several tests of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lightkit.data import Data, csv_reader
from tests.data.csv_cells import PARSERS
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


@pytest.fixture(params=PARSERS)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of the two ways to read a file, and none but that."""
    if request.param == "parse_any":
        monkeypatch.setattr(csv_reader, "parse_plain", csv_reader.parse_any)
    return str(request.param)
