"""The guides, each from top to bottom."""

from __future__ import annotations

import pytest

from tests.docs.conftest import CheckPage


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "docs/guides/checkpoints.md",
        "docs/guides/fine-tuning.md",
        "docs/guides/resume.md",
        "docs/guides/security.md",
    ],
)
def test_page(page: str, check: CheckPage) -> None:
    check(page)
