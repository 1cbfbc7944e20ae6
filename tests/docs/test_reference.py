"""The reference, each page from top to bottom."""

from __future__ import annotations

import pytest

from tests.docs.conftest import CheckPage


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/reference/errors.md", "docs/reference/exit-status.md"])
def test_page(page: str, check: CheckPage) -> None:
    check(page)
