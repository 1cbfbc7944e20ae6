"""A run that is looked at does the same as one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.runner.proving.comparison import compare_runs, read_trace
from lightkit.runner.proving.observer import traced_runner
from tests.resume.harness import forked

TINY = ["data=wine", "model.hidden=[4]", "trainer.steps=4", "device=cpu", "metrics.figures=[]", "logger=quiet"]


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
    assert {"micro", "save", "live", "validation", "test"} <= set(phases)
