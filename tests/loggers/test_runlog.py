"""The log of a run, what it ran with, and loggers that fan out."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torchmetrics

from lightkit.loggers import Logger, Loggers, LogLogger, Progress, files
from lightkit.loggers.runlog import run_log
from lightkit.runs.record import DIFF_LIMIT, environment, git_state


def test_run_log_takes_records_and_warnings_and_then_lets_go(tmp_path, monkeypatch):
    path, logger = tmp_path / "run" / "run.log", logging.getLogger("lightkit.test")
    root, shown = list(logging.getLogger().handlers), []

    def show(message, *rest):
        shown.append(str(message))

    monkeypatch.setattr(warnings, "showwarning", show)
    with run_log(path), warnings.catch_warnings():
        logger.info("hello")
        warnings.simplefilter("always")
        for file in (torchmetrics.__file__, logging.__file__, files.__file__, "/home/me/model.py"):
            warnings.warn_explicit(f"of {Path(file).name}", UserWarning, file, 1)
    logger.info("too late")
    with run_log(path):  # as of a resumed run
        logger.info("again")
    text = path.read_text()
    assert "INFO    lightkit.test: hello" in text
    assert "WARNING warnings: UserWarning: of model.py (" in text
    assert text.count("UserWarning: of ") == 4
    assert shown == ["of model.py"], "those of libraries are in the log only"
    assert "too late" not in text
    assert text.index("hello") < text.index("lightkit.test: again")
    assert logging.getLogger().handlers == root
    assert logging.getLogger("lightkit").handlers == []
    assert warnings.showwarning is show


def test_what_libraries_log_without_a_handler_is_in_the_log_only(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    before = logging.lastResort
    library, own = logging.getLogger("some.library"), logging.getLogger("my.model")
    with run_log(tmp_path / "run.log"):
        library.handle(library.makeRecord("x", logging.WARNING, torchmetrics.__file__, 1, "font cache", (), None))
        own.warning("odd input")
    assert capsys.readouterr().err == "odd input\n"
    text = (tmp_path / "run.log").read_text()
    assert "font cache" in text
    assert "odd input" in text
    assert logging.lastResort is before


def test_what_the_console_is_told_stands_in_the_log_of_its_own_run_only(tmp_path):
    paths = tmp_path / "run" / "run.log", tmp_path / "run" / "members" / "00" / "run.log"
    with run_log(paths[0]), run_log(paths[1]):
        logger = LogLogger(paths[0])
        logger.message("100 % ready")
        logger.scalars({"train/loss_step": 1.0}, step=2, epoch=0)
        logger.scalars({"val/loss": 0.5}, step=3, epoch=1)
        logger.table("result", ["value", ""], [["test/f1", 0.25]])
        LogLogger(paths[1]).message("of the member")
        logging.getLogger("lightkit.test").info("of both")
    own, members = (path.read_text() for path in paths)
    for text in ("100 % ready", "[epoch 1, step 3] val: loss 0.5000", "test/f1  0.2500", "of both"):
        assert text in own
    assert "loss_step" not in own
    assert "of the member" not in own
    assert "of the member" in members
    assert "of both" in members
    assert "ready" not in members


def git(folder, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_environment_is_plain_and_knows_the_essentials(tmp_path, monkeypatch):
    facts = environment(project=tmp_path, device="cpu", seed=3)
    assert (facts["seed"], facts["device"], facts["git"]) == (3, "cpu", None)
    assert {"torch", "numpy", "torchmetrics"} <= set(facts["packages"])
    assert facts["cpus"] >= 1
    assert json.loads(json.dumps(facts)) == facts
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None, "without git"


def test_git_state_before_and_after_a_commit_and_with_changes(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "a.txt").write_text("one\n")
    assert git_state(tmp_path)["commit"] is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    clean = git_state(tmp_path)
    assert (len(clean["commit"]), clean["branch"], clean["dirty"], clean["diff"]) == (40, "main", False, "")
    (tmp_path / "a.txt").write_text("two\n")
    (tmp_path / "new.txt").write_text("x")
    dirty = git_state(tmp_path)
    assert dirty["dirty"]
    assert "+two" in dirty["diff"]
    assert "?? new.txt" in dirty["status"]
    (tmp_path / "a.txt").write_text("x\n" * DIFF_LIMIT)
    assert DIFF_LIMIT < len(git_state(tmp_path)["diff"]) < DIFF_LIMIT + 100


def test_git_that_does_not_tell_what_has_changed_still_tells_the_commit(tmp_path, monkeypatch):
    place, real = tmp_path / "repository", shutil.which("git")
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    git(place, "commit", "-q", "--allow-empty", "-m", "first")
    commit = git_state(place)["commit"]
    (tmp_path / "git").write_text(f'#!/bin/sh\ncase "$*" in *status*) exit 1;; esac\nexec {real} "$@"\n')
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert (git_state(place)["commit"], git_state(place)["dirty"]) == (commit, True)


CALLS = {
    "start": ((3, ()), {}),
    "scalars": (({"a": 1.0},), {"step": 1, "epoch": 0}),
    "hparams": (({"lr": 1}, ["lr=1"]), {}),
    "end": (("finished",), {}),
    "suspend": (("paused",), {}),
    "figure": (("f", None), {"step": 1}),
    "text": (("t", "*x*"), {"step": 1}),
    "images": (("i", None), {"step": 1}),
    "histogram": (("h", None), {"step": 1}),
    "graph": ((None, None), {}),
    "progress": ((Progress(1, 2, 3, 4, 5, 6),), {}),
    "message": (("hello",), {}),
    "table": (("t", ["a"], [("1",)]), {}),
    "flush": ((), {}),
    "sync": ((), {}),
    "close": ((), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_fan_out_reaches_every_logger_in_order(name):
    seen = []

    class Spy(Logger):
        def __init__(self, tag):
            self.tag = tag

    setattr(Spy, name, lambda self, *args, **kwargs: seen.append((self.tag, args, kwargs)))
    args, kwargs = CALLS[name]
    getattr(Loggers([Spy("a"), Logger(), Spy("b")]), name)(*args, **kwargs)
    assert seen == [("a", args, kwargs), ("b", args, kwargs)]


def test_every_method_of_the_interface_is_fanned_out():
    methods = {name for name, member in vars(Logger).items() if callable(member) and not name.startswith("_")}
    assert methods == set(CALLS)
    assert methods <= set(vars(Loggers))


def test_rows_given_as_a_generator_reach_all_and_all_are_closed():
    seen, closed = [], []

    class Spy(Logger):
        def table(self, title, columns, rows):
            seen.append(list(rows))

        def close(self):
            closed.append(1)
            if len(closed) == 1:
                raise OSError("disk full")

    loggers = Loggers([Spy(), Spy()])
    loggers.table("t", ["a"], (("1",) for _ in range(2)))
    assert seen == [[("1",), ("1",)]] * 2
    with pytest.raises(OSError, match="disk full"):
        loggers.close()
    assert closed == [1, 1]


def test_import_is_light():
    heavy = "{'torch', 'tensorboard', 'rich', 'matplotlib', 'numpy'}"
    code = f"import sys, lightkit.loggers; assert not {heavy} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
