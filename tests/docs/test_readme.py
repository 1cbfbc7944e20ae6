"""README.md, from top to bottom."""

from __future__ import annotations

import pytest

from tests.docs.conftest import CheckPage


@pytest.mark.slow
def test_page(check: CheckPage) -> None:
    check("README.md")
