"""The last lines of a log, and those that come."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from lightkit.detached import following
from lightkit.detached.following import attach, follow, log_of
from lightkit.detached.liveness import look
from lightkit.loggers import ConsoleLogger
from lightkit.processes.files import Lines
from lightkit.runs.lock import locked
from tests.detached.made import make_run, write_progress


def test_which_file_tells_of_a_run(project: Path) -> None:
    folder = make_run(project)
    (folder / "output.log").touch()
    with locked(folder):
        assert log_of(folder).name == "run.log"
    with locked(folder, ".job"):
        assert log_of(folder).name == "output.log", "before it has begun"
        with locked(folder):
            assert log_of(folder).name == "output.log"
            assert log_of(folder, output=False).name == "run.log"
    assert log_of(folder).name == "output.log"
    with locked(folder):
        assert log_of(folder).name == "run.log", "it goes on in a terminal"
    os.utime(folder / ".job", (1, 1))
    assert log_of(folder).name == "run.log"
    assert log_of(folder, output=True).name == "output.log"
    with locked(folder, ".job"):
        (folder / "output.log").unlink()
        assert log_of(folder).name == "run.log"


def test_a_run_that_was_detached_and_goes_on_in_a_terminal_is_not_any_more(project: Path) -> None:
    folder = make_run(project)
    with locked(folder, ".job", detached=True), locked(folder):
        assert look(folder).detached
    assert look(folder).detached
    with locked(folder):
        assert not look(folder).detached
    os.utime(folder / ".job", (1, 1))
    assert not look(folder).detached


def acting(*acts: Callable[[], object]) -> Callable[[float], None]:
    """A `sleep` in which something happens instead, one thing each time."""
    waiting = iter(acts)
    return lambda _: (next(waiting)(), None)[1]


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_following_to_the_end_of_a_run(project: Path) -> None:
    folder = make_run(project)
    log = folder / "run.log"
    lines = Lines(log, last=1)
    with ExitStack() as run:
        run.enter_context(locked(folder))

        def end() -> None:
            add(log, "c\nd")
            run.close()

        followed = list(follow(folder, lines, sleep=acting(lambda: add(log, "a\nb"), end)))
    last = log.read_text().splitlines()[2]
    assert followed == [[last], ["a"], ["bc", "d"]]
    assert list(follow(folder, Lines(log, last=0))) == [[]], "a run that has ended"


def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], object]) -> list[str]:
    """Attach to a run in which these things happen, and which ends then."""
    stream = io.StringIO()
    with ExitStack() as run:
        run.enter_context(locked(folder))
        monkeypatch.setattr(following.time, "sleep", acting(*acts, run.close))
        monkeypatch.setattr(following.follow, "__kwdefaults__", {"sleep": following.time.sleep})
        attach(folder, ConsoleLogger("lines", 1e-9, stream))
    return stream.getvalue().splitlines()


def test_attaching_shows_what_the_run_itself_shows(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(project)
    row = {"step": 16, "epoch": 2, "time": 1.0, "train/loss": 0.25, "train/f1": None}
    rows = [json.dumps(row), json.dumps({"step": 16, "epoch": 2, "val/loss": 0.125}), "torn {", "[]"]
    lines = watched(
        folder,
        monkeypatch,
        lambda: write_progress(folder, 12, 24),
        lambda: add(folder / "metrics.jsonl", "\n".join(rows) + "\n"),
        lambda: add(
            folder / "run.log", "2026-01-31 12:00:03,000 ERROR   lightkit.runner: \x1b[2J gone\n  of a table\n"
        ),
    )
    assert lines == [
        "run     a, seed 0",
        "warning: few rows",
        "[epoch 1/3, step 12/24] 50%, 1:05 left",
        "epoch   step  train/loss  train/f1  val/loss",
        "  2/3  16/24      0.2500       nan    0.1250",
        "error: \\x1b[2J gone",
        "  of a table",
    ]


def test_attaching_begins_with_this_part_of_the_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(project)
    log = folder / "run.log"
    log.write_text(log.read_text() * 3)
    assert watched(folder, monkeypatch) == ["run     a, seed 0", "warning: few rows"]


def test_attaching_to_several_models_shows_their_table(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(project)
    (folder / "members" / "00").mkdir(parents=True)
    (folder / "members" / "00" / "config.yaml").touch()
    table = ["1 of 2 members finished", ["member"], [["00"], ["01"]]]
    (folder / ".progress.json").write_text(
        json.dumps({"written": 1.0, "share": 0.5, "eta_seconds": None, "table": table})
    )
    assert watched(folder, monkeypatch)[2:] == ["1 of 2 members finished"]
