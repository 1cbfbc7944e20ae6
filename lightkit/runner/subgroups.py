"""What a run is worth in groups of rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.common.text import is_missing
from lightkit.data import Data
from lightkit.data.row_facts import row_column
from lightkit.ensemble.oof import MemberPredictions
from lightkit.runner.ensemble.report import SplitMeter
from lightkit.runner.intervals import over_repeats, row_intervals

FEWEST = 10
"""Rows of a group at least for which there are intervals."""
_MOST, _DISTINCT, _BINS = 20, 10, 5
"""Groups at most; different numbers that are groups each; and bins of more numbers."""
ALL, _MISSING = "(all rows)", "(missing)"


def measure_groups(
    cfg: DictConfig, meter: SplitMeter, repeats: Sequence[MemberPredictions], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """Measure rows in groups.

    Args:
        cfg: The configuration of the run.
        meter: Measures rows.
        repeats: The rows, as each repeat predicts them.
        labels: The group of each.

    Returns:
        Of each group its name (`group`), rows (`n`), `metrics` and `intervals`: the worst by the monitored metric
        first, then those of few rows, and all rows last.
    """
    rows, named = list[dict[str, Any]](), np.array(labels, dtype=object)
    for group in [*dict.fromkeys(labels), ALL]:
        meter.metrics.collected().strict = group != ALL  # the values of all rows are those of every evaluation
        own = [one.take(torch.from_numpy((named == group) | (group == ALL))) for one in repeats]
        ends = row_intervals(meter, own, seed=cfg.seed) if len(own[0]) >= FEWEST else {}
        rows.append({"group": group, "n": len(own[0]), "metrics": over_repeats(meter, own), "intervals": ends})
    split, name = next(iter(rows[0]["metrics"])).partition("/")[0], cfg.metrics.monitor.partition("/")[2]
    name, mode = (name, cfg.metrics.mode) if f"{split}/{name}" in rows[0]["metrics"] else ("loss", "min")
    found = np.array([row["metrics"][f"{split}/{name}"] for row in rows]) * (-1 if mode == "min" else 1)
    worth = dict(zip([row["group"] for row in rows], np.nan_to_num(found, nan=math.inf)))
    return sorted(rows, key=lambda row: (row["group"] == ALL, row["n"] < FEWEST, worth[row["group"]]))


def group_labels(column: str, data: Data, source: Any, places: Tensor, targets: Tensor) -> list[str]:
    """Return the group of each of some rows: its value, a bin of numbers, or that it is rare or missing.

    Args:
        column: `target`, or see `row_column`.
        data: The data of the run.
        source: The data set of the rows.
        places: The rows of it.
        targets: Their targets.

    Raises:
        UserError: There is no such column.
    """
    cells, names = data.info.in_unit(targets).tolist(), data.info.class_names
    if column != "target":
        cells = row_column(source, column, data.normalizer, key="--by")[places.numpy()].tolist()
    elif data.info.task == "multiclass":
        cells = [names[cell] for cell in cells]
    gone = [cell is None or cell != cell or (isinstance(cell, str) and is_missing(cell)) for cell in cells]
    labels = [f"{cell:.7g}" if isinstance(cell, float) else str(cell) for cell in cells]
    with suppress(TypeError, ValueError):
        numbers = np.array([math.nan if none else float(cell) for cell, none in zip(cells, gone)])
        if len(np.unique(numbers[~np.isnan(numbers)])) > _DISTINCT:
            edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, _BINS + 1)))
            bins = np.searchsorted(edges[1:-1], numbers, side="right").tolist()
            labels = [f"{edges[place]:.6g} to {edges[place + 1]:.6g}" for place in bins]
    labels = [_MISSING if none else label for label, none in zip(labels, gone)]
    rest = {label for label, _ in Counter(labels).most_common()[_MOST:]} - {_MISSING}
    return [f"({len(rest)} rarer values)" if label in rest else label for label in labels]
