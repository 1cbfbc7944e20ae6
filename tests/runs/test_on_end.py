"""The command at the end of a run: when it is called, what it is told, and that it changes nothing."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.runs.on_end import call_on_end, facts_of
from tests.conftest import Outcome
from tests.faults.harness import result

Run = Callable[..., Outcome]
QUICK = (
    "data=wine",
    "trainer.steps=2",
    "model.hidden=[4]",
    "device=cpu",
    "logger=quiet",
    "metrics.figures=[]",
    "trainer.test=none",
)
RUN = ("train", *QUICK, "hydra.run.dir=run")


def telling(folder: Path) -> str:
    """The override for a command that writes down what it is told, each time; tests have a variable of their own."""
    return f"on_end=[sh, -c, 'env | grep ^LIGHTKIT_ | grep -v ^LIGHTKIT_TESTS_ON >> {folder}/told']"


def calls(folder: Path) -> list[dict[str, str]]:
    """What the command was told, once for each call."""
    if not (folder / "told").exists():
        return []
    rows = [line.split("=", 1) for line in (folder / "told").read_text().splitlines()]
    size = len(rows) // max(1, sum(name == "LIGHTKIT_RUN" for name, _ in rows))
    return [dict(rows[at : at + size]) for at in range(0, len(rows), size)]


@pytest.mark.thorough(first=0)
def test_it_is_told_what_became_of_the_run_also_of_one_that_goes_on(cli: Run, project: Path) -> None:
    assert cli(*RUN, telling(project)).code == 0
    (call,) = calls(project)  # once, and not by the Runner, too
    assert call.pop("LIGHTKIT_BEST") == f"{result(project / 'run')['objective']['value']:.6g}"
    assert call == {
        "LIGHTKIT_RUN": str(project / "run"),
        "LIGHTKIT_NAME": "run",
        "LIGHTKIT_STATUS": "finished",
        "LIGHTKIT_EXIT": "0",
        "LIGHTKIT_METRIC": "val/accuracy",
        "LIGHTKIT_REASON": "",
    }
    assert cli("resume", "run", "trainer.steps=4").code == 0
    assert len(calls(project)) == 2, "it belongs to the run"
    done = cli("resume", "run", "trainer.steps=5", "on_end=[touch, 'a; touch b', $HOME]")
    assert (done.code, "on_end" in done.err) == (0, False), "it does not hinder going on and may be another then"
    assert {"a; touch b", "$HOME"} <= {path.name for path in project.iterdir()}, "there is no shell"
    assert cli(*RUN, "trainer.steps=5", "resume=auto", "on_end=[no-such-program]").code == 0
    assert result(project / "run")["steps"] == 5, "the same run, which has finished"


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


def test_what_is_wrong_with_the_command_is_said(cli: Run, project: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong = "on_end: no-such-program now: cannot be run: No such file or directory"
    done = cli(*RUN, "on_end=[no-such-program,now]")
    assert (done.code, done.err.rstrip().endswith(wrong)) == (0, True)
    with caplog.at_level(logging.WARNING):
        outcome = Runner(compose([*QUICK, "on_end=[no-such-program,now]"]).cfg, project / "other").run()
    assert (outcome["status"], wrong in caplog.text) == ("finished", True)


def test_it_is_called_for_a_run_that_failed_or_never_began(cli: Run, project: Path) -> None:
    assert cli(*RUN, telling(project), "optim.lr=1e30", "trainer.steps=50").code == 3
    cfg = compose([*QUICK, telling(project), "optim.lr=1e30", "trainer.steps=50"]).cfg
    with pytest.raises(UserError):
        Runner(cfg, project / "again").run()
    with pytest.raises(UserError, match="there is no checkpoint to go on from"):
        Runner(cfg, project / "other").run(resume=True)
    ends = [(call["LIGHTKIT_STATUS"], call["LIGHTKIT_EXIT"], bool(call["LIGHTKIT_REASON"])) for call in calls(project)]
    assert ends == [("failed", "3", True), ("failed", "3", True), ("failed", "2", False)]


def test_a_sweep_calls_it_once_and_goes_on_with_it(cli: Run, project: Path) -> None:
    words = ("train", "-m", *QUICK, "trainer.steps=1", "seed=0,1", "hydra.sweep.dir=sweep")
    assert cli(*words, telling(project), "hydra/launcher=vectorized").code == 0
    (call,) = calls(project)
    assert (call["LIGHTKIT_RUN"], call["LIGHTKIT_STATUS"]) == (str(project / "sweep"), "finished")


def test_a_runner_calls_it_for_its_run_alone(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = compose([*QUICK, telling(project)]).cfg
    Runner(cfg, project / "driven", on_end=False).run()
    assert calls(project) == [], "whoever drives the run may call it"
    runner = Runner(cfg, project / "run")
    runner.run()
    runner.evaluate("val")
    runner.predict("val")
    assert len(calls(project)) == 1, "looking at a run calls nothing"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(runner, "_run", lambda resume: {})
    runner.run()
    assert len(calls(project)) == 1, "of several processes the first calls it"


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["true"], ""),
        (["sh", "-c", "exit 3"], "ended with exit status 3"),
        (["sh", "-c", "kill -9 $$"], "ended with exit status 137"),
        (["/"], "cannot be run: Permission denied"),
        (["a\0b"], "cannot be run: embedded null byte"),
    ],
)
def test_a_command_that_fails_is_told_of(tmp_path: Path, command: list[str], complaint: str) -> None:
    assert call_on_end(command, tmp_path, 0) == complaint


@pytest.mark.parametrize(
    ("code", "content", "status", "reason"),
    [
        (0, '{"status": "finished", "reason": "early stopping"}', "finished", ""),
        (0, '{"status": "paused", "reason": "trainer.stop_at=3"}', "paused", "trainer.stop_at=3"),
        (0, "", "finished", ""),
        (1, '{"status": "finished"}', "failed", ""),
        (2, "{", "failed", ""),
        (128 + signal.SIGTERM, '{"status": "interrupted", "reason": "SIGTERM"}', "interrupted", "SIGTERM"),
        (137, "", "failed", ""),
    ],
)
def test_the_facts_follow_from_the_exit_status(
    tmp_path: Path, code: int, content: str, status: str, reason: str
) -> None:
    (tmp_path / "result.json").write_text(content)
    facts = facts_of(tmp_path, code)
    assert (facts["LIGHTKIT_STATUS"], facts["LIGHTKIT_REASON"]) == (status, reason)
