"""What a run came to, as a file and as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightkit.trainer.state import State

SPLITS = ("train", "val", "test")


def result(
    state: State, *, status: str, monitor: str, mode: str, reason: str | None = None, **facts: Any
) -> dict[str, Any]:
    """Make the content of `result.json`.

    Args:
        state: The counters and newest values.
        status: `finished`, `paused`, `failed` or `interrupted`.
        monitor: Name of the value that decides what is best; the objective of a sweep.
        mode: Whether `min` or `max` of it is better.
        reason: Why the run ended, where it did not take its last step.
        facts: Whatever else belongs to the result.
    """
    return {
        "status": status,
        "reason": reason,
        **facts,
        "objective": {"name": monitor, "mode": mode, "value": state.best_value, "step": state.best_step},
        "best": dict(state.best),
        "test": {name: value for name, value in state.last.items() if name.startswith("test/")},
        "metrics": dict(state.last),
        "epochs": state.epoch,
        "steps": state.step,
        "skipped_steps": state.skipped,
        "scaler_skipped_steps": state.scaler_skipped,
        "rollbacks": state.rollbacks,
    }


def final_values(state: State) -> dict[str, float]:
    """Pick the newest metrics of whole splits, without what belongs to single steps."""
    values = {name: value for name, value in state.last.items() if name.partition("/")[0] in SPLITS}
    return {name: value for name, value in values.items() if name != "train/loss_step"}


def final_table(values: Mapping[str, float], best: Mapping[str, float]) -> tuple[list[str], list[list[str]]]:
    """Make column names and rows of a table with a line for each metric and a column for each split.

    Args:
        values: The newest values by name.
        best: The values at the best step, where that is not the last one; a column of their own.
    """
    columns = {split: {name: v for name, v in values.items() if name.startswith(f"{split}/")} for split in SPLITS}
    split = next(iter(best), "").partition("/")[0]
    columns = {"train": columns["train"], "val": columns["val"], f"best {split}": dict(best), "test": columns["test"]}
    columns = {
        head: {name.partition("/")[2]: value for name, value in column.items()}
        for head, column in columns.items()
        if column
    }
    names = dict.fromkeys(name for column in columns.values() for name in column)
    return ["metric", *columns], [[n, *(_shown(column.get(n)) for column in columns.values())] for n in names]


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    plain = value == 0 or (math.isfinite(value) and 1e-3 <= abs(value) < 1e4)
    return f"{value:.4f}" if plain else f"{value:.4g}"
