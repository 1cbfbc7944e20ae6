"""Draws the forecasts of a run over what came: `python -m experiments.tasks.forecasts RUN forecasts.png`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import lightkit
from lightkit.assembly.parts import build_engine, build_splits
from lightkit.common.drawing import BLUE, INK, PALE, add_legend, panels, png, style
from lightkit.config import load_run

SHOWN, BEFORE = 4, 42
"""Series that are drawn, and values before each forecast."""


def draw(run: Path) -> bytes:
    """Draw one test window of each series: its context, what came, the forecast and the seasonal naive one."""
    cfg = load_run(run).cfg
    data = build_splits(cfg, build_engine(cfg), run)
    rows, model = data.rows["test"], lightkit.load(run)
    horizon = data.source.horizon
    chosen = rows[torch.linspace(0, len(rows) - 1, SHOWN).long()]
    x, y = data.source.take(chosen)
    found = np.array(model.predict(x))
    figure, all_axes = panels(SHOWN, 2, (4.5, 2.2), f"{run.name}: forecasts of test windows")
    for axes, window, came, forecast in zip(all_axes, x.numpy(), y.numpy(), found, strict=True):
        style(axes)
        context, ahead = len(window) - horizon, np.arange(horizon)
        known = window[context - BEFORE : context, 0]
        axes.plot(np.arange(-BEFORE, horizon), np.r_[known, came], color=INK, lw=1, label="values")
        axes.plot(ahead, window[context:, 0], color=PALE, lw=1.5, label="seasonal naive")
        axes.plot(ahead, forecast, color=BLUE, lw=1.5, label="forecast")
    add_legend(all_axes[0])
    return png(figure)


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(draw(Path(sys.argv[1])))
