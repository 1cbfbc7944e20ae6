"""What a run brings to the disk, in which order, and what it says about rows that are no longer there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lightkit.config import compose
from lightkit.loggers.files import read_jsonl
from lightkit.runner import Runner

OPTIONS = [
    "data=wine",
    "model.hidden=[4]",
    "device=cpu",
    "trainer.epochs=2",
    "data.batch_size=32",
    "metrics.figures=[]",
    "logger.console.style=quiet",
    "logger.every_steps=1",
    "checkpoint.every_steps=2",
]


def test_rows_are_on_the_disk_before_a_checkpoint_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name.partition(".tfevents")[0])
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    Runner(compose(OPTIONS).cfg, tmp_path / "run").run()
    saves = [index for index, name in enumerate(synced) if name == "checkpoint.unfinished"][1:]  # the first is a probe
    assert len(saves) >= 4
    for before, save in zip([0, *saves], saves):
        assert {"metrics.jsonl", "events.out", "run"} <= set(synced[before:save])


@pytest.mark.parametrize("left", [3, 0])
def test_rows_that_a_power_cut_took_are_told_and_training_goes_on(tmp_path: Path, left: int) -> None:
    run = tmp_path / "run"
    whole = Runner(compose(OPTIONS).cfg, run).run()
    path, config = run / "metrics.jsonl", compose([*OPTIONS, "trainer.epochs=3"]).cfg
    lines = path.read_text().splitlines(keepends=True)
    counted = len(lines) - 1  # the last one, of the test, comes after the last checkpoint
    path.write_text("".join(lines[:left]) + "\0" * 100)
    result = Runner(config, run).run(resume=True)
    assert result["steps"] > whole["steps"]
    line = f"metrics.jsonl has {left} of the {counted} rows that were logged before step {whole['steps']}: "
    assert line + "the others are lost" in (run / "run.log").read_text()
    steps = [row["step"] for row in read_jsonl(path)]
    assert steps[:left] == [json.loads(line)["step"] for line in lines[:left]]
    assert min(steps[left:]) >= whole["steps"]
    Runner(config, run).run(resume=True)
    assert [row["step"] for row in read_jsonl(path)] == steps, "no later row takes the place of a lost one"
