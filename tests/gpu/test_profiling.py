"""`profile=true` on a real GPU: its time in the tables, ranges for other profilers, the same results."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.config import compose
from lightkit.runner import Runner

pytestmark = pytest.mark.gpu
SMALL = ("data=digits", "model=cnn", "trainer.steps=30", "device=cuda", "metrics.figures=[]", "logger=quiet",
         "device.deterministic=true")  # fmt: skip


def run(folder: Path, *overrides: str) -> dict[str, Any]:
    return Runner(compose([*SMALL, *overrides]).cfg, folder).run()


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ranges that `nsys` would see."""
    names: list[str] = []
    push = torch.cuda.nvtx.range_push
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: (names.append(name), push(name))[1])
    return names


@pytest.mark.parametrize("changes", [(), ("device.compile=reduce-overhead", "device.precision=bf16")])
def test_the_time_of_the_gpu_stands_in_the_table(tmp_path: Path, pushed: list[str], changes: tuple[str, ...]) -> None:
    run(tmp_path, "profile=true", *changes)
    lines = (tmp_path / "profile" / "summary.txt").read_text().splitlines()
    assert "GPU ms a step" in lines[1]
    rows = {line.split()[0]: line.split()[1:] for line in lines[2 : lines.index("")]}
    assert float(rows["forward"][2]) > 0
    assert float(rows["backward"][2]) > 0
    assert float(rows["optimizer"][2]) > 0
    assert float(rows["other"][3]) < 20.0  # kernels are found to belong to something
    assert "GPU ms a step" in lines[lines.index("") + 2]
    with gzip.open(tmp_path / "profile" / "rank0-step14.pt.trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    for name in ("data", "forward", "backward", "optimizer", "logging", "validation", "checkpoint"):
        assert name in pushed
    assert pushed.count("backward") == 30  # of all steps, not of the recorded ones only


def test_ranges_without_a_recording_and_the_same_results(tmp_path: Path, pushed: list[str]) -> None:
    plain = run(tmp_path / "plain")
    assert pushed == []
    under = run(tmp_path / "under", "profile=true", "logger.profile.steps=0")
    assert pushed.count("forward") >= 30
    recorded = run(tmp_path / "recorded", "profile=true")
    assert plain["metrics"]["train/loss"] == under["metrics"]["train/loss"] == recorded["metrics"]["train/loss"]
    assert not list((tmp_path / "under" / "profile").glob("*.gz"))
