"""Jobs in the queue of Slurm, against programs that stand in for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.sweep.engines.slurm import SlurmEngine
from lightkit.sweep.queue import SlurmOptions, array_script
from tests.sweep.engines.made import Sweep
from tests.waiting import PATIENCE_SECONDS, until

STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    state = tmp_path / "slurm-state"
    state.mkdir()
    monkeypatch.setenv("FAKE_SLURM", str(state))
    monkeypatch.setenv("FAKE_MINUTE", "4")
    monkeypatch.setenv("FAKE_KILLWAIT", "1")
    monkeypatch.setenv("PATH", f"{STAND_IN}:{os.environ['PATH']}")
    yield state
    for path in state.glob("*/pid.*"):
        os.system(f"pkill -KILL -s {path.read_text().strip()} 2>/dev/null")


def made(folder: Path, jobs: dict[str, tuple[float, int]], **options: object) -> Sweep:
    """A sweep in the queue."""
    given: dict[str, Any] = {"poll_seconds": 0.2, "save_before": 2, "time": "60", **options}
    return Sweep(folder, jobs, lambda command: SlurmEngine(folder, command, SlurmOptions(**given), name="test"))


def test_jobs_that_start_together_are_an_array_and_their_ends_are_told(slurm: Path, tmp_path: Path) -> None:
    sweep = made(tmp_path / "a sweep", {"a": (0.1, 0), "b=[1,2]": (0.1, 3), "c": (0.1, 0)}, slots=2)
    assert sweep.engine.room() == 2
    sweep.start("a", "b=[1,2]")
    assert sweep.engine.room() == 0
    sweep.until(lambda: len(sweep.ended) == 2)
    sweep.start("c")
    sweep.until(lambda: len(sweep.ended) == 3)
    assert sweep.ended == {"a": 0, "b=[1,2]": 3, "c": 0}
    scripts = [path.read_text() for path in sorted((tmp_path / "a sweep" / "slurm").glob("*.sh"))]
    assert ["--array=0-1%2" in text for text in scripts] == [True, False]
    assert "#SBATCH --signal=USR1@2" in scripts[0]


def test_a_job_saves_before_its_time_limit_and_goes_on_until_its_cap(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_READY", str(tmp_path / "sweep" / "long" / "ready"))  # however long it takes to start
    sweep = made(
        tmp_path / "sweep", {"long": (PATIENCE_SECONDS, 0)}, time="1", requeues=2, save_before=PATIENCE_SECONDS
    )
    sweep.start("long")
    sweep.until(lambda: "long" in sweep.ended)
    assert sweep.parts("long") == ["begun", "saved at 10"] * 3
    assert sweep.ended == {"long": 138}
    assert "sweep.slurm.time=1, and may not go on more often than sweep.slurm.requeues=2" in sweep.engine.why("long")
    assert sweep.engine.why("long") == ""


def test_a_stopped_job_saves_and_a_waiting_one_leaves_the_queue(slurm: Path, tmp_path: Path) -> None:
    jobs = dict.fromkeys(("runs", "waits"), (PATIENCE_SECONDS, 0))
    sweep = made(tmp_path / "sweep", jobs, slots=None, options=["--comment=x"])
    sweep.engine._options.__dict__["slots"] = 1  # the queue holds two, and runs one at a time
    sweep.start("runs", "waits")
    sweep.until_ready("runs")
    assert sweep.engine.place("waits") == "queued"
    sweep.engine.stop("waits")
    sweep.engine.stop("runs")
    sweep.until(lambda: len(sweep.ended) == 2)
    assert sweep.parts("runs") == ["begun", "saved at 15"]
    assert sweep.parts("waits") == []
    assert sweep.ended == {"runs": 143, "waits": 143}


def test_a_grid_with_slots_is_one_array_and_what_comes_again_waits_for_it(slurm: Path, tmp_path: Path) -> None:
    sweep = made(tmp_path / "sweep", {"a": (PATIENCE_SECONDS, 0), "b": (0.1, 0), "c": (0.1, 0)}, slots=2, ahead=True)
    assert sweep.engine.room() > 3
    sweep.start("a", "b")
    sweep.engine.close()  # it goes on without anybody
    scripts = [tmp_path / "sweep" / "slurm" / f"00{number}.sh" for number in (0, 1)]
    assert "#SBATCH --array=0-1%2\n" in scripts[0].read_text()
    until((tmp_path / "sweep" / "slurm" / "ended" / "b").exists, "the short job")
    until((tmp_path / "sweep" / "a" / "ready").exists, "the long one")
    sweep.start("c")
    sweep.ended |= sweep.engine.wait(0)
    assert "#SBATCH --dependency=afterany:101\n" in scripts[1].read_text()
    assert sweep.engine.place("c") == "queued"
    sweep.engine.stop("a", now=True)
    sweep.until(lambda: len(sweep.ended) == 3)
    assert sweep.ended == {"a": 143, "b": 0, "c": 0}
    assert sweep.parts("a") in (["begun"], ["begun", "saved at 15"])


def test_another_process_finds_the_jobs_again_also_those_that_ended_meanwhile(slurm: Path, tmp_path: Path) -> None:
    plan = {"short": (0.1, 4), "long": (PATIENCE_SECONDS, 0), "never": (0, 0)}
    first = made(tmp_path / "sweep", plan)
    first.start("short", "long")
    first.engine.close()
    ended = tmp_path / "sweep" / "slurm" / "ended" / "short"
    second = made(tmp_path / "sweep", plan)
    second.until(ended.exists)
    assert second.engine.attach(list(plan)) == ["short", "long"]
    second.until(lambda: "short" in second.ended)
    second.until_ready("long")
    second.engine.stop("long")
    second.until(lambda: "long" in second.ended)
    assert second.ended == {"short": 4, "long": 143}
    assert second.parts("short") == ["begun"]


def test_a_job_that_only_a_file_names_is_not_cancelled(
    slurm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = made(tmp_path / "theirs", {"job": (PATIENCE_SECONDS, 0)})
    theirs.start("job")
    theirs.until_ready("job")
    notes = tmp_path / "sweep" / "slurm"
    (notes / "ended").mkdir(parents=True)
    (notes / "000.json").write_text('{"id": 101, "names": ["job"]}')
    sweep = made(tmp_path / "sweep", {"job": (0, 0)})
    assert sweep.engine.attach(["job"]) == []
    (notes / "ended" / "job").write_text("0")
    assert sweep.engine.attach(["job"]) == ["job"]  # as one that has ended
    sweep.engine.stop("job", now=True)
    assert "job 101_0, which a file in" in caplog.text
    assert (slurm / "101" / "state.0").read_text() == "RUNNING\n"
    assert theirs.parts("job") == ["begun"]


def test_a_damaged_note_of_what_was_submitted_is_passed_over(slurm: Path, tmp_path: Path) -> None:
    sweep = made(tmp_path / "sweep", {"job": (0, 0)})
    notes = tmp_path / "sweep" / "slurm"
    notes.mkdir(parents=True)
    for content in ("", "[]", '{"id": 7}', '{"id": 7, "names": 5}', '{"names": ["job"]}'):
        (notes / "000.json").write_text(content)
        assert sweep.engine.attach(["job"]) == []


def test_a_cancelled_job_is_told_as_failed(slurm: Path, tmp_path: Path) -> None:
    sweep = made(tmp_path / "sweep", {"job": (PATIENCE_SECONDS, 0)})
    sweep.start("job")
    sweep.until_ready("job")
    (slurm / "101" / "state.0").write_text("CANCELLED\n")
    sweep.until(lambda: "job" in sweep.ended)
    assert sweep.ended == {"job": 1}
    assert sweep.engine.why("job").startswith("it left the queue without a word")


def test_what_slurm_refuses_is_told(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpus' >&2\nexit 1\n")
    (programs / "sbatch").chmod(0o755)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(UserError, match="not on this machine") as missing:
        made(tmp_path / "sweep", {})
    assert (missing.value.key, "without squeue" in str(missing.value)) == ("sweep.engine", True)
    monkeypatch.setenv("PATH", f"{programs}:{path}")
    sweep = made(tmp_path / "sweep", {"job": (1, 0)}, partition="gpus")
    sweep.start("job")
    with pytest.raises(UserError, match="does not take") as refused:
        sweep.engine.wait(0)
    assert "invalid partition" in str(refused.value)


def test_names_stand_in_one_line_of_the_script(slurm: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="control character"):
        made(tmp_path / "a\ntouch pwned", {})
    plain = array_script(SlurmOptions(account=123456, memory=16, time=60), tmp_path / "000", 1, name="x")
    assert "--account=123456\n" in plain
    assert "--mem=16\n" in plain
    text = array_script(SlurmOptions(partition="a b;c", memory="1G"), tmp_path / "000", 1, name="x y\ntouch pwned")
    assert "#SBATCH --partition='a b;c'" in text
    assert "#SBATCH --job-name=x-y-touch-pwned\n" in text
