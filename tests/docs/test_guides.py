"""The guides, each from top to bottom."""

from __future__ import annotations

import pytest

from tests.docs.conftest import CheckPage


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "docs/guides/checkpoints.md",
        "docs/guides/clusters.md",
        "docs/guides/coming-from.md",
        "docs/guides/compare.md",
        "docs/guides/configuration.md",
        "docs/guides/devices.md",
        "docs/guides/ensembles.md",
        "docs/guides/find.md",
        "docs/guides/fine-tuning.md",
        "docs/guides/halving.md",
        "docs/guides/hydra.md",
        "docs/guides/notebooks.md",
        "docs/guides/optuna.md",
        "docs/guides/own-parts.md",
        "docs/guides/profiling.md",
        "docs/guides/results.md",
        "docs/guides/resume.md",
        "docs/guides/security.md",
        "docs/guides/several-processes.md",
        "docs/guides/sweeps.md",
        "docs/guides/troubleshooting.md",
    ],
)
def test_page(page: str, check: CheckPage) -> None:
    check(page)
