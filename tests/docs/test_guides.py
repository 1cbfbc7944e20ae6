"""The guides, each from top to bottom."""

from __future__ import annotations

import pytest

from tests.docs.conftest import CheckPage


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "docs/guides/devices.md",
        "docs/guides/profiling.md",
        "docs/guides/resume.md",
        "docs/guides/several-processes.md",
        "docs/guides/troubleshooting.md",
    ],
)
def test_page(page: str, check: CheckPage) -> None:
    check(page)
