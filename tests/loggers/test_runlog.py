"""The log of a run: records, warnings, and what the console is told."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torchmetrics

from lightkit.loggers import LogLogger, files
from lightkit.loggers.files import (
    run_log,
)


def test_run_log_takes_records_and_warnings_and_then_lets_go(tmp_path, monkeypatch):
    path, logger = tmp_path / "run" / "run.log", logging.getLogger("lightkit.test")
    root, shown = list(logging.getLogger().handlers), []

    def show(message, *rest):
        shown.append(str(message))

    monkeypatch.setattr(warnings, "showwarning", show)
    with run_log(path), warnings.catch_warnings():
        logger.info("hello")
        warnings.simplefilter("always")
        warnings.warn("look out", stacklevel=1)
    logger.info("too late")
    text = path.read_text()
    assert "INFO    lightkit.test: hello" in text
    assert "WARNING warnings: UserWarning: look out (" in text
    assert "too late" not in text
    assert shown == ["look out"]
    assert logging.getLogger().handlers == root
    assert logging.getLogger("lightkit").handlers == []
    assert warnings.showwarning is show


def test_warnings_of_libraries_are_in_the_log_only(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *rest: shown.append(str(message)))
    with run_log(tmp_path / "run.log"), warnings.catch_warnings():
        warnings.simplefilter("always")
        for file in (torchmetrics.__file__, logging.__file__, files.__file__, "/home/me/model.py"):
            warnings.warn_explicit(f"of {Path(file).name}", UserWarning, file, 1)
    assert shown == ["of model.py"]
    assert (tmp_path / "run.log").read_text().count("UserWarning: of ") == 4


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


def test_run_log_of_a_resumed_run_goes_on_in_the_same_file(tmp_path):
    for text in ("first", "second"):
        with run_log(tmp_path / "run.log"):
            logging.getLogger("lightkit").warning(text)
    assert [line.split(": ")[1] for line in (tmp_path / "run.log").read_text().splitlines()] == ["first", "second"]


def test_what_the_console_is_told_stands_in_the_log(tmp_path):
    with run_log(tmp_path / "run.log"):
        logger = LogLogger()
        logger.message("100 % ready")
        logger.scalars({"train/loss_step": 1.0}, step=2, epoch=0)
        logger.scalars({"val/loss": 0.5}, step=3, epoch=1)
        logger.table("result", ["value", ""], [["test/f1", 0.25]])
    text = (tmp_path / "run.log").read_text()
    assert "100 % ready" in text
    assert "[epoch 1, step 3] val: loss 0.5000" in text
    assert "test/f1  0.2500" in text
    assert "loss_step" not in text


def test_what_one_run_tells_is_in_its_own_log_only(tmp_path):
    paths = tmp_path / "run" / "run.log", tmp_path / "run" / "members" / "00" / "run.log"
    with run_log(paths[0]), run_log(paths[1]):
        for path, text in zip(paths, ("of the run", "of the member")):
            LogLogger(path).message(text)
        logging.getLogger("lightkit.test").info("of both")
    own, members = (path.read_text() for path in paths)
    assert "of the run" in own
    assert "of both" in own
    assert "of the member" not in own
    assert "of the member" in members
    assert "of both" in members
    assert "of the run" not in members
