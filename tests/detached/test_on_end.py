"""The command at the end of a run of the command line: when it is called, what it is told, that it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import Outcome
from tests.detached.terminal import Terminal
from tests.faults.harness import TRAIN, at, result
from tests.waiting import until

Run = Callable[..., Outcome]
Start = Callable[..., Terminal]
TOLD = 'on_end=[sh, -c, "env | grep ^LIGHTKIT_ >> told"]'
RUN = ("train", "data=wine", "trainer.steps=2", "hydra.run.dir=run")


def told(folder: Path) -> dict[str, str]:
    """What the command was told, of several times the last."""
    return dict(line.split("=", 1) for line in (folder / "told").read_text().splitlines())


def test_the_command_is_told_what_became_of_the_run(cli: Run, project: Path) -> None:
    assert cli(*RUN, TOLD).code == 0
    assert (project / "told").read_text().count("LIGHTKIT_STATUS") == 1, "not by the Runner, too"
    found = told(project)
    value = result(project / "run")["objective"]["value"]
    assert found.pop("LIGHTKIT_BEST") == f"{value:.6g}"
    assert found == {
        "LIGHTKIT_RUN": str(project / "run"),
        "LIGHTKIT_NAME": "run",
        "LIGHTKIT_STATUS": "finished",
        "LIGHTKIT_EXIT": "0",
        "LIGHTKIT_METRIC": "val/accuracy",
        "LIGHTKIT_REASON": "",
    }


def test_it_does_not_hinder_going_on_and_may_be_another_then(cli: Run, project: Path) -> None:
    assert cli(*RUN).code == 0
    done = cli("resume", "run", "trainer.steps=3", TOLD)
    assert done.code == 0
    assert "on_end" not in done.err
    assert told(project)["LIGHTKIT_STATUS"] == "finished"
    (project / "told").unlink()
    assert cli("resume", "run", "trainer.steps=4").code == 0
    assert (project / "told").exists(), "it belongs to the run from then on"
    (project / "told").unlink()
    assert cli(*RUN[:2], "trainer.steps=4", RUN[3], "resume=auto", "on_end=[no-such-program]").code == 0
    assert result(project / "run")["steps"] == 4, "the same run, which has finished"


def test_what_is_wrong_with_the_command_is_said(cli: Run, project: Path) -> None:
    done = cli(*RUN, "on_end=[no-such-program,now]")
    assert done.code == 0
    assert done.err.rstrip().endswith("on_end: no-such-program now: cannot be run: No such file or directory")
    assert result(project / "run")["status"] == "finished"


def test_there_is_no_shell(cli: Run, project: Path) -> None:
    assert cli(*RUN, "on_end=[touch, 'a; touch b', $HOME]").code == 0
    assert {"a; touch b", "$HOME"} <= {path.name for path in project.iterdir()}


def test_it_is_called_for_a_run_that_failed(cli: Run, project: Path) -> None:
    done = cli(*RUN, TOLD, "optim.lr=1e30", "trainer.steps=50")
    assert done.code == 3
    found = told(project)
    assert (found["LIGHTKIT_STATUS"], found["LIGHTKIT_EXIT"]) == ("failed", "3")
    assert found["LIGHTKIT_REASON"]


def test_it_is_called_for_a_run_that_was_ended(terminal: Start, project: Path) -> None:
    shell = terminal(*TRAIN, at(9, "hold"), TOLD)
    until((project / "reached").exists, "the run to come to its hold")
    shell.type(b"\x03")
    (project / "go").touch()
    assert shell.wait() == 130
    found = told(project)
    assert (found["LIGHTKIT_STATUS"], found["LIGHTKIT_EXIT"]) == ("interrupted", "130")


def test_a_command_that_never_ends_is_ended_by_ctrl_c_alone(terminal: Start, project: Path) -> None:
    shell = terminal(*TRAIN, "on_end=[sh, -c, 'sleep 1; touch called; sleep 1000']")
    until((project / "called").exists, "the command")
    shell.type(b"\x03")
    assert shell.wait() == 0, "that of the run"
    assert "on_end: " in shell.shown
    assert result(project / "run")["status"] == "finished"


def test_that_of_somebody_elses_run_counts_for_nothing(cli: Run, project: Path) -> None:
    assert cli(*RUN, "on_end=[touch, called]").code == 0
    (project / "called").unlink()
    path = project / "run" / "config.yaml"
    path.write_text(path.read_text().replace("seed: 0", "seed: 0 # changed"))
    assert cli("resume", "run", "trainer.steps=3").code == 0
    assert not (project / "called").exists()
    assert cli("train", "--from", "run", "hydra.run.dir=other").code == 0
    assert not (project / "called").exists()
    assert cli("resume", "run", "trainer.steps=4", "on_end=[touch, called]").code == 0
    assert (project / "called").exists(), "what is typed is the user's own"


def test_a_sweep_calls_it_once_and_goes_on_with_it(cli: Run, project: Path) -> None:
    words = ("train", "-m", "data=wine", "trainer.steps=1", "seed=0,1", "hydra.sweep.dir=sweep")
    assert cli(*words, TOLD, "hydra/launcher=vectorized").code == 0
    assert (project / "told").read_text().count("LIGHTKIT_STATUS=finished") == 1
    assert told(project)["LIGHTKIT_RUN"] == str(project / "sweep")
