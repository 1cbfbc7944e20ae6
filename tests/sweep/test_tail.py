from __future__ import annotations

import json
from pathlib import Path

from lightkit.sweep.job import Job
from lightkit.sweep.state import JobProgress


def row(step: int, **values: float) -> str:
    return json.dumps({"step": step, "epoch": step // 10, "time": 100.0 + step, **values}) + "\n"


def test_a_resumed_job_writes_its_rows_again(tmp_path: Path) -> None:
    progress, path = JobProgress(Job("a", tmp_path, (), "")), tmp_path / "metrics.jsonl"

    def steps() -> list[int]:
        return [found["step"] for found in progress.look()]

    path.write_text(row(1) + row(2) + "no row\n[1]\n" + row(2, loss=1.0) + row(3))
    assert steps() == [1, 2, 2, 3]
    (tmp_path / "new").write_text(row(1) + row(2))
    (tmp_path / "new").replace(path)
    assert steps() == []
    with path.open("a") as file:
        file.write(row(2, loss=1.0) + row(3) + row(4)[:10])
    assert steps() == []
    with path.open("a") as file:
        file.write(row(4)[10:])
    assert steps() == [4]


def test_progress(tmp_path: Path) -> None:
    config = "metrics: {monitor: val/loss, mode: min}\ntrainer: {epochs: 4, steps: null}\n"
    progress = JobProgress(Job("a", tmp_path, (), config))
    progress.look()
    assert (progress.best, progress.share, progress.eta_seconds()) == (None, None, None)
    rows = [row(10, **{"val/loss": 0.5}), row(20, **{"val/loss": 0.4}), row(30, **{"val/loss": 0.6})]
    (tmp_path / "metrics.jsonl").write_text("".join(rows))
    assert len(progress.look()) == 3
    assert (progress.metric, progress.best, progress.epoch, progress.step) == ("val/loss", 0.4, 3, 30)
    assert progress.share == 0.75
    assert progress.eta_seconds() == 0.0  # those seconds have long passed
