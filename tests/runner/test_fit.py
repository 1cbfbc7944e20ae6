"""What a run brings to the disk, in which order, and what it says about rows that are no longer there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.runs.reading import read_jsonl
from tests.conftest import Outcome

OPTIONS = [
    "data=wine", "model.hidden=[4]", "device=cpu", "trainer.epochs=2", "data.batch_size=32", "metrics.figures=[]",
    "logger.console.style=quiet", "logger.every_steps=1", "checkpoint.every_steps=2",
]  # fmt: skip


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


@pytest.mark.thorough
def test_rows_that_a_power_cut_took_are_told_and_training_goes_on(tmp_path: Path) -> None:
    run, left = tmp_path / "run", 3
    whole = Runner(compose(OPTIONS).cfg, run).run()
    path, config = run / "metrics.jsonl", compose([*OPTIONS, "trainer.epochs=3"]).cfg
    lines = path.read_text().splitlines(keepends=True)
    counted = len(lines) - 1  # the last one, of the test, comes after the last checkpoint
    path.write_text("".join(lines[:left]) + "\0" * 100)
    result = Runner(config, run).run(resume=True)
    assert result["steps"] > whole["steps"]
    log = (run / "run.log").read_text()
    assert f"the checkpoint of step {whole['steps']} was written: {counted - left} rows are missing (steps " in log
    steps = [row["step"] for row in read_jsonl(path)]
    assert steps[:left] == [json.loads(line)["step"] for line in lines[:left]]
    assert min(steps[left:]) >= whole["steps"]
    Runner(config, run).run(resume=True)
    assert [row["step"] for row in read_jsonl(path)] == steps, "no later row takes the place of a lost one"


@pytest.mark.thorough
def test_what_somebody_did_to_the_rows_of_a_finished_run_is_a_warning(
    cli: Callable[..., Outcome], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert cli("train", *OPTIONS, f"hydra.run.dir={run}").code == 0
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    gone, changed = rows[1], {**rows[3], "train/loss_step": 0.0}
    lines = [json.dumps(row) for row in (rows[0], rows[2], changed, *rows[4:])]
    path.write_text("\n".join([*lines[:3], "a note", '{"step": 2, "mine": 1}', *lines[3:]]) + "\n")
    done = cli("resume", str(run), "trainer.epochs=3")
    assert done.code == 0, done.err
    changes = (
        f"1 row is missing (step {gone['step']}); 1 row has other values than were logged (step {changed['step']}); "
        "1 row was not logged by this run (step 2); 1 line cannot be read; as it is, it is kept as "
        "metrics.changed1.jsonl"
    )
    log = (run / "run.log").read_text()
    step = rows[-1]["step"]
    assert f"WARNING lightkit.runs.folder: metrics.jsonl has been changed since the checkpoint of step {step}" in log
    assert changes in log
    now = read_jsonl(path)
    assert changed in now
    assert next(row for row in now if "test/loss" in row)["step"] > step, "what is repeated stands there once"
    assert "a note" in (run / "metrics.changed1.jsonl").read_text()
    assert cli("resume", str(run)).code == 0
    assert (run / "run.log").read_text().count("has been changed") == 1
