from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.runs.lock import locked
from lightkit.sweep.controller import Controller
from lightkit.sweep.job import Grid, Job, JobOutcome, JobSearch, Start
from lightkit.sweep.journal import Journal, Record, read_journal
from lightkit.sweep.limits import ask_job
from lightkit.sweep.plan import build_search
from lightkit.sweep.state import JobState, look

OPTIONS = {"retries": 0, "on_error": "continue"}
CONFIG = "metrics: {monitor: val/accuracy, mode: max}\ntrainer: {epochs: 4}\n"


@dataclass
class Engine:
    """Ends every job at the next look, as its name is told to end: by exit statuses, one for each try."""

    survives: bool = False
    slots: int = 2
    codes: dict[str, list[int]] = field(default_factory=dict)
    running: dict[str, Start] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    on_wait: Callable[[], object] = lambda: None

    def room(self) -> int:
        return self.slots - len(self.running)

    def start(self, start: Start) -> None:
        self.running[start.job.name] = start
        self.log.append("+".join(self.running))

    def stop(self, name: str, *, now: bool = False) -> None:
        self.log.append(f"{'kill' if now else 'stop'} {name}")
        self.codes[name] = [137 if now else 143]

    def wait(self, seconds: float) -> Mapping[str, int]:
        self.on_wait()
        ended = {name: (self.codes.get(name) or [0]).pop(0) for name in self.running}
        for name, code in ended.items():
            folder = self.running.pop(name).job.folder
            status = {0: "finished", 138: "interrupted", 143: "interrupted"}.get(code, "failed")
            if code not in (137, 75):
                content = {"status": status, "reason": "went wrong", "epochs": 4, "objective": {"value": 0.5}}
                (folder / "result.json").write_text(json.dumps(content))
        return ended

    def attach(self, names: Sequence[str]) -> Sequence[str]:
        return ()

    def place(self, name: str) -> str:
        return "slot 0"

    def why(self, name: str) -> str:
        return ""

    def close(self) -> None:
        self.log.append("closed")


class Seen:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def started(self, state: JobState, again: str) -> None:
        self.lines.append(f"{state.job.name} starts {again}".strip())

    def ended(self, state: JobState) -> None:
        self.lines.append(f"{state.job.name} {state.status} {state.reason}".strip())

    def refresh(self, states: Mapping[str, JobState]) -> None:
        pass

    def message(self, text: str) -> None:
        self.lines.append(text)


def planned(folder: Path, names: str = "abc") -> Record:
    with Journal(folder) as journal:
        journal.head(command={}, options=OPTIONS)
        journal.plan([Job(name, folder / name, (f"x={name}",), CONFIG) for name in names])
    return read_journal(folder)


def go(
    folder: Path, engine: Engine, search: JobSearch | None = None, *, end: bool = False, **options: Any
) -> tuple[Controller, Seen]:
    record, seen = read_journal(folder), Seen()
    with Journal(folder) as journal:
        search = search or Grid(record.jobs.values())
        controller = Controller(record, journal, search, engine, options={**OPTIONS, **options}, display=seen)
        controller.run(end=end)
    return controller, seen


def statuses(controller: Controller) -> str:
    return " ".join(state.status for state in controller.states.values())


def test_jobs_run_in_all_slots_and_a_repeat_tries_failed_ones_again(tmp_path: Path) -> None:
    planned(tmp_path)
    controller, _ = go(tmp_path, engine := Engine(codes={"b": [3]}))
    assert engine.log == ["a", "a+b", "c", "closed"]
    assert (statuses(controller), controller.states["b"].reason) == ("finished failed finished", "went wrong")
    assert [outcome.name for outcome in read_journal(tmp_path).told] == ["a", "b", "c"]
    controller, _ = go(tmp_path, engine := Engine())
    assert (engine.log, statuses(controller)) == (["b", "closed"], "finished finished finished")


def test_a_search_that_followed_from_a_failure_is_not_told_otherwise(tmp_path: Path) -> None:
    planned(tmp_path)
    go(tmp_path, Engine(codes={"b": [3]}))

    class Strict(Grid):
        tries_failed_again = False

    go(tmp_path, engine := Engine(), Strict(read_journal(tmp_path).jobs.values()))
    assert engine.log == ["closed"]


CASES = """
ab ; codes={'a': [1, 1], 'b': [1, 1, 1]} ; retries=2 ; a a+b a a+b a a+b ; finished failed ; a starts try 3 of 3
abc ; codes={'a': [4]} ; ; a a+b c a ; finished finished finished ; a starts alone, as memory ran out beside others
a ; codes={'a': [4]} ; ; a ; failed
abcd ; codes={'a': [1]} ; on_error='continue' ; a a+b c c+d ; failed finished finished finished
abcd ; codes={'b': [1]} ; on_error='stop' ; a a+b ; finished failed waiting waiting ; no further job is started
abcd ; codes={'a': [1]} ; on_error='stop_if_first' ; a a+b ; failed finished waiting waiting ; no further job is started
abcd ; codes={'c': [1]} ; on_error='stop_if_first' ; a a+b c c+d ; finished finished failed finished
abc ; slots=1, codes={'b': [143]} ; ; a b ; finished interrupted waiting
"""
"""Jobs, how their processes end, options of the sweep; what starts, how all end, and what is said of it."""


@pytest.mark.parametrize("case", CASES.split("\n")[1:-1])
def test_what_follows_from_the_end_of_a_job(tmp_path: Path, case: str) -> None:
    names, ends, options, starts, expected, *lines = [part.strip() for part in case.split(";")]
    planned(tmp_path, names)
    controller, seen = go(tmp_path, engine := eval(f"Engine({ends})"), **eval(f"dict({options})"))
    assert engine.log == [*starts.split(), "closed"]
    assert statuses(controller) == expected
    shown = "\n".join(seen.lines)
    assert all(line in shown for line in lines)
    assert ("no further job" in shown) == ("no further job" in case)
    told = [outcome.name for outcome in read_journal(tmp_path).told]
    assert {*told} == {name for name, status in zip(names, expected.split()) if status in ("finished", "failed")}
    assert len(told) == len({*told})


def test_a_killed_job_leaves_a_reason(tmp_path: Path) -> None:
    planned(tmp_path, "ab")
    controller, _ = go(tmp_path, Engine(codes={"a": [137]}))
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert (result["status"], result["reason"]) == ("failed", "killed by signal 9 (SIGKILL)")
    assert controller.states["a"].code == 137


def test_a_second_signal_waits_for_nothing(tmp_path: Path) -> None:
    planned(tmp_path)
    engine = Engine()

    def hanging(seconds: float) -> Mapping[str, int]:
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    engine.wait = hanging  # type: ignore[method-assign]
    with pytest.raises(SystemExit) as stop:
        go(tmp_path, engine)
    assert stop.value.code == 143
    assert engine.log == ["a", "a+b", "stop a", "stop b", "closed"]


@pytest.mark.parametrize("how", ["signal", "file"])
def test_a_sweep_that_is_told_to_end_lets_all_jobs_save(tmp_path: Path, how: str) -> None:
    planned(tmp_path)

    def tell() -> None:
        if how == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            (tmp_path / ".stop").touch()

    engine = Engine()
    held = engine.wait

    def patient(seconds: float) -> Mapping[str, int]:
        if "stop b" not in engine.log:
            tell()
            return {}
        return held(seconds)

    engine.wait = patient  # type: ignore[method-assign]
    controller, seen = go(tmp_path, engine)
    assert engine.log == ["a", "a+b", "stop a", "stop b", "closed"]
    assert controller.stopped_by == 143
    assert statuses(controller) == "interrupted interrupted waiting"
    assert "asked to end: 2 jobs to save first" in seen.lines
    assert not (tmp_path / ".stop").exists()


def test_a_job_whose_folder_is_in_use_waits(tmp_path: Path) -> None:
    planned(tmp_path, "ab")
    (tmp_path / "a").mkdir()
    with ExitStack() as stack:
        stack.enter_context(locked(tmp_path / "a"))
        engine = Engine(
            codes={"b": [75, 0]}, on_wait=lambda: len(engine.log) > 0 and not engine.running and stack.close()
        )
        controller, seen = go(tmp_path, engine)
    assert "b starts another process ran in its folder" in seen.lines
    assert "a waits, as another process works in its folder" in seen.lines
    assert statuses(controller) == "finished finished"


class Pruning(Grid):
    """Ends jobs whose accuracy is below a half; pauses those named before they go on."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__(jobs)
        self.told: list[JobOutcome] = []

    def watch(self, name: str, row: Mapping[str, Any]) -> bool:
        return bool(row["val/accuracy"] < 0.5)

    def tell(self, outcome: JobOutcome) -> None:
        super().tell(outcome)
        self.told.append(outcome)


def test_a_job_that_promises_little_is_pruned(tmp_path: Path) -> None:
    record = planned(tmp_path, "ab")
    for name, value in (("a", 0.9), ("b", 0.1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(
            json.dumps({"step": 1, "epoch": 1, "val/accuracy": value}) + "\n"
        )
    engine = Engine()
    held = engine.wait
    engine.wait = lambda seconds: held(seconds) if "stop b" in engine.log else {}  # type: ignore[method-assign]
    controller, _ = go(tmp_path, engine, search := Pruning(list(record.jobs.values())))
    assert statuses(controller) == "finished pruned"
    assert json.loads((tmp_path / "b" / "result.json").read_text())["status"] == "pruned"
    assert [outcome.status for outcome in search.told] == ["finished", "pruned"]
    go(tmp_path, again := Engine(), Pruning(list(record.jobs.values())))
    assert again.log == ["closed"]


def test_a_job_that_finished_while_nobody_watched_is_told(tmp_path: Path) -> None:
    record = planned(tmp_path, "ab")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "result.json").write_text('{"status": "finished", "epochs": 4}')
    with Journal(tmp_path) as journal:
        journal.started("a", None)
    _, _ = go(tmp_path, engine := Engine(), search := Pruning(list(record.jobs.values())))
    assert engine.log == ["b", "closed"]
    assert [outcome.name for outcome in search.told] == ["a", "b"]


def test_a_full_disk_is_told_and_all_jobs_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(tmp_path)

    def full(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Journal, "ended", full)
    engine = Engine(codes={"a": [0]})
    held = engine.wait
    engine.wait = lambda seconds: {"a": 0} if engine.running.pop("a", None) else held(seconds)  # type: ignore[method-assign]
    with pytest.raises(UserError, match="No space left on device") as error:
        go(tmp_path, engine)
    assert error.value.exit_code == 1
    assert "stop b" in engine.log


RACE = """\
metrics: {monitor: val/accuracy, mode: max}
trainer: {epochs: 9, steps: null, validate_every: 1, validate_unit: epoch}
checkpoint: {enabled: true}
ensemble: {_target_: lightkit.ensemble.methods.NoEnsemble}
"""


class Pausing(Engine):
    """Trains a job to where it is to pause; the later its name in the alphabet, the better it is."""

    def wait(self, seconds: float) -> Mapping[str, int]:
        for name, start in self.running.items():
            folder, status = start.job.folder, "paused" if start.stop_at else "finished"
            (folder / "checkpoints").mkdir(exist_ok=True)
            (folder / "checkpoints" / "manifest.json").touch()
            content = {"status": status, "epochs": int(start.stop_at or 9), "objective": {"value": ord(name)}}
            (folder / "result.json").write_text(json.dumps(content))
        ended, self.running = dict.fromkeys(self.running, 0), {}
        return ended


def test_jobs_out_of_the_race_lose_their_checkpoints_and_never_start_again(tmp_path: Path) -> None:
    options = {**OPTIONS, "halving": {"rungs": [1, 3], "eta": 3}}
    with Journal(tmp_path) as journal:
        journal.head(command={}, options=options)
        journal.plan([Job(name, tmp_path / name, (f"x={name}",), RACE) for name in "abcdef"])

    def race(engine: Engine) -> Controller:
        record = read_journal(tmp_path)
        return go(tmp_path, engine, build_search(options, [*record.jobs.values()], record))[0]

    controller = race(engine := Pausing())
    assert statuses(controller) == "paused paused paused paused paused finished"
    assert [line for line in engine.log if "e" in line.split("+") or "f" in line.split("+")][-1] == "f"
    assert [name for name in "abcdef" if (tmp_path / name / "checkpoints").exists()] == ["f"]
    assert [read_journal(tmp_path).given_up, controller.states["e"].epoch] == [{*"abcde"}, 3]
    assert race(again := Pausing()).record.given_up == {*"abcde"}
    assert again.log == ["closed"]


class Queue(Engine):
    """Has jobs that an earlier process has left."""

    def attach(self, names: Sequence[str]) -> Sequence[str]:
        self.log.append("attach " + "+".join(names))
        jobs = read_journal(self.folder).jobs
        self.running |= {name: Start(jobs[name]) for name in names}
        return names

    folder: Path = Path()


def left_in_a_queue(folder: Path) -> Queue:
    record = planned(folder, "abcd")
    with Journal(folder) as journal:
        for name in "abc":
            journal.started(name, None)
            record.jobs[name].folder.mkdir()
        journal.ended(JobOutcome("c", "interrupted", code=143), told=False)
    engine = Queue(survives=True, slots=9)
    engine.folder = folder
    return engine


def test_jobs_in_a_queue_are_taken_over_and_none_starts_twice(tmp_path: Path) -> None:
    engine = left_in_a_queue(tmp_path)
    controller, _ = go(tmp_path, engine)
    assert engine.log == ["attach a+b", "a+b+c", "a+b+c+d", "closed"]
    assert statuses(controller) == "finished finished finished finished"


@pytest.mark.parametrize("slots", [2, 9])
def test_a_job_that_was_ended_in_the_queue_goes_on(tmp_path: Path, slots: int) -> None:
    engine = left_in_a_queue(tmp_path)
    engine.slots, engine.codes = slots, {"a": [143, 0]}
    controller, seen = go(tmp_path, engine)
    assert "a interrupted" in " ".join(seen.lines)
    assert statuses(controller) == "finished finished finished finished"
    assert controller.stopped_by == 0


def test_jobs_in_a_queue_are_ended_and_none_is_started(tmp_path: Path) -> None:
    engine = left_in_a_queue(tmp_path)
    controller, _ = go(tmp_path, engine, end=True)
    assert engine.log == ["attach a+b", "stop a", "stop b", "closed"]
    assert statuses(controller) == "interrupted interrupted interrupted waiting"


class Hanging(Engine):
    """Ends no job before it is told to, and those that hang not before they are killed."""

    def __init__(self, *hangs: str, **facts: Any) -> None:
        super().__init__(**facts)
        self.hangs, self.looks, self.told = set(hangs), 0, set[str]()

    def start(self, start: Start) -> None:
        self.told -= {start.job.name}
        super().start(start)

    def stop(self, name: str, *, now: bool = False) -> None:
        self.told |= {name} if now or name not in self.hangs else set()
        super().stop(name, now=now)

    def wait(self, seconds: float) -> Mapping[str, int]:
        self.looks += 1
        held = {name: self.running.pop(name) for name in [*self.running] if name not in self.told}
        ended = super().wait(seconds)
        self.running |= held
        return ended


@pytest.mark.parametrize("now", [False, True])
def test_a_job_that_is_stopped_ends_alone_and_is_not_tried_again(tmp_path: Path, now: bool) -> None:
    planned(tmp_path)
    engine = Hanging(slots=3)

    def tell() -> None:
        if engine.looks == 1:
            assert ask_job(tmp_path / "b", now=now)
            assert not ask_job(tmp_path / "b", now=now)
        if "b" not in engine.running:
            engine.told |= {"a", "c"}

    engine.on_wait = tell
    controller, seen = go(tmp_path, engine, retries=3)
    assert statuses(controller) == "finished stopped finished"
    assert (("kill b" if now else "stop b") in engine.log, controller.stopped_by) == (True, 0)
    assert "b stopped ended by `lightkit stop`" in seen.lines
    assert engine.log[:3] == ["a", "a+b", "a+b+c"]
    assert not (tmp_path / "b" / ".stop").exists()
    assert json.loads((tmp_path / "b" / "result.json").read_text())["status"] == "interrupted"
    controller, _ = go(tmp_path, again := Engine())
    assert (again.log, statuses(controller)) == (["closed"], "finished stopped finished")
    record = read_journal(tmp_path)
    with Journal(tmp_path) as journal:
        search = Grid(record.jobs.values())
        controller = Controller(record, journal, search, again := Engine(), options=OPTIONS, display=Seen())
        controller.run(again=True)
    assert (again.log, statuses(controller)) == (["b", "closed"], "finished finished finished")


def test_a_job_that_was_stopped_and_went_on_by_itself_is_what_its_folder_says(tmp_path: Path) -> None:
    record = planned(tmp_path, "a")
    with Journal(tmp_path) as journal:
        journal.started("a", None)
        journal.ended(JobOutcome("a", "stopped", code=143), told=True)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "result.json").write_text('{"status": "interrupted", "steps": 4}')
    assert look(record.jobs["a"], read_journal(tmp_path), controlled=False).status == "stopped"
    (tmp_path / "a" / "result.json").write_text('{"status": "finished", "steps": 8}')
    assert look(record.jobs["a"], read_journal(tmp_path), controlled=False).status == "finished"


@pytest.mark.parametrize("hangs", [(), ("a",)], ids=["saves", "hangs"])
@pytest.mark.parametrize("limit", ["time_limit", "stall_limit"])
def test_a_job_that_takes_too_long_is_ended_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, hangs: tuple[str, ...]
) -> None:
    monkeypatch.setattr("lightkit.sweep.limits.GRACE_SECONDS", 0.0)
    planned(tmp_path, "ab")
    engine = Hanging(*hangs, slots=1)
    controller, seen = go(tmp_path, engine, retries=1, **{limit: 0.01})
    assert statuses(controller) == "failed failed"
    said = {"time_limit": "ran longer than sweep.time_limit=0.01", "stall_limit": "logged nothing for sweep.stall"}
    assert said[limit] in controller.states["a"].reason
    assert ("killed as it did not save" in controller.states["a"].reason) == bool(hangs)
    assert controller.states["a"].code == 1
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert (result["status"], said[limit] in result["reason"]) == ("failed", True)
    tries = sum(line.startswith("a starts") for line in seen.lines)
    assert tries == (2 if limit == "stall_limit" else 1)  # what hangs may have had bad luck


@pytest.mark.parametrize("hangs", [(), ("a",)], ids=["saves", "hangs"])
def test_the_budget_of_a_sweep_lets_jobs_save_and_begins_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: tuple[str, ...]
) -> None:
    monkeypatch.setattr("lightkit.sweep.limits.GRACE_SECONDS", 0.0)
    planned(tmp_path)
    controller, seen = go(tmp_path, engine := Hanging(*hangs, slots=1), budget=0.01)
    assert statuses(controller) == "interrupted waiting waiting"
    assert controller.stopped_by == 143
    assert "sweep.budget=0.01 is used up: 1 job to save first" in seen.lines
    assert ("kill a" in engine.log) == bool(hangs)
    controller, _ = go(tmp_path, again := Engine(slots=1), budget="2h")
    assert again.log == ["a", "b", "c", "closed"]
    assert statuses(controller) == "finished finished finished"


def test_a_job_that_the_queue_has_ended_says_so_and_the_sweep_goes_on(tmp_path: Path) -> None:
    planned(tmp_path, "abc")
    engine = Engine(survives=True, slots=1, codes={"a": [138], "b": [3], "c": [137]})
    engine.why = lambda name: "it may not go on more often"  # type: ignore[method-assign]
    controller, _ = go(tmp_path, engine)
    assert statuses(controller) == "failed failed failed"
    reasons = [json.loads((tmp_path / name / "result.json").read_text())["reason"] for name in "ab"]
    assert reasons == ["it may not go on more often", "went wrong"]  # what a job says itself counts more
    assert [controller.states["a"].code, controller.states["c"].reason] == [138, "it may not go on more often"]
