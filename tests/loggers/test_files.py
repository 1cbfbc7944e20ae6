from __future__ import annotations

import json
import logging
import os
import subprocess
import warnings
from pathlib import Path

import pytest
import torchmetrics

from lightkit.loggers import LogLogger, files
from lightkit.loggers.environment import DIFF_LIMIT, environment, git_state
from lightkit.loggers.files import (
    JsonlLogger,
    read_jsonl,
    replace_file,
    run_log,
    write_json,
)


def steps(path):
    return [row["step"] for row in read_jsonl(path)]


def test_jsonl_holds_one_valid_object_a_line(tmp_path):
    logger = JsonlLogger(tmp_path / "run" / "metrics.jsonl")
    logger.start(0)
    logger.scalars({"train/loss": 0.5, "lr/all": 1e-3}, step=1, epoch=0)
    logger.scalars({"val/loss": float("nan"), "val/f1": float("inf")}, step=2, epoch=1)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]  # before close
    assert rows[0]["train/loss"] == 0.5
    assert rows[1] == {"step": 2, "epoch": 1, "time": rows[1]["time"], "val/loss": None, "val/f1": None}
    logger.close()
    logger.close()


def test_rows_are_forced_to_the_disk_also_after_the_file_was_closed(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    logger.sync()
    assert synced == []
    logger.scalars({"x": 1.0}, step=1, epoch=0)
    assert synced == [], "a step waits for no disk"
    logger.sync()
    assert synced == [str(tmp_path / "metrics.jsonl"), str(tmp_path)]
    logger.close()
    synced.clear()
    logger.sync()
    assert synced == [str(tmp_path / "metrics.jsonl"), str(tmp_path)]


def test_a_full_disk_leaves_no_file_open(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    logger.scalars({"x": 1.0}, step=1, epoch=0)
    file = logger._file
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        logger.close()
    assert file is not None
    assert file.closed
    logger.close()


def test_resume_drops_what_is_written_again_and_a_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    for step in range(1, 6):
        logger.scalars({"x": float(step)}, step=step, epoch=0)
    logger.close()
    path.write_text(path.read_text() + '{"step": 6, "epo')
    assert steps(path) == [1, 2, 3, 4, 5]
    resumed = JsonlLogger(path)
    resumed.start(3, read_jsonl(path)[:3])
    resumed.scalars({"x": 4.0}, step=4, epoch=0)
    resumed.close()
    assert steps(path) == [1, 2, 3, 4]
    assert [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_torn_at_the_very_step_of_the_checkpoint_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "epoch": 0, "x": 1}\n{"step": 2, "epoch": 0, "x": \xff\x00')
    JsonlLogger(path).start(2, read_jsonl(path))
    assert path.read_text() == '{"step": 1, "epoch": 0, "x": 1}\n'


def test_a_new_run_starts_with_an_empty_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "epoch": 0}\n')
    JsonlLogger(path).start(0)
    assert path.read_text() == ""


def test_of_several_rows_at_the_step_of_the_checkpoint_only_the_saved_ones_stay(tmp_path):
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    for name in ("train/loss", "val/loss", "test/loss"):
        logger.scalars({name: 1.0}, step=9, epoch=1)
    logger.close()
    JsonlLogger(path).start(9, read_jsonl(path)[:2])
    assert ["test/loss" in row for row in read_jsonl(path)] == [False, False]


def test_start_without_a_file_makes_none(tmp_path):
    JsonlLogger(tmp_path / "metrics.jsonl").start(5)
    assert list(tmp_path.iterdir()) == []
    assert read_jsonl(tmp_path / "metrics.jsonl") == []


def test_json_is_valid_whatever_it_holds(tmp_path):
    write_json(tmp_path / "a" / "x.json", {"nan": float("nan"), 1: (1, {2}), "path": tmp_path, "text": "é"})
    content = json.loads((tmp_path / "a" / "x.json").read_text(encoding="utf-8"))
    assert content == {"nan": None, "1": [1, [2]], "path": str(tmp_path), "text": "é"}


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_json(path, {"old": True})
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        replace_file(path, "new")
    assert json.loads(path.read_text()) == {"old": True}
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_files_are_readable_by_others_as_the_mask_says(tmp_path):
    mask = os.umask(0o022)
    try:
        replace_file(tmp_path / "x", "text")
    finally:
        os.umask(mask)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644


def git(folder, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_environment_is_plain_and_knows_the_essentials(tmp_path):
    found = environment(project=tmp_path, device="cpu", seed=3)
    assert (found["seed"], found["device"], found["git"]) == (3, "cpu", None)
    assert {"torch", "numpy", "torchmetrics"} <= set(found["packages"])
    assert found["cpus"] >= 1
    assert json.loads(json.dumps(found)) == found


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


def test_without_git_there_is_no_git_state(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None


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


def test_public_names_exist():
    assert all(hasattr(files, name) for name in files.__all__)
