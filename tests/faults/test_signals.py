"""Being told to end: a checkpoint of this very step, exit status 128 + n, and `resume` goes on to the same end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import TRAIN, Process, alive, assert_same_end, at, children, log, newest, result, row_at
from tests.loggers.test_tensorboard import FAILURE, SUCCESS, UNKNOWN, session
from tests.waiting import until

Run = Callable[..., Process]


def code_of(name: str) -> int:
    return 128 + int(getattr(signal, f"SIG{name}"))


def assert_saved(process: Process, folder: Path, name: str, step: int) -> None:
    """The run ended on a signal with everything in order."""
    assert process.code == code_of(name), process.out + process.err
    assert f"ended by SIG{name} at step {step}, saved; go on with: lightkit resume" in process.out
    assert process.err == ""
    assert newest(folder)["state"]["step"] == step
    assert result(folder)["status"] == "interrupted"
    assert result(folder)["reason"] == f"SIG{name} at step {step}"
    assert f"interrupted: SIG{name} at step {step}" in log(folder)


def goes_on(ran: Run, project: Path, whole: Path) -> None:
    """`resume` ends as the run that was left alone."""
    (project / "fine").touch()
    process = ran("resume", "run")
    assert process.code == 0, process.err
    assert_same_end(whole, project / "run")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1"])
def test_a_signal_saves_this_very_step(ran: Run, project: Path, whole: Path, name: str) -> None:
    process = ran(*TRAIN, at(9, f":{name}"))
    assert_saved(process, project / "run", name, 9)
    goes_on(ran, project, whole)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [["trainer.accumulate=2"], ["trainer.validate_unit=step", "trainer.validate_every=2"]]
)
def test_a_signal_in_the_middle_of_a_step_waits_for_its_end(ran: Run, project: Path, options: list[str]) -> None:
    process = ran(*TRAIN, *options, "model.what=:TERM", "model.phase=train", "model.number=9")
    assert_saved(process, project / "run", "TERM", 5 if "accumulate" in options[0] else 9)


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "step", "validated"), [(2, 14, 7), (4, 21, 21)], ids=["validation", "final test"])
def test_a_signal_in_an_evaluation(
    ran: Run, project: Path, whole: Path, number: int, step: int, validated: int
) -> None:
    process = ran(*TRAIN, "model.what=:TERM", f"model.number={number}")
    assert_saved(process, project / "run", "TERM", step)
    assert newest(project / "run")["state"]["validated_step"] == validated, "the validation is still to be done"
    goes_on(ran, project, whole)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["INT", "HUP"])
def test_a_signal_while_the_run_is_built_leaves_nothing(lightkit: Run, project: Path, name: str) -> None:
    process = lightkit(*TRAIN, "data.dataset.what=hold", "data.dataset.here=true")
    process.hold()
    process.signal(getattr(signal, f"SIG{name}"))
    assert process.wait() == code_of(name)
    assert process.err == ("interrupted\n" if name == "INT" else "")
    assert not (project / "run").exists()


def test_without_checkpoints_nothing_is_claimed(ran: Run, project: Path) -> None:
    process = ran(*TRAIN, "checkpoint=none", at(9, ":TERM"))
    assert process.code == 143
    assert "ended by SIGTERM at step 9; nothing is saved, as checkpoints are off" in process.out


WORKERS = ("data.num_workers=2", "data.prefetch_factor=1")


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize(("name", "persistent"), [("INT", True), ("TERM", False)])
def test_a_signal_to_all_processes_spares_the_workers(
    ran: Run, project: Path, whole: Path, name: str, persistent: bool
) -> None:
    options = [f"data.dataset.what=group:{name}", f"data.dataset.row={row_at(45)}"]
    process = ran(*TRAIN, *WORKERS, f"data.persistent_workers={persistent}", *options)
    step = newest(project / "run")["state"]["step"]
    assert 1 <= step <= 5
    assert_saved(process, project / "run", name, step)
    goes_on(ran, project, whole)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("row", "place", "step"),
    [(row_at(3), "train, epoch 1, batch 1 of 7", 0), (65, "val, batch 1 of 1", 7), (80, "test, batch 1 of 2", 21)],
)
def test_a_signal_ends_the_wait_for_a_worker_that_hangs_anywhere(
    lightkit: Run, ran: Run, project: Path, whole: Path, row: int, place: str, step: int
) -> None:
    options = ["data.dataset.what=hold", f"data.dataset.row={row}", "data.dataset.patience=0.01"]
    process = lightkit(*TRAIN, *WORKERS, *options)
    process.hold()
    until(lambda: f"({place}): worker" in process.err, "the wait for this batch")
    workers = children(process.pid)
    process.signal(signal.SIGTERM)
    assert process.wait() == 143, process.err
    assert f"ended by SIGTERM at step {step}, saved" in process.out
    assert newest(project / "run")["state"]["step"] == step
    until(lambda: not any(map(alive, workers)), "the workers to end")
    goes_on(ran, project, whole)


@pytest.mark.thorough
def test_a_signal_ends_an_evaluation_that_waits_for_a_worker_that_hangs(lightkit: Run, ran: Run, project: Path) -> None:
    assert ran(*TRAIN).code == 0
    process = lightkit("eval", "run", *WORKERS, "data.dataset.what=hold", "data.dataset.row=80")
    process.hold()
    workers = children(process.pid)
    process.signal(signal.SIGINT)
    assert process.wait() == 130
    assert process.err == "interrupted\n"
    until(lambda: not any(map(alive, workers)), "the workers to end")


@pytest.mark.thorough
def test_kill_9_leaves_no_worker_behind_and_no_lock(lightkit: Run, project: Path, ran: Run, whole: Path) -> None:
    process = lightkit(*TRAIN, *WORKERS, at(9, "hold"))
    process.hold_after(7)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    goes_on(ran, project, whole)  # at once, whatever the workers do
    until(lambda: not any(map(alive, workers)), "the workers to end")


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize(("what", "status"), [("cuda", FAILURE), ("hold", UNKNOWN), (":TERM", UNKNOWN)])
def test_in_the_board_a_run_that_was_cut_off_has_its_settings_and_is_one_session_when_it_has_gone_on(
    lightkit: Run, ran: Run, project: Path, what: str, status: int
) -> None:
    cut = lightkit(*TRAIN, "logger.tensorboard.enabled=true", "seed=3", at(9, what))
    if what == "hold":
        cut.hold_after(7)
        cut.signal(signal.SIGKILL)
    assert cut.wait() != 0
    assert session(project / "run") == (3, status)
    (project / "fine").touch()
    process = ran("resume", "run")
    assert process.code == 0, process.err
    assert session(project / "run") == (3, SUCCESS)
