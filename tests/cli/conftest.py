from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.cli.stand_in import module


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class that stands in for the Runner; `runner.asked` tells what it was asked for."""
    made = module()
    monkeypatch.setitem(sys.modules, "lightkit.runner", made)
    return made.Runner
