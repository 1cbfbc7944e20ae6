from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lightkit.loggers import files
from lightkit.loggers.files import (
    JsonlLogger,
    write_json,
)
from lightkit.runs.reading import read_jsonl


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
        write_json(path, {"new": True})
    assert json.loads(path.read_text()) == {"old": True}
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_files_are_readable_by_others_as_the_mask_says(tmp_path):
    mask = os.umask(0o022)
    try:
        write_json(tmp_path / "x.json", {})
    finally:
        os.umask(mask)
    assert (tmp_path / "x.json").stat().st_mode & 0o777 == 0o644


def test_public_names_exist():
    assert all(hasattr(files, name) for name in files.__all__)
