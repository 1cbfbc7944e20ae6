"""How the figures look."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.metrics.test_figures import ALL, drawn


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("task", "classes"),
    [("multiclass", 2), ("multiclass", 5), ("multiclass", 30), ("multiclass", 90), ("binary", 1), ("multilabel", 1),
     ("multilabel", 3), ("multilabel", 30)],
)  # fmt: skip
def test_every_figure_shows_something(task, classes):
    pictures = drawn(task, classes).draw()
    assert list(pictures) == ALL
    for figure in pictures.values():
        axes = figure.axes[0]
        assert axes.lines or axes.images or axes.collections
        figure.draw_without_rendering()


@pytest.mark.thorough
def test_matplotlib_waits_until_something_is_drawn():
    code = "import sys, lightkit.metrics; assert not {'matplotlib', 'torchmetrics', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
