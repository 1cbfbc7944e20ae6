"""Jobs in the queue of Slurm, against programs that stand in for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.sweep.engines.slurm import SlurmEngine
from lightkit.sweep.job import Job, Start
from lightkit.sweep.queue import SlurmOptions, array_script
from tests.waiting import PATIENCE_SECONDS, until

STAND_IN = Path(__file__).parent / "stand_in"
SAVES = """
import pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1]); parts = here / "parts"
parts.open("a").write("begun\\n")
def end(number, _):
    parts.open("a").write(f"saved at {number}\\n"); sys.exit(128 + number)
for number in (10, 15): signal.signal(number, end)
(here / "ready").touch()
time.sleep(float(sys.argv[2])); sys.exit(int(sys.argv[3]))
"""
"""A job that begins, saves at a signal, and else ends after some seconds with some status."""


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


class Sweep:
    """An engine whose jobs are processes that are told how long they take and how they end."""

    def __init__(self, folder: Path, jobs: dict[str, tuple[float, int]], **options: object) -> None:
        self.folder, self.plan = folder, jobs
        given = {"poll_seconds": 0.2, "save_before": 2, "time": "60", **options}
        self.engine = SlurmEngine(folder, self.command, SlurmOptions(**given), name="test")  # type: ignore[arg-type]
        self.ended: dict[str, int] = {}

    def command(self, start: Start) -> Sequence[str]:
        seconds, code = self.plan[start.job.name]
        start.job.folder.mkdir(parents=True, exist_ok=True)
        program = start.job.folder / "job's program.py"
        program.write_text(SAVES)
        return [sys.executable, str(program), str(start.job.folder), str(seconds), str(code)]

    def start(self, *names: str) -> None:
        for name in names:
            self.engine.start(Start(Job(name, self.folder / name, (), "")))

    def until(self, condition: Callable[[], bool]) -> None:
        def waited() -> bool:
            self.ended |= self.engine.wait(0.2)
            return condition()

        until(waited, f"the jobs; ended: {self.ended}")

    def parts(self, name: str) -> list[str]:
        path = self.folder / name / "parts"
        return path.read_text().splitlines() if path.exists() else []


def test_jobs_that_start_together_are_an_array_and_their_ends_are_told(slurm: Path, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "a sweep", {"a": (0.1, 0), "b=[1,2]": (0.1, 3), "c": (0.1, 0)}, slots=2)
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


def test_a_job_saves_before_its_time_limit_and_goes_on_until_its_cap(slurm: Path, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep", {"long": (PATIENCE_SECONDS, 0)}, time="1", requeues=2)
    sweep.start("long")
    sweep.until(lambda: "long" in sweep.ended)
    assert sweep.parts("long") == ["begun", "saved at 10"] * 3
    assert sweep.ended == {"long": 138}
    assert "sweep.slurm.time=1, and may not go on more often than sweep.slurm.requeues=2" in sweep.engine.why("long")
    assert sweep.engine.why("long") == ""


def test_a_stopped_job_saves_and_a_waiting_one_leaves_the_queue(slurm: Path, tmp_path: Path) -> None:
    sweep = Sweep(
        tmp_path / "sweep",
        {"runs": (PATIENCE_SECONDS, 0), "waits": (PATIENCE_SECONDS, 0)},
        slots=None,
        options=["--comment=x"],
    )
    sweep.engine._options.__dict__["slots"] = 1  # the queue holds two, and runs one at a time
    sweep.start("runs", "waits")
    sweep.until(lambda: (tmp_path / "sweep" / "runs" / "ready").exists())
    assert sweep.engine.place("waits") == "queued"
    sweep.engine.stop("waits")
    sweep.engine.stop("runs")
    sweep.until(lambda: len(sweep.ended) == 2)
    assert sweep.parts("runs") == ["begun", "saved at 15"]
    assert sweep.parts("waits") == []
    assert sweep.ended == {"runs": 143, "waits": 143}


def test_a_grid_with_slots_is_one_array_that_goes_on_without_anybody(slurm: Path, tmp_path: Path) -> None:
    plan = dict.fromkeys("abcd", (0.1, 0))
    sweep = Sweep(tmp_path / "sweep", {**plan, "again": (0.1, 0)}, slots=2, ahead=True)
    assert sweep.engine.room() > len(plan)
    sweep.start(*plan)
    sweep.engine.close()  # nobody watches from here on
    script = tmp_path / "sweep" / "slurm" / "000.sh"
    assert "#SBATCH --array=0-3%2\n" in script.read_text()
    ended = tmp_path / "sweep" / "slurm" / "ended"
    until(lambda: {path.name for path in ended.glob("?")} == set(plan), "all jobs")
    assert [sweep.parts(name) for name in plan] == [["begun"]] * 4


def test_what_comes_again_waits_for_the_array_whose_slots_it_shares(slurm: Path, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep", {"a": (PATIENCE_SECONDS, 0), "b": (0.1, 0)}, slots=1, ahead=True)
    sweep.start("a")
    sweep.until(lambda: (tmp_path / "sweep" / "a" / "ready").exists())
    sweep.start("b")
    sweep.engine.wait(0)
    assert "#SBATCH --dependency=afterany:101\n" in (tmp_path / "sweep" / "slurm" / "001.sh").read_text()
    assert sweep.engine.place("b") == "queued"
    sweep.engine.stop("a", now=True)
    sweep.until(lambda: len(sweep.ended) == 2)
    assert sweep.ended == {"a": 143, "b": 0}
    assert sweep.parts("a") in (["begun"], ["begun", "saved at 15"])


def test_another_process_finds_the_jobs_again_also_those_that_ended_meanwhile(slurm: Path, tmp_path: Path) -> None:
    plan = {"short": (0.1, 4), "long": (PATIENCE_SECONDS, 0), "never": (0, 0)}
    first = Sweep(tmp_path / "sweep", plan)
    first.start("short", "long")
    first.engine.close()
    ended = tmp_path / "sweep" / "slurm" / "ended" / "short"
    second = Sweep(tmp_path / "sweep", plan)
    second.until(ended.exists)
    assert second.engine.attach(list(plan)) == ["short", "long"]
    second.until(lambda: "short" in second.ended)
    second.until(lambda: (tmp_path / "sweep" / "long" / "ready").exists())
    second.engine.stop("long")
    second.until(lambda: "long" in second.ended)
    assert second.ended == {"short": 4, "long": 143}
    assert second.parts("short") == ["begun"]


def test_a_job_that_only_a_file_names_is_not_cancelled(
    slurm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = Sweep(tmp_path / "theirs", {"job": (PATIENCE_SECONDS, 0)})
    theirs.start("job")
    theirs.until(lambda: (tmp_path / "theirs" / "job" / "ready").exists())
    notes = tmp_path / "sweep" / "slurm"
    (notes / "ended").mkdir(parents=True)
    (notes / "000.json").write_text('{"id": 101, "names": ["job"]}')
    sweep = Sweep(tmp_path / "sweep", {"job": (0, 0)})
    assert sweep.engine.attach(["job"]) == []
    (notes / "ended" / "job").write_text("0")
    assert sweep.engine.attach(["job"]) == ["job"]  # as one that has ended
    sweep.engine.stop("job", now=True)
    assert "job 101_0, which a file in" in caplog.text
    assert (slurm / "101" / "state.0").read_text() == "RUNNING\n"
    assert theirs.parts("job") == ["begun"]


@pytest.mark.parametrize("content", ["", "[]", "5", "{}", '{"id": 7}', '{"id": 7, "names": 5}', '{"names": ["job"]}'])
def test_a_damaged_note_of_what_was_submitted_is_passed_over(slurm: Path, tmp_path: Path, content: str) -> None:
    sweep = Sweep(tmp_path / "sweep", {"job": (0, 0)})
    notes = tmp_path / "sweep" / "slurm"
    notes.mkdir(parents=True)
    (notes / "000.json").write_text(content)
    assert sweep.engine.attach(["job"]) == []


def test_a_cancelled_job_is_told_as_failed(slurm: Path, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep", {"job": (PATIENCE_SECONDS, 0)})
    sweep.start("job")
    sweep.until(lambda: (tmp_path / "sweep" / "job" / "ready").exists())
    (slurm / "101" / "state.0").write_text("CANCELLED\n")
    sweep.until(lambda: "job" in sweep.ended)
    assert sweep.ended == {"job": 1}
    assert sweep.engine.why("job").startswith("it left the queue without a word")


def test_what_slurm_refuses_is_told(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = tmp_path / "bin"
    refusing.mkdir()
    (refusing / "sbatch").write_text(
        "#!/bin/bash\necho 'sbatch: error: invalid partition specified: gpus' >&2\nexit 1\n"
    )
    (refusing / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{refusing}:{os.environ['PATH']}")
    sweep = Sweep(tmp_path / "sweep", {"job": (1, 0)}, partition="gpus")
    sweep.start("job")
    with pytest.raises(UserError, match="does not take") as caught:
        sweep.engine.wait(0)
    assert "invalid partition" in str(caught.value)


def test_a_machine_without_slurm_is_told_which_commands_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="not on this machine") as caught:
        Sweep(tmp_path / "sweep", {})
    assert "sbatch" in str(caught.value)
    assert caught.value.key == "sweep.engine"


def test_names_stand_in_one_line_of_the_script(slurm: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="control character"):
        Sweep(tmp_path / "a\ntouch pwned", {})
    plain = array_script(SlurmOptions(account=123456, memory=16, time=60), tmp_path / "000", 1, name="x")
    assert "--account=123456\n" in plain
    assert "--mem=16\n" in plain
    text = array_script(SlurmOptions(partition="a b;c", memory="1G"), tmp_path / "000", 1, name="x y\ntouch pwned")
    assert "#SBATCH --partition='a b;c'" in text
    assert "#SBATCH --job-name=x-y-touch-pwned\n" in text
