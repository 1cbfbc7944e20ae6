"""What all trackers have in common: after every kill, a tracker has the rows of the run once each."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.loggers.trackers.base import Tracker, chosen_files, need, relations

ROWS = [{"step": step, "epoch": step // 4, "val/loss": 1.0 / (1 + step)} for step in range(8)]


class Far(Tracker):
    """Writes to a server that is a list, which outlives this process."""

    def __init__(self, folder, server, *, anew=False):
        super().__init__(folder, "val/loss", "min", "far")
        self.server, self.anew, self.media, self.taken_back = server, anew, [], 0

    def open(self):
        if self.anew:
            self.server.clear()
            self.media.clear()
        return None if self.anew else len(self.server) - self.taken_back

    def write(self, row, at):
        self.server.append({name: value for name, value in row.items() if name != "time"})

    def show(self, medium):
        self.media.append((medium.name, medium.step, len(self.server)))

    def diverge(self, count):
        self.taken_back += count


def train(tracker, first, last, rows=ROWS):
    for row in rows[first:last]:
        values = {name: value for name, value in row.items() if "/" in name}
        tracker.scalars(values, step=row["step"], epoch=row["epoch"])


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("logged", range(9))
def test_after_a_kill_at_any_moment_all_rows_are_there_once(tmp_path, logged, anew):
    for kept in range(logged + 1):
        for arrived in range(logged + 1):
            folder, server = tmp_path / f"{kept}-{arrived}", []
            folder.mkdir()
            before = Far(folder, server, anew=anew)
            before.start(0)
            train(before, 0, logged)
            del server[arrived:]  # the rest was on its way
            after = Far(folder, server, anew=anew)
            after.start(ROWS[kept - 1]["step"] if kept else 0, [{**row, "time": 5.0} for row in ROWS[:kept]])
            train(after, kept, 8)
            assert server == ROWS
            assert after.best == (ROWS[-1]["val/loss"], 7)


def test_rows_that_come_otherwise_are_sent_behind_those_there(tmp_path):
    server, other = [], [{**row, "val/loss": 9.0} for row in ROWS]
    before = Far(tmp_path, server)
    before.start(0)
    train(before, 0, 6)
    after = Far(tmp_path, server)
    after.start(3, ROWS[:3])
    train(after, 3, 4)
    train(after, 4, 8, other)
    assert (server, after.taken_back) == ([*ROWS[:6], *other[4:]], 2)


def test_what_was_measured_of_the_machine_makes_no_row_another(tmp_path):
    server = []
    for speed in (1.0, 2.0):
        tracker = Far(tmp_path, server)
        tracker.start(0)
        tracker.scalars({"val/loss": math.inf, "speed/samples": speed, "system/x": speed}, step=1, epoch=0)
    assert len(server) == 1
    assert math.isnan(server[0]["val/loss"])


def test_a_call_that_failed_is_repeated_without_a_trace(tmp_path, monkeypatch):
    server = []
    tracker = Far(tmp_path, server)
    tracker.start(0)
    with monkeypatch.context() as broken:
        broken.setattr(Far, "write", lambda *_: 1 / 0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                train(tracker, 0, 1)
    train(tracker, 0, 2)
    assert server == ROWS[:2]
    again = Far(tmp_path, server)
    again.start(0)
    train(again, 0, 8)
    assert server == ROWS


def test_pictures_come_again_in_their_place_and_none_twice(tmp_path):
    server = []
    for kept, step in ((0, 0), (2, 1)):
        tracker = Far(tmp_path, server, anew=True)
        tracker.start(step, ROWS[:kept])
        train(tracker, kept, 2)
        tracker.images("in/pictures", torch.rand(2, 4, 3, 3), step=1)
        tracker.text("note", "text", step=1)
        train(tracker, 2, 4)
        tracker.histogram("weights", torch.tensor([1.0, math.nan, math.inf]), step=3)
        tracker.histogram("empty", torch.empty(0), step=3)
    assert tracker.media == [("in/pictures", 1, 2), ("note", 1, 2), ("weights", 3, 4), ("empty", 3, 4)]
    assert len([*(tmp_path / "trackers/far-media/in/pictures").iterdir()]) == 2


def test_a_folder_tells_what_a_run_is_to_others(tmp_path):
    sweep, member = tmp_path / "2026/sweep", tmp_path / "2026/run/members/01"
    (sweep / "3").mkdir(parents=True)
    (sweep / "sweep.jsonl").touch()
    assert relations(sweep / "3")[:3] == ("sweep/3", "2026/sweep", "job")
    assert relations(member) == ("run/01", "2026/run", "member", tmp_path / "2026/run")
    assert relations(tmp_path / "run")[:3] == ("run", "", "run")


def test_files_are_those_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "run/figures").mkdir(parents=True)
    for name in ("secret", "run/config.yaml", "run/figures/roc.png"):
        (tmp_path / name).touch()
    names = [path.name for path in chosen_files(tmp_path / "run", ["*", "figures/*.png", "../secret"])]
    assert names == ["config.yaml", "roc.png"]


def test_a_missing_package_is_told_with_what_installs_it():
    with pytest.raises(UserError, match="lightkit_no_such_package") as told:
        need("lightkit_no_such_package", "wandb")
    assert told.value.fix == "pip install 'lightkit[wandb]'"
