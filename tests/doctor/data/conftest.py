"""What the tests of data have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lightkit.data import Data, build_data
from lightkit.doctor.finding import Finding
from tests.doctor.data.planted import Examine, findings


@pytest.fixture
def examine() -> Iterator[Examine]:
    """`examine(data set, "labels", split={...})`: what these checks find in it."""
    opened: list[Data] = []

    def run(
        dataset: Any, *names: str, monitor: str = "val/accuracy", loss: Any = None, **settings: Any
    ) -> list[Finding]:
        opened.append(build_data(dataset=dataset, **{"split": {"by": "random"}, **settings}))
        return findings(opened[-1], *names, monitor=monitor, **(loss or {}))

    yield run
    for data in opened:
        data.close()
