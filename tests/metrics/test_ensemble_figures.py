"""Figures of ensembles: that each shows what it was given, also where there is little or very much."""

from __future__ import annotations

import numpy as np
import pytest

from lightkit.metrics import ensemble_figures


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def labels(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_over_size_shows_spread_and_members(mode):
    drawn = [[0.8, 0.9, 0.85], [0.88, 0.9, 0.91], [0.92]]
    figure = ensemble_figures.over_size([1, 2, 3], drawn, metric="accuracy", first=[0.8, 0.9, 0.92], mode=mode)
    figure.draw_without_rendering()
    best = "best member  0.900" if mode == "max" else "best member  0.800"
    assert labels(figure) == ["all subsets", "middle half", "mean", "in their order", best, "mean member  0.850"]
    lines = figure.axes[0].lines
    assert lines[0].get_ydata().tolist() == pytest.approx([0.85, 0.8966667, 0.92])
    assert figure.get_suptitle() == "accuracy over the size of the ensemble"


def test_over_size_of_one_member():
    ensemble_figures.over_size([1], [[0.8]], metric="loss", mode="min", split="val").draw_without_rendering()


@pytest.mark.parametrize("count", [1, 3, 40])
def test_over_epochs_names_few_members(count):
    members = {f"{at:02d}": (range(1, 5), np.arange(4) / (at + 4)) for at in range(count)}
    figure = ensemble_figures.over_epochs(members, (range(1, 5), [0, 0.3, 0.5, 0.7]), metric="accuracy")
    figure.draw_without_rendering()
    assert len(figure.axes[0].lines) == count + 1
    assert labels(figure) == ([*members, "ensemble"] if count < 40 else ["members", "ensemble"])


def test_over_epochs_of_one_epoch_shows_points():
    figure = ensemble_figures.over_epochs({"00": ([1], [0.5])}, None, metric="loss")
    assert figure.axes[0].lines[0].get_marker() == "o"


@pytest.mark.parametrize("task", ["multiclass", "binary"])
def test_reliability_shows_bins_that_have_something(task):
    nan = np.nan
    figure = ensemble_figures.reliability(
        np.linspace(0, 1, 5), [nan, 0.4, 0.6, 0.9], [nan, 0.5, 0.5, 0.9], [0, 1, 2, 5], error=0.05, task=task
    )
    figure.draw_without_rendering()
    above, below = figure.axes
    assert [bar.get_height() for bar in above.containers[0]] == [0.5, 0.5, 0.9]
    assert [bar.get_height() for bar in below.containers[0]] == [0, 0.125, 0.25, 0.625]
    assert "0.050" in figure.get_suptitle()


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("size", [1, 12, 45])
def test_pairs_write_values_while_they_fit(size, signed):
    matrix = np.full((size, size), -0.25 if signed else 0.125)
    figure = ensemble_figures.pairs(matrix, [f"{at:02d}-mlp" for at in range(size)], title="pairs", signed=signed)
    figure.draw_without_rendering()
    assert texts(figure) == ["−.25" if signed else ".12"] * (size * (size - 1) if size < 20 else 0)
    assert matrix[0, 0] != 0
    assert not np.isnan(matrix).any()  # that of the caller is left alone


def test_pairs_without_a_value_stay_blank():
    figure = ensemble_figures.pairs(np.full((3, 3), np.nan), ["a", "b", "c"], title="correlation", signed=True)
    figure.draw_without_rendering()
    assert texts(figure) == []


@pytest.mark.parametrize("count", [1, 5, 60])
def test_weights_show_the_heaviest(count):
    values = [0.0, *np.arange(1, count)] if count > 1 else [1.0]
    figure = ensemble_figures.weights([f"{at:02d}" for at in range(count)], values)
    figure.draw_without_rendering()
    assert len(figure.axes[0].patches) == min(count, 40)
    assert figure.get_suptitle().endswith("(heaviest: 40 of 60)") == (count == 60)
    assert texts(figure)[0] == {1: "1.000", 5: "0", 60: "20.000"}[count]
