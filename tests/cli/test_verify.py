"""`lightkit verify-resume` on the command line."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.cli.arguments import options_of
from lightkit.runner import trace, verify
from lightkit.runner.verify import run_job
from tests.conftest import Outcome
from tests.resume.harness import forked

QUICK = ["data=wine", "model.hidden=[8]", "data.batch_size=16", "device=cpu", "metrics.figures=[]"]


def in_a_fork(file: Path, *, want: int = 0) -> None:
    """In place of a new process, which takes seconds to start."""
    forked(lambda: run_job(file), file.with_suffix(".log"), want=want)


@pytest.mark.thorough
def test_a_table_and_status_0(cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(verify, "run_in_process", in_a_fork)
    done = cli("verify-resume", *QUICK, "--at", "12", "--phase", "save")
    assert done.code == 0, done.err
    assert "24 steps, killed at moment" in done.out
    assert "the same again: --at 12 --phase save" in done.out
    assert [line.split()[0] for line in done.out.splitlines() if line.endswith("  same")] == [
        *("model", "optimizer", "scheduler", "precision", "ema", "callbacks", "metrics", "state"),
        *("metrics.jsonl", "TensorBoard", "result.json"),
    ]
    assert "the same bits with and without the kill" in done.out
    assert "2/3 running again" in done.err
    assert not list(tmp_path.glob("lightkit-verify-*"))


@pytest.mark.thorough
def test_the_same_as_json(cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(verify, "run_in_process", in_a_fork)
    done = cli("verify-resume", *QUICK, "--at", "12", "--phase", "save", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out[done.out.rindex("\n{\n") :])  # the jobs print before it here
    assert (found["same"], found["killed"]["step"], found["reason"]) == (True, 12, None)
    assert not any(part["different"] for part in found["compared"])


@pytest.mark.thorough
def test_a_difference_is_named_with_status_1(
    cli: Callable[..., Outcome], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(verify, "run_in_process", in_a_fork)
    (project / "experiments" / "noisy_rows.py").write_text(
        "import numpy, torch\n"
        "class Noisy(torch.utils.data.Dataset):\n"
        "    def __init__(self):\n"
        "        self.rng, self.targets = numpy.random.default_rng(0), torch.arange(80) % 2\n"
        "    def __len__(self):\n"
        "        return 80\n"
        "    def __getitem__(self, row):\n"
        "        return torch.full((4,), float(self.rng.normal())), self.targets[row]\n"
    )
    options = ["data=custom", "data.dataset._target_=experiments.noisy_rows.Noisy", "data.batch_size=8", "device=cpu"]
    done = cli("verify-resume", *options, "model.hidden=[8]", "--keep")
    assert done.code == 1, done.err
    assert "DIFFERENT: the batch of step" in done.out
    assert "a generator of its own whose state is in no checkpoint" in done.out
    kept = Path(done.out.rpartition("kept in ")[2].strip())
    assert (kept / "whole" / "result.json").exists()


def test_the_phases_are_those_of_the_trace() -> None:
    assert tuple(options_of("verify-resume")["--phase"].words) == trace.PHASES
