"""The home page, the first pages, and those of concepts and reference, each from top to bottom."""

from __future__ import annotations

import pytest

from tests.docs.conftest import CheckPage


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "docs/reference/exit-status.md",
        "docs/reference/errors.md",
        "docs/concepts/guarantees.md",
        "docs/index.md",
        "docs/start/install.md",
        "docs/start/new-project.md",
        "docs/start/own-data.md",
        "docs/start/own-model.md",
    ],
)
def test_page(page: str, check: CheckPage) -> None:
    check(page)
