"""Pictures of what finders saw."""

from __future__ import annotations

import pytest

from lightkit.diagnostics.memory import Probe
from lightkit.finders.drawing import draw_batch, draw_lr, draw_workers
from lightkit.finders.lr import FoundRate, ShortTraining
from lightkit.finders.speeds import FoundWorkers, Speed
from tests.drawing import png
from tests.finders.test_suggestion import curve

GIB = 1 << 30


def legend(figure: object) -> list[str]:
    (axes,) = figure.axes  # type: ignore[attr-defined]
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_losses_over_rates() -> None:
    points = curve(noise=0.05)
    trainings = (ShortTraining(0.02, (0.4, 0.5)), ShortTraining(0.06, (1.9, 2.1)), ShortTraining(0.2, ()))
    figure = draw_lr(FoundRate(tuple(points), 0.001, trainings, 50, 50), "wine: optim.lr")
    entries = legend(figure)
    assert "suggested: 0.02" in entries
    assert "end of trainings of 50 steps" in entries
    assert "optim.lr: 0.001" in entries
    assert any(text.startswith("harm: from") for text in entries)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    low, high = axes.get_ylim()
    assert low < 0.45 < 2.3 < high < 3.5, "a loss that diverges does not make the rest a flat line"
    assert png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize(("most", "unit"), [(4 * GIB, "GiB"), (GIB // 8, "MiB")])
def test_memory_over_sizes(most: int, unit: str) -> None:
    probes = [Probe(2, most // 4), Probe(64, None), Probe(8, most // 2), Probe(32, most)]
    figure = draw_batch(probes, {}, limit=9 * most // 8, free=10 * most // 8, size=32, title="batch")
    entries = legend(figure)
    assert "64: does not fit" in entries
    assert "suggested: 32" in entries
    assert figure.axes[0].get_ylabel() == f"memory [{unit}]"
    assert any(unit in text for text in entries if text.startswith("free"))


def test_speed_over_sizes() -> None:
    probes = [Probe(8, GIB), Probe(64, 2 * GIB)]
    figure = draw_batch(probes, {16: 100.0, 32: 150.0}, limit=3 * GIB, free=4 * GIB, size=32, title="batch")
    memory, speed = figure.axes
    assert "samples a second" in [text.get_text() for text in memory.get_legend().get_texts()]
    assert [label.get_text() for label in memory.get_xticklabels()] == ["8", "16", "32", "64"]
    assert speed.get_ylim()[1] > 150


def test_speed_over_processes() -> None:
    speeds = tuple(Speed(workers, 100.0 * (workers + 1), 0.5, 0.1) for workers in (0, 1, 2))
    figure = draw_workers(FoundWorkers(speeds, 600.0, 2, 0), "workers")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["waits 50%"] * 3
    assert axes.get_xlabel().endswith("of 2 CPUs; suggested: 2")
