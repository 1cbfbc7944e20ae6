"""The home page and the first pages, each from top to bottom."""

from __future__ import annotations

import pytest

from tests.docs.conftest import CheckPage


@pytest.mark.slow
@pytest.mark.parametrize("name", ["install", "new-project", "own-data", "own-model"])
def test_page(name: str, check: CheckPage) -> None:
    check(f"docs/start/{name}.md")
