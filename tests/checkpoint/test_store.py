from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from tests.checkpoint.crashes import Killed, content, kill_after, loaded_step


def filled(folder: Path, steps=(10, 20, 30), **options) -> CheckpointStore:
    made = CheckpointStore(folder, **({"keep_last": 3} | options))
    for step in steps:
        made.save(content(step), step=step, value=step / 100, epoch=step // 10)
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_saved_content_comes_back_as_it_was(tmp_path):
    made = CheckpointStore(tmp_path)
    saved = {
        "a": torch.arange(6).view(2, 3),
        "b": [1, 2.5, None, True, "x"],
        "c": (1, {"d": b"raw"}),
        7: {"bf": torch.ones(2).bfloat16()},
    }
    path = made.save(saved, step=3, value=0.5)
    assert torch.load(path, weights_only=True)["saved"] == {"step": 3, "value": 0.5, "epoch": None}
    back = made.load(path)
    assert torch.equal(back.pop("a"), saved["a"])
    assert torch.equal(back[7].pop("bf"), saved[7]["bf"])
    assert back == {"b": [1, 2.5, None, True, "x"], "c": (1, {"d": b"raw"}), 7: {}}


def test_keeps_the_newest_and_the_best_also_in_a_new_process(tmp_path):
    empty = CheckpointStore(tmp_path / "none")
    assert (empty.newest(), empty.best(), empty.load_newest()) == (None, None, None)
    for step, value in [(1, 0.5), (2, 0.9), (3, 0.7), (4, 0.6), (5, 0.8)]:
        made = CheckpointStore(tmp_path, keep_last=2, keep_best=1)
        made.save(content(step), step=step, value=value)
    assert names(tmp_path) == ["manifest.json", "step-00000002.pt", "step-00000004.pt", "step-00000005.pt"]
    assert made.best().name == "step-00000002.pt"
    assert made.newest().name == "step-00000005.pt"


@pytest.mark.parametrize("keep_best", [1, 0])
def test_one_file_may_be_both_best_and_newest(tmp_path, keep_best):
    made = filled(tmp_path, keep_last=1, keep_best=keep_best)
    assert made.newest() == tmp_path / "step-00000030.pt"
    assert made.best() == (made.newest() if keep_best else None)
    assert names(tmp_path) == ["manifest.json", "step-00000030.pt"]


def test_never_deletes_what_the_manifest_does_not_list(tmp_path):
    for name in ("step-00000001.pt", "step-00000020.pt", "notes.txt", "best.pt"):
        (tmp_path / name).write_text("mine")
    filled(tmp_path, keep_last=1)
    for name in ("step-00000001.pt", "step-00000020.pt", "notes.txt", "best.pt"):
        assert (tmp_path / name).read_text() == "mine"


def test_newest_is_by_step_not_by_time(tmp_path):
    made = filled(tmp_path)
    os.utime(tmp_path / "step-00000010.pt", (4e9, 4e9))
    assert made.newest().name == "step-00000030.pt"
    made.save(content(100_000_000_0), step=1_000_000_000, value=0.0)
    assert made.newest().name == "step-1000000000.pt"


def test_saving_a_step_again_replaces_it_and_keeps_its_value(tmp_path):
    made = filled(tmp_path, steps=(10, 20), keep_last=1)
    path = made.save(content(20, size=5), step=20, value=0.1)
    assert made.newest() == path
    assert len(made.load(path)["model"]["w"]) == 5
    assert names(tmp_path) == ["manifest.json", path.name]
    made.save(content(20), step=20)
    assert [entry.value for entry in made.entries()] == [0.1]


def test_a_roll_back_ends_the_later_entries_but_not_their_files(tmp_path, caplog):
    made = filled(tmp_path)
    made.save(content(15), step=15)
    assert "no longer listed, but still there: step-00000020.pt, step-00000030.pt" in caplog.text
    assert made.newest().name == "step-00000015.pt"
    assert [entry.step for entry in made.entries()] == [10, 15]
    assert "step-00000030.pt" in names(tmp_path)


def test_an_abandoned_course_is_deleted_once_there_is_something_else_to_go_on_from(tmp_path, monkeypatch):
    made = filled(tmp_path)
    (tmp_path / "step-00000040.pt").write_text("mine")
    made.abandon()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _raise(errno.ENOSPC))
        with pytest.raises(UserError, match="could not be written"):
            made.save(content(15), step=15)
    assert [entry.step for entry in made.entries()] == [10, 20, 30]
    made.abandon()
    made.save(content(15), step=15)
    assert names(tmp_path) == ["manifest.json", "step-00000010.pt", "step-00000015.pt", "step-00000040.pt"]
    made.save(content(14), step=14)
    assert "step-00000015.pt" in names(tmp_path), "asked for once, done once"


def test_files_that_were_listed_anew_are_not_abandoned(tmp_path, caplog):
    filled(tmp_path)
    (tmp_path / "manifest.json").unlink()
    made = CheckpointStore(tmp_path)
    made.abandon()
    made.save(content(15), step=15)
    assert "no longer listed, but still there: step-00000020.pt, step-00000030.pt" in caplog.text
    assert "step-00000030.pt" in names(tmp_path)


def test_something_else_can_be_brought_to_the_disk_first(tmp_path):
    seen = []
    CheckpointStore(tmp_path).save(content(1), step=1, first=lambda: seen.append(names(tmp_path)))
    assert seen == [[]]
    with pytest.raises(UserError, match="the checkpoint of step 2 could not be written: No space left on device"):
        CheckpointStore(tmp_path).save(content(2), step=2, first=_raise(errno.ENOSPC))
    assert loaded_step(CheckpointStore(tmp_path).load_newest()) == 1
    with pytest.raises(UserError, match="make room, then start again"):
        CheckpointStore(tmp_path / "none").save(content(2), step=2, first=_raise(errno.ENOSPC))


@pytest.mark.thorough
@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step"])
def test_a_crash_at_any_moment_leaves_a_whole_checkpoint(tmp_path, monkeypatch, again):
    """After operation n nothing reaches the disk any more, as if the process had been killed there."""
    moment, outcomes = 0, []
    while not outcomes or outcomes[-1] != "survived":
        folder = tmp_path / str(moment)
        made = filled(folder, steps=(10, 20), keep_last=1, keep_best=0)
        with monkeypatch.context() as patch:
            kill_after(patch, moment)
            try:
                made.save(content(20 if again else 30, size=2000), step=20 if again else 30)
                outcomes.append("survived")
            except Killed:
                outcomes.append("killed")
        after = CheckpointStore(folder)
        assert loaded_step(after.load_newest()) in ({20} if again else {20, 30}), f"after operation {moment}"
        after.prepare()
        assert names(folder) == ["manifest.json", after.newest().name], f"after operation {moment}"
        after.save(content(40), step=40)
        assert loaded_step(after.load_newest()) == 40
        moment += 1
    assert moment > 12


def _raise(code: int):
    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(("call", "code"), [("fsync", errno.ENOSPC), ("replace", errno.EROFS)])
def test_a_failing_disk_keeps_the_files_before(tmp_path, monkeypatch, call, code):
    made = filled(tmp_path, keep_last=1)
    before = names(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os if call == "fsync" else Path, call, _raise(code))
        message = f"the checkpoint of step 40 could not be written: {os.strerror(code)}"
        with pytest.raises(UserError, match=message) as caught:
            made.save(content(40), step=40)
    assert "step-00000030.pt is whole" in str(caught.value)
    assert names(tmp_path) == before
    assert loaded_step(made.load_newest()) == 30


def test_prepare_makes_the_folder_or_refuses(tmp_path, monkeypatch):
    CheckpointStore(tmp_path / "a" / "b").prepare()
    assert names(tmp_path / "a" / "b") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="checkpoints cannot be written here") as caught:
        CheckpointStore(tmp_path / "file" / "checkpoints").prepare()
    assert caught.value.exit_code == 2
    with pytest.raises(UserError, match="checkpoint=none"):
        CheckpointStore(tmp_path / "file").prepare()
    monkeypatch.setattr(Path, "open", _raise(errno.EROFS))
    with pytest.raises(UserError, match="Read-only file system"):
        CheckpointStore(tmp_path).prepare()


def test_names_in_use_are_not_taken_whoever_made_them_before_the_first_save(tmp_path):
    (tmp_path / "step-00000010.pt").write_text("somebody's")
    made = CheckpointStore(tmp_path, keep_last=2)
    assert [made.save(content(10), step=10).name for _ in range(3)] == [
        "step-00000010-1.pt",
        "step-00000010-2.pt",
        "step-00000010-1.pt",
    ]
    assert (tmp_path / "step-00000010.pt").read_text() == "somebody's"


def test_a_file_that_is_put_where_a_checkpoint_comes_is_kept_aside_and_named(tmp_path, caplog):
    made = filled(tmp_path)
    (tmp_path / "step-00000040.pt").write_text("somebody's")
    made.save(content(40), step=40)
    assert loaded_step(made.load_newest()) == 40
    (aside,) = tmp_path.glob("step-00000040.pt.*")
    assert aside.read_text() == "somebody's"
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'step-00000040.pt'} is not of this run, which takes the name: it is {aside.name} now"
    ]
    assert [entry.step for entry in made.entries()] == [20, 30, 40]
