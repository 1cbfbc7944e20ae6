"""What a manifest says of each file, and which are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightkit.checkpoint import files
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from tests.checkpoint.crashes import content, loaded_step
from tests.checkpoint.test_store import filled, names


def test_the_manifest_says_what_each_file_is(tmp_path):
    path = filled(tmp_path, steps=[120], mode="min").newest()
    raw = json.loads((tmp_path / "manifest.json").read_text())
    size = path.stat().st_size
    facts = {"file": "step-00000120.pt", "step": 120, "epoch": 12, "value": 1.2, "sha256": files.sha256(path)}
    assert (raw["version"], raw["mode"], raw["entries"]) == (1, "min", [facts | {"bytes": size}])


@pytest.mark.parametrize(("mode", "best"), [("max", 3), ("min", 4)])
def test_of_equal_values_the_later_is_the_best(tmp_path, mode, best):
    made = CheckpointStore(tmp_path, mode=mode, keep_last=9)
    for step, value in [(1, 0.5), (2, 0.9), (3, 0.9), (4, 0.5)]:
        made.save(content(step), step=step, value=value)
    assert made.best().name == f"step-{best:08d}.pt"


@pytest.mark.parametrize("mode", ["max", "min"])
def test_nan_and_none_are_never_best(tmp_path, mode):
    made = CheckpointStore(tmp_path, mode=mode)
    made.save(content(1), step=1, value=float("nan"))
    assert made.best() is None
    made.save(content(2), step=2, value=0.1)
    made.save(content(3), step=3, value=float("nan"))
    made.save(content(4), step=4)
    assert made.best().name == "step-00000002.pt"
    infinite = CheckpointStore(tmp_path / "infinite", mode=mode)
    infinite.save(content(1), step=1, value=float("inf"))
    assert infinite.best().name == "step-00000001.pt"


def test_a_manifest_of_a_later_version_is_not_believed(tmp_path, caplog):
    made = filled(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    assert loaded_step(made.load_newest()) == 30
    assert "has version 2; this lightkit reads up to 1" in caplog.text


def test_manifests_of_older_versions_ask_for_nothing(tmp_path):
    made = filled(tmp_path)
    path = tmp_path / "manifest.json"
    raw = json.loads(path.read_text())
    for leaving in (None, [], {"../x": [1, 2, 3]}, {"notes.txt": None}):
        raw["leaving"] = leaving
        path.write_text(json.dumps(raw))
        made.prepare()
        assert [entry.step for entry in made.entries()] == [10, 20, 30]
    del raw["leaving"]
    path.write_text(json.dumps(raw))
    made.prepare()
    assert len(names(tmp_path)) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_last": 0}, r"keep_last: at least the newest is kept"),
        ({"keep_best": -1}, r"keep_best: not a number of files"),
        ({"mode": "maximum"}, r"mode: not a direction"),
        ({"keep_every": 0}, r"keep_every: not a number of steps"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        CheckpointStore(tmp_path, **options)


def kept_steps(folder: Path, steps, **options) -> list[int]:
    made = CheckpointStore(folder, keep_last=1, keep_best=0, **options)
    for step in steps:
        made.save(content(step), step=step)
    return [entry.step for entry in made.entries()]


def test_milestones_are_kept_for_good(tmp_path):
    assert kept_steps(tmp_path / "a", range(2, 26, 2), keep_every=8) == [8, 16, 24]
    # saves that miss the multiples: the first at or after each counts
    assert kept_steps(tmp_path / "b", range(3, 40, 3), keep_every=10) == [12, 21, 30, 39]
    assert kept_steps(tmp_path / "c", [50, 51], keep_every=10) == [50, 51]


def test_milestones_survive_a_resume(tmp_path):
    assert kept_steps(tmp_path / "a", range(3, 16, 3), keep_every=10) == [12, 15]
    assert kept_steps(tmp_path / "a", range(18, 40, 3), keep_every=10) == [12, 21, 30, 39]
    # taken off the rules, they leave like any other
    assert kept_steps(tmp_path / "a", [42]) == [42]
