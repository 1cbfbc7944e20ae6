"""The job of one process: a run that is made short enough to be repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.runner.proving.comparison import compare_runs, read_trace
from lightkit.runner.proving.job import TracedJob, shortened, traced_runner
from tests.resume.harness import forked

PLAIN = ["data=wine", "model.hidden=[8]", "data.batch_size=16", "device=cpu", "metrics.figures=[]"]
TINY = ["data=wine", "model.hidden=[4]", "trainer.steps=4", "device=cpu", "metrics.figures=[]", "logger=quiet"]


def test_the_run_is_made_short(tmp_path: Path) -> None:
    def found(*overrides: str, **options: Any) -> dict[str, str]:
        job = shortened(TracedJob(str(tmp_path), "", overrides=(*PLAIN, *overrides), **options))
        return dict(text.split("=") for text in job.settings) | {name: str(rows) for name, rows in job.rows.items()}

    plain = found()
    assert plain["trainer.steps"] == "24"
    assert plain["checkpoint.every_steps"] == "4"
    assert not {"train", "val", "test", "trainer.validate_every"} & plain.keys()
    assert found(epochs=1)["trainer.steps"] == "8"
    assert found("trainer.steps=7")["trainer.steps"] == "7"
    assert found(at=10, steps=100, epochs=9)["checkpoint.every_steps"] == "2"
    assert found(at=12, steps=100, epochs=9)["checkpoint.every_steps"] == "4"
    assert found(at=13, steps=100, epochs=9)["checkpoint.every_steps"] == "1"
    assert found("logger.every_steps=1")["logger.every_steps"] == "1"


def test_long_epochs_and_rare_validations_are_shortened_to_cross_several(tmp_path: Path) -> None:
    def found(*overrides: str, **options: Any) -> tuple[dict[str, str], dict[str, int]]:
        job = shortened(TracedJob(str(tmp_path), "", overrides=(*PLAIN, *overrides), **options))
        return dict(text.split("=") for text in job.settings), job.rows

    settings, rows = found("data.batch_size=2", steps=30)
    assert rows["train"] == rows["test"] == 20
    assert rows.get("val", 18) <= 20
    assert settings["trainer.steps"] == "30", "three epochs of ten steps"
    settings, rows = found("data.batch_size=2", "trainer.accumulate=2", "data.drop_last=true", steps=15)
    assert rows["train"] // 4 in (4, 5)
    assert found("trainer.validate_every=5")[0]["trainer.validate_every"] == "1"
    assert found("trainer.validate_unit=step", "trainer.validate_every=100")[0]["trainer.validate_every"] == "12"
    assert "trainer.validate_every" not in found("trainer.validate_unit=step", "trainer.validate_every=5")[0]
    assert found("scheduler.warmup_steps=100", "trainer.epochs=50")[0]["scheduler.warmup_steps"] == "6"
    assert found("data.split.limit=40")[0]["trainer.steps"] == "9", "a length of one's own holds"


def test_a_job_comes_back_from_its_file(tmp_path: Path) -> None:
    job = TracedJob("run", "trace", overrides=("data=wine",), at=3, end_at=("step", 3, 0), rows={"train": 8})
    assert TracedJob.read(job.write(tmp_path / "job.json")) == job


@pytest.mark.thorough
def test_a_trace_changes_nothing_of_a_run(tmp_path: Path) -> None:
    cfg = compose(TINY).cfg
    Runner(cfg, tmp_path / "plain").run()
    # In a process of its own: what listens for file operations stays until it ends.
    forked(lambda: traced_runner(cfg, tmp_path / "traced", trace=tmp_path / "trace").run(), tmp_path / "log")
    compared = {item.name: item.different for item in compare_runs(tmp_path / "plain", tmp_path / "traced")}
    assert {name for name, different in compared.items() if different} <= {"callbacks"}
    phases = [row["phase"] for row in read_trace(tmp_path / "trace")]
    assert phases[0] == "start"
    assert (phases.count("step"), phases.count("end")) == (4, 1)
    assert {"micro", "save", "validation", "test"} <= set(phases)
