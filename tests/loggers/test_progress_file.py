"""How far a run is, as other processes see it."""

from __future__ import annotations

import json
import math

import pytest

from lightkit.loggers import Progress, ProgressFile
from lightkit.loggers.progress_file import read_progress_file

VALUES = {"train/loss": 0.5, "val/loss": math.nan, "grad/norm": math.inf}
AT = Progress(
    epoch=2,
    epochs=4,
    step=10,
    total_steps=40,
    batch=3,
    batches=10,
    values=VALUES,
    samples_per_second=9.0,
    eta_seconds=7.0,
)
CONTENT = {
    "written": 5.0,
    "share": 0.25,
    "eta_seconds": None,
    "progress": {
        "epoch": 2,
        "epochs": None,
        "step": 10,
        "total_steps": 40,
        "batch": 3,
        "batches": 10,
        "phase": "val",
        "values": {},
        "samples_per_second": 0.0,
        "eta_seconds": None,
    },
}


def test_what_is_written_is_read(tmp_path):
    file = ProgressFile(tmp_path / "progress")
    assert read_progress_file(tmp_path / "progress") is None
    file.progress(AT)
    found = read_progress_file(tmp_path / "progress")
    assert (found.share, found.eta_seconds, found.table) == (0.25, 7.0, None)
    assert found.progress == Progress(**{**vars(AT), "values": {"train/loss": 0.5}})
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]


def test_it_is_written_once_in_a_while(tmp_path):
    file = ProgressFile(tmp_path / "progress", seconds=1000)
    file.progress(AT)
    file.progress(Progress(**{**vars(AT), "step": 20}))
    assert read_progress_file(file.path).progress.step == 10
    often = ProgressFile(tmp_path / "often", seconds=0)
    often.progress(AT)
    often.progress(Progress(**{**vars(AT), "step": 20, "total_steps": 20}))
    assert read_progress_file(often.path).share == 1.0


def test_it_goes_when_the_run_ends_and_when_the_next_part_begins(tmp_path):
    file = ProgressFile(tmp_path / "progress")
    file.progress(AT)
    file.close()
    file.close()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "progress").write_text("of a run that was killed")
    file.start(0)
    assert list(tmp_path.iterdir()) == []
    file.progress(AT)
    assert file.path.exists()


def test_a_file_that_cannot_be_written_costs_no_run(tmp_path):
    file = ProgressFile(tmp_path / "none" / "progress")
    file.progress(AT)
    file.progress(Progress(**{**vars(AT), "samples_per_second": math.inf}))
    file.close()
    ProgressFile(None).progress(AT)


def test_a_link_is_not_written_through(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    for name in ("progress", "progress.new"):
        (tmp_path / name).symlink_to(theirs)
    ProgressFile(tmp_path / "progress").progress(AT)
    assert theirs.read_text() == "theirs"
    assert read_progress_file(tmp_path / "progress").progress.step == 10


def changed(**facts):
    return {**CONTENT, "progress": {**CONTENT["progress"], **facts}}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        json.dumps({**CONTENT, "written": "now"}),
        json.dumps({**CONTENT, "share": math.nan}),
        json.dumps({**CONTENT, "progress": []}),
        json.dumps({**CONTENT, "table": ["title", 5]}),
        json.dumps(changed(step="many")),
        json.dumps(changed(step=-1)),
        json.dumps(changed(step=True)),
        json.dumps(changed(total_steps=10**400)),
        json.dumps(changed(phase="\x1b[2J")),
        json.dumps(changed(values=[1])),
        json.dumps(changed(values={"a": "b"})),
        json.dumps({name: value for name, value in CONTENT.items() if name != "share"}),
    ],
)
def test_what_is_no_progress_is_none(tmp_path, content):
    (tmp_path / "progress").write_text(json.dumps(CONTENT))
    assert read_progress_file(tmp_path / "progress").progress.phase == "val"
    (tmp_path / "progress").write_text(content)
    assert read_progress_file(tmp_path / "progress") is None


def test_a_table_has_nothing_that_a_terminal_acts_on(tmp_path):
    rows = [["00", "\x1b[2J"], ["too", "many", "cells"], ["01", 5]]
    content = {**CONTENT, "share": 7, "progress": CONTENT["progress"], "table": ["of\nmany", ["a", "b"], rows]}
    (tmp_path / "progress").write_text(json.dumps(content))
    found = read_progress_file(tmp_path / "progress")
    assert found.table == ("of\\nmany", ["a", "b"], [["00", "\\x1b[2J"], ["01", "5"]])
    assert found.share == 1.0
