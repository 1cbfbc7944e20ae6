"""README and the guides, each from top to bottom: by default one guide of each kind."""

from __future__ import annotations

import pytest

from tests.docs.conftest import CheckPage


@pytest.mark.thorough(first=0)
@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/guides/inspect.md", "docs/guides/watching.md", "docs/guides/show.md", "docs/guides/compare.md"],
)
def test_page(page: str, check: CheckPage) -> None:
    check(page)


@pytest.mark.thorough(first=0)
@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "docs/guides/again.md",
        "docs/guides/security.md",
        "docs/guides/sklearn.md",
        "docs/guides/board.md",
        "docs/guides/calibration.md",
        "docs/guides/checkpoints.md",
        "docs/guides/clusters.md",
        "docs/guides/coming-from.md",
        "docs/guides/configuration.md",
        "docs/guides/cross-validation.md",
        "docs/guides/detached.md",
        "docs/guides/detection.md",
        "docs/guides/devices.md",
        "docs/guides/doctor.md",
        "docs/guides/ensembles.md",
        "docs/guides/export.md",
        "docs/guides/extend.md",
        "docs/guides/find.md",
        "docs/guides/fine-tuning.md",
        "docs/guides/forecasting.md",
        "docs/guides/halving.md",
        "docs/guides/heads.md",
        "docs/guides/hugging-face.md",
        "docs/guides/hydra.md",
        "docs/guides/losses-and-optimizers.md",
        "docs/guides/new-data.md",
        "docs/guides/notebooks.md",
        "docs/guides/optuna.md",
        "docs/guides/own-parts.md",
        "docs/guides/profiling.md",
        "docs/guides/report.md",
        "docs/guides/results.md",
        "docs/guides/resume.md",
        "docs/guides/segmentation.md",
        "docs/guides/several-processes.md",
        "docs/guides/messages.md",
        "docs/guides/streams.md",
        "docs/guides/sweeps.md",
        "docs/guides/tables.md",
        "docs/guides/trackers.md",
        "docs/guides/texts.md",
        "docs/guides/training.md",
        "docs/guides/troubleshooting.md",
        "docs/guides/gan.md",
        "docs/guides/two-views.md",
    ],
)
def test_another_page(page: str, check: CheckPage) -> None:
    check(page)
