"""Run folders as training leaves them, written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SWEEP = "outputs/sweeps/2026-01-31/12-00-00-demo"
CONFIG = """\
metrics:
  monitor: val/accuracy
  mode: max
model:
  _target_: lightkit.models.MLP
  hidden:
  - 8
optim:
  _target_: torch.optim.AdamW
  lr: {lr}
name: demo
seed: {seed}
"""


def a_run(
    folder: Path,
    *,
    lr: float = 0.1,
    seed: int = 0,
    val: float | None = 0.5,
    test: float | None = None,
    status: str = "finished",
    config: str = CONFIG,
    data: str = "f00d",
    curve: Sequence[float] = (),
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write a run; `val=None` leaves it without a result."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config.format(lr=lr, seed=seed))
    (folder / "environment.json").write_text(json.dumps({"time": f"2026-01-31T12:00:0{seed}+0000", "data": data}))
    (folder / "overrides.yaml").write_text(f'- "optim.lr={lr}"\n- "seed={seed}"\n')
    rows = [{"step": 10 * i, "epoch": i, "val/accuracy": each} for i, each in enumerate(curve, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if val is not None:
        tested = {} if test is None else {"test/accuracy": test}
        objective = {"name": "val/accuracy", "mode": "max", "value": val, "step": 20}
        result = {"status": status, "objective": objective, "test": tested, "metrics": tested, "epochs": 2}
        (folder / "result.json").write_text(json.dumps({**result, **(more or {})}))
    return folder


def a_sweep(root: Path, values: Mapping[float, Sequence[float]], **more: Any) -> Path:
    """Write a sweep over rates, each with as many seeds as there are values."""
    for lr, each in values.items():
        for seed, val in enumerate(each):
            a_run(root / SWEEP / f"optim.lr={lr},seed={seed}", lr=lr, seed=seed, val=val, test=val - 0.1, **more)
    return root / SWEEP


def predictions(folder: Path, rows: Sequence[tuple[int, str, str, float]], split: str = "test") -> None:
    """Write predictions of two classes: row, target, prediction and the probability of the target."""
    lines = ["row,target,prediction,p(a),p(b)"]
    for row, target, prediction, p in rows:
        a, b = (p, 1 - p) if target == "a" else (1 - p, p)
        lines.append(f"{row},{target},{prediction},{a!r},{b!r}")
    (folder / f"predictions-{split}.csv").write_text("\n".join(lines) + "\n")
