"""The guides, each from top to bottom."""

from __future__ import annotations

import pytest

from tests.docs.conftest import CheckPage


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "docs/guides/board.md",
        pytest.param("docs/guides/checkpoints.md", marks=pytest.mark.thorough),
        pytest.param("docs/guides/clusters.md", marks=pytest.mark.thorough),
        pytest.param("docs/guides/coming-from.md", marks=pytest.mark.thorough),
        pytest.param("docs/guides/compare.md", marks=pytest.mark.thorough),
        "docs/guides/configuration.md",
        "docs/guides/detached.md",
        pytest.param("docs/guides/devices.md", marks=pytest.mark.thorough),
        "docs/guides/doctor.md",
        pytest.param("docs/guides/ensembles.md", marks=pytest.mark.thorough),
        pytest.param("docs/guides/extend.md", marks=pytest.mark.thorough),
        pytest.param("docs/guides/find.md", marks=pytest.mark.thorough),
        "docs/guides/fine-tuning.md",
        pytest.param("docs/guides/halving.md", marks=pytest.mark.thorough),
        pytest.param("docs/guides/hydra.md", marks=pytest.mark.thorough),
        "docs/guides/inspect.md",
        pytest.param("docs/guides/notebooks.md", marks=pytest.mark.thorough),
        pytest.param("docs/guides/optuna.md", marks=pytest.mark.thorough),
        pytest.param("docs/guides/own-parts.md", marks=pytest.mark.thorough),
        pytest.param("docs/guides/profiling.md", marks=pytest.mark.thorough),
        "docs/guides/results.md",
        pytest.param("docs/guides/resume.md", marks=pytest.mark.thorough),
        pytest.param("docs/guides/security.md", marks=pytest.mark.thorough),
        pytest.param("docs/guides/several-processes.md", marks=pytest.mark.thorough),
        "docs/guides/show.md",
        pytest.param("docs/guides/sweeps.md", marks=pytest.mark.thorough),
        "docs/guides/troubleshooting.md",
        "docs/guides/watching.md",
    ],
)
def test_page(page: str, check: CheckPage) -> None:
    check(page)
