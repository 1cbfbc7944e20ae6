"""The home page and the first pages, each from top to bottom."""

from __future__ import annotations

import pytest

from tests.docs.conftest import CheckPage


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "docs/index.md",
        "docs/start/install.md",
        "docs/start/new-project.md",
        "docs/start/own-data.md",
        "docs/start/own-model.md",
    ],
)
def test_page(page: str, check: CheckPage) -> None:
    check(page)
