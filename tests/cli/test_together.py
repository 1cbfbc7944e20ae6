"""A sweep whose jobs train at once has a journal: it can be stopped, repeated, edited and looked at like any other."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.common import run_files
from lightkit.ensemble.vectorized import VectorTrainer
from lightkit.runner.ensemble.member_files import MemberFiles
from tests.conftest import Cli
from tests.runner.test_run import weights

SMALL = ("data=wine", "model.hidden=[4]", "trainer.epochs=2", "device=cpu", "metrics.figures=[]", "logger=quiet")
AT_ONCE = ("train", "-m", *SMALL, "hydra/launcher=vectorized")


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int, stop: Callable[[], object]) -> None:
    """Do something once, when jobs that train at once have come to a step."""
    asked, done = VectorTrainer._after_step, list[int]()  # type: ignore[attr-defined]

    def after(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if trainer.state.step == step and not done:
            done.append(step)
            stop()
        return asked(trainer, *args, **kwargs)

    monkeypatch.setattr(VectorTrainer, "_after_step", after)


def events(folder: Path, kind: str) -> list[str]:
    rows = map(json.loads, (folder / run_files.SWEEP_JOURNAL).read_text().splitlines())
    return [str(row.get("name")) for row in rows if row["event"] == kind]


def same(first: Path, second: Path, names: Sequence[str]) -> bool:
    pairs = ((weights(first / name), weights(second / name)) for name in names)
    return all(torch.equal(one[key], other[key]) for one, other in pairs for key in one)


def test_interrupted_and_grown_and_repeated(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cli(*AT_ONCE, "seed=0,1,2", "hydra.sweep.dir=whole", "logger.console.style=lines")
    assert (whole.code, "3 members train at once" in whole.out) == (0, True), whole.err
    assert cli("eval", "whole/seed=1").code == 0
    stop_at(monkeypatch, 10, lambda: signal.raise_signal(signal.SIGTERM))
    stopped = cli(*AT_ONCE, "seed=0,1,2")
    assert stopped.code == 143, stopped.err
    (folder,) = (project / "outputs").glob("sweeps/*/*")
    status = json.loads(cli("sweep", "status", str(folder), "--json").out)
    assert [job["status"] for job in status["jobs"]] == ["interrupted"] * 3
    # Without the first one, and with another: those under way go on with the same bits, in the same folder.
    grown = cli(*AT_ONCE, "seed=1,2,3", f"hydra.sweep.dir={folder}")
    assert grown.code == 0, grown.err
    assert same(folder, project / "whole", ["seed=1", "seed=2"])
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [f"seed={seed}" for seed in range(4)]
    assert (folder / "seed=1" / "overrides.yaml").read_text().count("seed=1") == 1
    assert events(folder, "removed") == ["seed=0"]
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
    again = cli(*AT_ONCE, "seed=1,2,3", f"hydra.sweep.dir={folder}")
    assert again.code == 0, again.err
    assert "3 of 3 jobs done, 0 new" in again.out
    assert before == {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}


@pytest.mark.thorough(first=0)
def test_killed_in_the_last_moments(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli(*AT_ONCE, "seed=0,1", "hydra.sweep.dir=whole").code == 0
    written = MemberFiles.finish

    def finish(files: Any, member: Any, *args: Any, **kwargs: Any) -> Any:
        if member.name == "seed=1":
            raise KeyboardInterrupt  # nothing after it is written, as where the process is killed
        return written(files, member, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(MemberFiles, "finish", finish)
        assert cli(*AT_ONCE, "seed=0,1", "hydra.sweep.dir=mine").code == 130
    assert [(project / "mine" / f"seed={seed}" / "result.json").exists() for seed in (0, 1)] == [True, False]
    resumed = cli("sweep", "resume", "mine")
    assert resumed.code == 0, resumed.err
    assert events(project / "mine", "started") == ["seed=0", "seed=1", "seed=1"]
    assert same(project / "mine", project / "whole", ["seed=0", "seed=1"])


def test_a_job_that_fails_leaves_its_reason(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("the disk sang")

    stop_at(monkeypatch, 5, fail)
    done = cli(*AT_ONCE, "seed=0,1", "hydra.sweep.dir=mine")
    assert done.code == 1
    assert "2 of 2 jobs failed" in done.err
    assert "the disk sang" in json.loads((project / "mine" / "seed=1" / "result.json").read_text())["reason"]
    assert cli("sweep", "resume", "mine").code == 0
    assert events(project / "mine", "ended") == ["seed=0", "seed=1"] * 2


def test_what_cannot_be_done_at_once_is_refused(cli: Cli, project: Path) -> None:
    (project / "a.pt").touch()
    wrong = cli(*AT_ONCE, "optim.lr=0.1,0.2")
    assert (wrong.code, "may differ in their seed only" in wrong.err) == (2, True)
    for more, key in {
        "sweep.engine=slurm": "sweep.engine",
        "sweep.halving.rungs=[1]": "sweep.halving.rungs",
        "resume.file=a.pt": "resume.file",
        "device=ddp device.name=cpu device.nproc=2": "device.nproc",
    }.items():
        done = cli(*AT_ONCE, "seed=0,1", *more.split())
        assert (done.code, f"{key}: jobs that train at once" in done.err) == (2, True), done.err
