"""Files of a run: rows of values, JSON, and how far it is, as other processes see it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from lightkit.loggers import Progress, ProgressFile
from lightkit.loggers.files import JsonlLogger, read_progress_file, write_json
from lightkit.runs.reading import read_jsonl


def logged(path, *rows):
    logger = JsonlLogger(path)
    for step, values in rows:
        logger.scalars(values, step=step, epoch=0)
    logger.close()
    return path


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


def test_resume_drops_what_is_written_again_and_torn_lines(tmp_path):
    path = logged(tmp_path / "metrics.jsonl", *((step, {"x": float(step)}) for step in range(1, 6)))
    path.write_text(path.read_text() + '{"step": 6, "epo')
    assert [row["step"] for row in read_jsonl(path)] == [1, 2, 3, 4, 5]
    resumed = JsonlLogger(path)
    resumed.start(3, read_jsonl(path)[:3])
    resumed.scalars({"x": 4.0}, step=4, epoch=0)
    resumed.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]
    path.write_bytes(b'{"step": 1, "epoch": 0, "x": 1}\n{"step": 2, "epoch": 0, "x": \xff\x00')
    JsonlLogger(path).start(2, read_jsonl(path))
    assert path.read_text() == '{"step": 1, "epoch": 0, "x": 1}\n'
    JsonlLogger(path).start(0)
    assert path.read_text() == "", "a new run"
    path = logged(path, *((9, {name: 1.0}) for name in ("train/loss", "val/loss", "test/loss")))
    JsonlLogger(path).start(9, read_jsonl(path)[:2])
    assert ["test/loss" in row for row in read_jsonl(path)] == [False, False], "only what was saved stays"


def test_start_without_a_file_makes_none(tmp_path):
    JsonlLogger(tmp_path / "metrics.jsonl").start(5)
    assert list(tmp_path.iterdir()) == []
    assert read_jsonl(tmp_path / "metrics.jsonl") == []


def test_json_is_valid_whatever_it_holds_and_readable_by_others_as_the_mask_says(tmp_path):
    path, mask = tmp_path / "a" / "x.json", os.umask(0o022)
    try:
        write_json(path, {"nan": float("nan"), 1: (1, {2}), "path": tmp_path, "text": "é"})
    finally:
        os.umask(mask)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content == {"nan": None, "1": [1, [2]], "path": str(tmp_path), "text": "é"}
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_json(path, {"old": True})
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_json(path, {"new": True})
    assert json.loads(path.read_text()) == {"old": True}
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


PLACE = {"epoch": 2, "step": 10, "total_steps": 40, "batch": 3, "batches": 10}
VALUES = {"train/loss": 0.5, "val/loss": math.nan, "grad/norm": math.inf}
FACTS = {**PLACE, "epochs": 4, "values": VALUES, "samples_per_second": 9.0, "eta_seconds": 7.0}
READ = {**PLACE, "epochs": None, "phase": "val", "values": {}, "samples_per_second": 0.0, "eta_seconds": None}
CONTENT = {"written": 5.0, "share": 0.25, "eta_seconds": None, "progress": READ}


def at(**changes):
    return Progress(**{**FACTS, **changes})


def test_progress_that_is_written_is_read_until_the_run_ends(tmp_path):
    file = ProgressFile(tmp_path / "progress")
    assert read_progress_file(file.path) is None
    file.progress(at())
    read = read_progress_file(file.path)
    assert (read.share, read.eta_seconds, read.table) == (0.25, 7.0, None)
    assert read.progress == at(values={"train/loss": 0.5})
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]
    file.close()
    file.close()
    assert list(tmp_path.iterdir()) == []
    file.path.write_text("of a run that was killed")
    file.start(0)
    assert list(tmp_path.iterdir()) == []
    file.progress(at())
    assert file.path.exists()


@pytest.mark.parametrize(("seconds", "share"), [(1000, 0.25), (0, 0.5)])
def test_progress_is_written_once_in_a_while(tmp_path, seconds, share):
    file = ProgressFile(tmp_path / "progress", seconds=seconds)
    file.progress(at())
    file.progress(at(step=20))
    assert read_progress_file(file.path).share == share


def test_a_file_that_cannot_be_written_costs_no_run_and_a_link_is_not_written_through(tmp_path):
    file = ProgressFile(tmp_path / "none" / "progress")
    file.progress(at())
    file.progress(at(samples_per_second=math.inf))
    file.close()
    ProgressFile(None).progress(at())
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    for name in ("progress", "progress.new"):
        (tmp_path / name).symlink_to(theirs)
    ProgressFile(tmp_path / "progress").progress(at())
    assert theirs.read_text() == "theirs"
    assert read_progress_file(tmp_path / "progress").progress.step == 10


BAD_FACTS = [{"step": "many"}, {"step": -1}, {"step": True}, {"total_steps": 10**400}, {"phase": "\x1b[2J"},
             {"values": [1]}, {"values": {"a": "b"}}]  # fmt: skip
BAD_CONTENT = [{"written": "now"}, {"share": math.nan}, {"share": None}, {"progress": []}, {"table": ["title", 5]}]
BAD = [*({"progress": {**READ, **facts}} for facts in BAD_FACTS), *BAD_CONTENT]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", *(json.dumps({**CONTENT, **bad}) for bad in BAD)])
def test_what_is_no_progress_is_none(tmp_path, text):
    (tmp_path / "progress").write_text(json.dumps(CONTENT))
    assert read_progress_file(tmp_path / "progress").progress.phase == "val"
    (tmp_path / "progress").write_text(text)
    assert read_progress_file(tmp_path / "progress") is None


def test_a_table_has_nothing_that_a_terminal_acts_on(tmp_path):
    rows = [["00", "\x1b[2J"], ["too", "many", "cells"], ["01", 5]]
    content = {**CONTENT, "share": 7, "table": ["of\nmany", ["a", "b"], rows]}
    (tmp_path / "progress").write_text(json.dumps(content))
    read = read_progress_file(tmp_path / "progress")
    assert read.table == ("of\\nmany", ["a", "b"], [["00", "\\x1b[2J"], ["01", "5"]])
    assert read.share == 1.0
