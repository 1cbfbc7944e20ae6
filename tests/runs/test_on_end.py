"""The command at the end of a run, as a program's `Runner` calls it; for the command line see `tests/detached`."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.runner import Runner
from lightkit.runs.on_end import call_on_end, facts_of

QUICK = ("data=wine", "trainer.steps=2", "model.hidden=[4]", "device=cpu", "logger=quiet", "metrics.figures=[]")


def telling(folder: Path) -> str:
    """The override for a command that writes down what it is told, each time."""
    return f"on_end=[sh, -c, 'env | grep ^LIGHTKIT_ >> {folder}/told']"


def told(folder: Path) -> list[dict[str, str]]:
    """What the command was told, once for each call."""
    if not (folder / "told").exists():
        return []
    rows = [line.split("=", 1) for line in (folder / "told").read_text().splitlines()]
    calls = [value for name, value in rows if name == "LIGHTKIT_RUN"]
    size = len(rows) // max(1, len(calls))
    return [dict(rows[at : at + size]) for at in range(0, len(rows), size)]


def test_a_runner_calls_it_once(project: Path) -> None:
    Runner(compose([*QUICK, telling(project)]).cfg, project / "run").run()
    (found,) = told(project)
    assert (found["LIGHTKIT_RUN"], found["LIGHTKIT_STATUS"], found["LIGHTKIT_EXIT"]) == (
        str(project / "run"), "finished", "0"
    )  # fmt: skip
    assert found["LIGHTKIT_METRIC"] == "val/accuracy"


def test_it_is_called_for_a_run_that_failed_or_never_began(project: Path) -> None:
    cfg = compose([*QUICK, telling(project), "optim.lr=1e30", "trainer.steps=50"]).cfg
    with pytest.raises(UserError):
        Runner(cfg, project / "run").run()
    with pytest.raises(UserError, match="there is no checkpoint to go on from"):
        Runner(cfg, project / "other").run(resume=True)
    failed, never = told(project)
    assert (failed["LIGHTKIT_STATUS"], failed["LIGHTKIT_EXIT"]) == ("failed", "3")
    assert (never["LIGHTKIT_STATUS"], never["LIGHTKIT_EXIT"]) == ("failed", "2")


def test_whoever_drives_the_run_may_call_it(project: Path) -> None:
    Runner(compose([*QUICK, telling(project)]).cfg, project / "run", on_end=False).run()
    assert told(project) == []


def test_of_several_processes_the_first_calls_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    runner = Runner(compose([*QUICK, telling(project)]).cfg, project / "run")
    monkeypatch.setattr(runner, "_run", lambda resume: {})
    runner.run()
    assert told(project) == []
    monkeypatch.setenv("RANK", "0")
    runner.run()
    assert len(told(project)) == 1


def test_looking_at_a_run_calls_nothing(project: Path) -> None:
    runner = Runner(compose([*QUICK, telling(project)]).cfg, project / "run")
    runner.run()
    runner.evaluate("val")
    runner.predict("val")
    assert len(told(project)) == 1


def test_that_of_a_run_from_elsewhere_counts_for_nothing(project: Path) -> None:
    Runner(compose([*QUICK, telling(project)]).cfg, project / "run").run()
    Runner(load_run(project / "run", ["trainer.steps=3"]).cfg, project / "run").run(resume=True)
    assert len(told(project)) == 2, "it belongs to the run"
    path = project / "run" / "config.yaml"
    path.write_text(path.read_text().replace("seed: 0", "seed: 0 # changed"))
    cfg: Any = load_run(project / "run", ["trainer.steps=4"]).cfg
    assert list(cfg.on_end) == []
    Runner(cfg, project / "run").run(resume=True)
    assert len(told(project)) == 2


def test_what_is_wrong_with_the_command_is_a_warning(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        result = Runner(compose([*QUICK, "on_end=[no-such-program,now]"]).cfg, project / "run").run()
    assert result["status"] == "finished"
    assert "on_end: no-such-program now: cannot be run: No such file or directory" in caplog.text


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["true"], ""),
        (["sh", "-c", "exit 3"], "ended with exit status 3"),
        (["sh", "-c", "kill -9 $$"], "ended with exit status 137"),
        (["no-such-program"], "cannot be run: No such file or directory"),
        (["/"], "cannot be run: Permission denied"),
        (["a\0b"], "cannot be run: embedded null byte"),
    ],
)
def test_a_command_that_fails_is_told_of(tmp_path: Path, command: list[str], complaint: str) -> None:
    assert call_on_end(command, tmp_path, 0) == complaint


@pytest.mark.parametrize(
    ("code", "content", "status", "reason"),
    [
        (0, '{"status": "finished"}', "finished", ""),
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
    found = facts_of(tmp_path, code)
    assert (found["LIGHTKIT_STATUS"], found["LIGHTKIT_REASON"]) == (status, reason)
