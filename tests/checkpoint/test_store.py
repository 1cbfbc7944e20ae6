from __future__ import annotations

import errno
import json
import logging
import os
import resource
import stat
from pathlib import Path

import pytest
import torch

from lightkit.checkpoint import files, store
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
    path = made.save(saved, step=3, value=0.5, epoch=1)
    back = made.load(path)
    assert torch.equal(back.pop("a"), saved["a"])
    assert torch.equal(back[7].pop("bf"), saved[7]["bf"])
    assert back == {"b": [1, 2.5, None, True, "x"], "c": (1, {"d": b"raw"}), 7: {}}


def test_files_open_with_plain_torch_load(tmp_path):
    path = CheckpointStore(tmp_path).save(content(1), step=1, value=0.1)
    raw = torch.load(path, weights_only=True)
    assert raw["saved"] == {"step": 1, "value": 0.1, "epoch": None}


def test_the_manifest_says_what_each_file_is(tmp_path):
    path = filled(tmp_path, steps=[120]).newest()
    raw = json.loads((tmp_path / "manifest.json").read_text())
    assert path.name == "step-00000120.pt"
    assert raw["version"] == 1
    assert raw["entries"] == [
        {
            "file": path.name,
            "step": 120,
            "epoch": 12,
            "value": 1.2,
            "sha256": files.sha256(path),
            "bytes": path.stat().st_size,
        }
    ]


def test_an_empty_or_absent_folder_has_no_checkpoint(tmp_path):
    made = CheckpointStore(tmp_path / "none")
    assert made.newest() is None
    assert made.best() is None
    assert made.load_newest() is None


def test_keeps_the_newest_and_the_best(tmp_path):
    made = CheckpointStore(tmp_path, keep_last=2, keep_best=1)
    for step, value in [(1, 0.5), (2, 0.9), (3, 0.7), (4, 0.6), (5, 0.8)]:
        made.save(content(step), step=step, value=value)
    assert names(tmp_path) == ["manifest.json", "step-00000002.pt", "step-00000004.pt", "step-00000005.pt"]
    assert made.best().name == "step-00000002.pt"
    assert made.newest().name == "step-00000005.pt"


def test_one_file_may_be_both_best_and_newest(tmp_path):
    made = filled(tmp_path, keep_last=1)
    assert made.best() == made.newest() == tmp_path / "step-00000030.pt"
    assert names(tmp_path) == ["manifest.json", "step-00000030.pt"]


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


def test_infinity_is_a_value(tmp_path):
    made = CheckpointStore(tmp_path, mode="min")
    made.save(content(1), step=1, value=float("inf"))
    assert made.best().name == "step-00000001.pt"


def test_keep_best_zero_keeps_no_best(tmp_path):
    made = filled(tmp_path, keep_last=1, keep_best=0)
    assert made.best() is None
    assert names(tmp_path) == ["manifest.json", "step-00000030.pt"]


def test_the_list_survives_a_new_process(tmp_path):
    filled(tmp_path, steps=(10, 20), keep_last=1, keep_best=1, mode="min")
    filled(tmp_path, steps=(30, 40), keep_last=1, keep_best=1, mode="min")
    assert names(tmp_path) == ["manifest.json", "step-00000010.pt", "step-00000040.pt"]


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


def test_saving_a_step_again_replaces_it(tmp_path):
    made = filled(tmp_path, steps=(10, 20), keep_last=1)
    path = made.save(content(20, size=5), step=20, value=0.1)
    assert made.newest() == path
    assert len(made.load(path)["model"]["w"]) == 5
    assert names(tmp_path) == ["manifest.json", path.name]


def test_saving_a_step_again_without_a_value_keeps_the_value(tmp_path):
    made = filled(tmp_path, steps=(10,))
    made.save(content(10), step=10)
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


def test_files_that_were_found_when_the_list_was_lost_are_not_abandoned(tmp_path, caplog):
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


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)


def _zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES = {
    "truncated": (_cut, "bytes instead of"),
    "flipped": (_flip, "checksum differs"),
    "zeroed": (_zero, "checksum differs"),
    "empty": (lambda path: path.write_bytes(b""), "0 bytes instead of"),
    "gone": (Path.unlink, "the file is gone"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "bytes instead of|directory"),
    "text": (lambda path: path.write_text("hello"), "bytes instead of"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_is_named_and_the_one_before_taken(tmp_path, caplog, damage):
    made = filled(tmp_path)
    DAMAGES[damage][0](tmp_path / "step-00000030.pt")
    with caplog.at_level(logging.WARNING):
        assert loaded_step(made.load_newest()) == 20
    assert "step-00000030.pt is damaged" in caplog.text
    with pytest.raises(UserError, match=DAMAGES[damage][1]) as caught:
        made.load(tmp_path / "step-00000030.pt")
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("damage", ["truncated", "flipped", "zeroed", "gone"])
def test_all_damaged_refuses_a_silent_fresh_start(tmp_path, damage):
    made = filled(tmp_path)
    for path in tmp_path.glob("*.pt"):
        DAMAGES[damage][0](path)
    with pytest.raises(UserError, match=r"no checkpoint can be read: step-00000030.pt: .*step-00000010.pt: ") as caught:
        made.load_newest()
    assert caught.value.exit_code == 5


def test_training_goes_on_past_a_damaged_newest(tmp_path):
    made = filled(tmp_path, keep_last=2)
    _flip(tmp_path / "step-00000030.pt")
    assert loaded_step(made.load_newest()) == 20
    made.save(content(25), step=25)
    assert loaded_step(made.load_newest()) == 25
    made.save(content(30), step=30)
    assert loaded_step(made.load_newest()) == 30


MANIFEST_DAMAGES = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_text(""),
    "cut": _cut,
    "zeroed": _zero,
    "other": lambda path: path.write_text('{"version": 1, "entries": [{"file": "../../x", "step": 1}]}'),
    "climbing": lambda path: path.write_text(path.read_text().replace("step-00000030.pt", "../step-00000030.pt")),
    "types": lambda path: path.write_text(path.read_text().replace('"step": 30', '"step": "30"')),
    "list": lambda path: path.write_text("[]"),
}


@pytest.mark.parametrize("damage", MANIFEST_DAMAGES)
def test_a_lost_manifest_is_made_anew_from_the_files(tmp_path, caplog, damage):
    made = filled(tmp_path)
    (tmp_path / "step-00000005.pt").write_text("not ours")
    MANIFEST_DAMAGES[damage](tmp_path / "manifest.json")
    with caplog.at_level(logging.WARNING):
        assert loaded_step(made.load_newest()) == 30
    assert "listed anew from 3 files" in caplog.text
    assert made.best().name == "step-00000030.pt"
    made.save(content(40), step=40)
    assert [entry.step for entry in made.entries()] == [20, 30, 40]
    assert (tmp_path / "step-00000005.pt").read_text() == "not ours"


def test_without_a_manifest_damage_is_still_found(tmp_path, caplog):
    made = filled(tmp_path)
    (tmp_path / "manifest.json").unlink()
    _flip(tmp_path / "step-00000030.pt")
    assert loaded_step(made.load_newest()) == 20
    assert "step-00000030.pt is damaged (the checksum of its part" in caplog.text
    for path in tmp_path.glob("*.pt"):
        _cut(path)
    with pytest.raises(UserError, match="no checkpoint can be read"):
        made.load_newest()


def test_a_manifest_of_a_later_version_is_not_believed(tmp_path, caplog):
    made = filled(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    assert loaded_step(made.load_newest()) == 30
    assert "has version 2; this lightkit reads up to 1" in caplog.text


@pytest.mark.parametrize("raw", [{"weights": torch.ones(2)}, [1, 2], 5])
def test_foreign_files_are_refused(tmp_path, raw):
    torch.save(raw, tmp_path / "x.pt")
    with pytest.raises(UserError, match="not a lightkit checkpoint"):
        store.read(tmp_path / "x.pt")


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path}/ran",))

    torch.save({"saved": {"step": 1, "value": None, "epoch": 0}, "x": Evil()}, tmp_path / "step-00000001.pt")
    with pytest.raises(UserError, match="not a file of tensors and plain types"):
        store.read(tmp_path / "step-00000001.pt")
    with pytest.raises(UserError, match="no checkpoint can be read"):
        CheckpointStore(tmp_path).load_newest()
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"x\.pt: this checkpoint cannot be read: the file is gone"):
        store.read(tmp_path / "x.pt")


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


def _killed_save(folder: Path, patch, name: str) -> None:
    """Save step 40 and stop at the first rename or deletion of a file of this name."""
    real = {"replace": Path.replace, "unlink": Path.unlink}

    def stopping(call: str):
        def stop(path: Path, *args, **kwargs):
            if name in (path.name, Path(args[0]).name if args else ""):
                raise Killed
            return real[call](path, *args, **kwargs)

        return stop

    with patch.context() as patched:
        for call in real:
            patched.setattr(Path, call, stopping(call))
        with pytest.raises(Killed):
            CheckpointStore(folder, keep_last=1, keep_best=0).save(content(40), step=40)


def test_a_file_that_got_its_name_before_a_kill_is_listed_and_taken(tmp_path, monkeypatch):
    filled(tmp_path, steps=[30])
    (tmp_path / "step-00000050.pt").write_text("mine")
    real = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, **kwargs: None if "json" in path.name else real(path, **kwargs))
    _killed_save(tmp_path, monkeypatch, "manifest.json")
    after = CheckpointStore(tmp_path)
    assert loaded_step(after.load_newest()) == 30, "who only reads changes nothing"
    monkeypatch.undo()
    assert loaded_step(after.load_newest(recover=True)) == 40
    assert names(tmp_path) == ["manifest.json", "step-00000040.pt", "step-00000050.pt"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "gone"])
def test_a_file_that_is_not_the_one_that_was_to_be_listed_is_left_alone(tmp_path, monkeypatch, damage):
    filled(tmp_path, steps=[30])
    real = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, **kwargs: None if "json" in path.name else real(path, **kwargs))
    _killed_save(tmp_path, monkeypatch, "manifest.json")
    monkeypatch.undo()
    DAMAGES[damage][0](tmp_path / "step-00000040.pt")
    after = CheckpointStore(tmp_path)
    after.prepare()
    assert [entry.step for entry in after.entries()] == [30]
    assert ("step-00000040.pt" in names(tmp_path)) == (damage != "gone")
    assert "manifest.json.unfinished" not in names(tmp_path)


def test_what_a_kill_kept_from_being_deleted_is_deleted_later(tmp_path, monkeypatch):
    filled(tmp_path, steps=[30])
    _killed_save(tmp_path, monkeypatch, "step-00000030.pt")
    assert names(tmp_path) == ["manifest.json", "step-00000030.pt", "step-00000040.pt"]
    CheckpointStore(tmp_path).prepare()
    assert names(tmp_path) == ["manifest.json", "step-00000040.pt"]


def test_a_deleted_checkpoint_that_somebody_put_back_stays(tmp_path):
    made = filled(tmp_path / "run", steps=[30], keep_last=1, keep_best=0)
    backup = tmp_path / "step-00000030.pt"
    backup.write_bytes((tmp_path / "run" / backup.name).read_bytes())
    made.save(content(40), step=40)
    backup.rename(tmp_path / "run" / backup.name)
    made.prepare()
    assert names(tmp_path / "run") == ["manifest.json", "step-00000030.pt", "step-00000040.pt"]


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


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    made, calls = filled(tmp_path, steps=[10], keep_last=1), []

    def recorded(label, function):
        def call(*args, **kwargs):
            what = "folder" if label == "sync" and stat.S_ISDIR(os.fstat(args[0]).st_mode) else "file"
            calls.append(f"{label} {what}" if label == "sync" else f"{label} {Path(args[-1]).suffix}")
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "fsync", recorded("sync", os.fsync))
    monkeypatch.setattr(Path, "replace", recorded("rename to", Path.replace))
    monkeypatch.setattr(Path, "unlink", recorded("delete", Path.unlink))
    made.save(content(20), step=20, value=9.0)
    written, named = ["sync file", "sync file"], ["rename to .pt", "sync folder", "rename to .json", "sync folder"]
    assert calls == [*written, *named, "delete .pt"]


def _raise(code: int):
    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_failing_disk_keeps_the_files_before(tmp_path, monkeypatch, call, code):
    made = filled(tmp_path, keep_last=1)
    before = names(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os if call == "fsync" else Path, call, _raise(code))
        with pytest.raises(
            UserError, match=f"the checkpoint of step 40 could not be written: {os.strerror(code)}"
        ) as caught:
            made.save(content(40), step=40)
    assert "step-00000030.pt is whole" in str(caught.value)
    assert names(tmp_path) == before
    assert loaded_step(made.load_newest()) == 30


def test_a_file_size_limit_stops_cleanly(tmp_path):
    made = filled(tmp_path, keep_last=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UserError, match="File too large"):
            made.save(content(40, size=100_000), step=40)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert loaded_step(made.load_newest()) == 30
    assert names(tmp_path) == ["manifest.json", "step-00000030.pt"]


def test_a_failing_first_save_says_to_start_again(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", _raise(errno.ENOSPC))
    with pytest.raises(UserError, match="make room, then start again"):
        CheckpointStore(tmp_path).save(content(1), step=1)


def test_file_systems_without_folder_sync_are_fine(tmp_path, monkeypatch):
    real = os.fsync

    def picky(handle):
        if Path(f"/proc/self/fd/{handle}").is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(handle)

    monkeypatch.setattr(os, "fsync", picky)
    assert loaded_step(filled(tmp_path).load_newest()) == 30


def test_prepare_makes_the_folder_and_leaves_nothing_in_it(tmp_path):
    CheckpointStore(tmp_path / "a" / "b").prepare()
    assert names(tmp_path / "a" / "b") == []


def test_prepare_refuses_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="checkpoints cannot be written here") as caught:
        CheckpointStore(tmp_path / "file" / "checkpoints").prepare()
    assert caught.value.exit_code == 2
    with pytest.raises(UserError, match="checkpoint=none"):
        CheckpointStore(tmp_path / "file").prepare()


def test_prepare_refuses_a_read_only_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "open", _raise(errno.EROFS))
    with pytest.raises(UserError, match="Read-only file system"):
        CheckpointStore(tmp_path).prepare()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_last": 0}, r"keep_last: at least the newest is kept"),
        ({"keep_best": -1}, r"keep_best: not a number of files"),
        ({"mode": "maximum"}, r"mode: not a direction"),
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


def test_the_manifest_says_which_values_are_better(tmp_path):
    filled(tmp_path, mode="min")
    assert json.loads((tmp_path / "manifest.json").read_text())["mode"] == "min"


def test_a_store_is_closed_after_a_block(tmp_path):
    with CheckpointStore(tmp_path) as made:
        made.save(content(1), step=1)
    made.flush()
    assert loaded_step(made.load_newest()) == 1


def test_keep_every_must_be_a_number_of_steps(tmp_path):
    with pytest.raises(UserError, match="keep_every: not a number of steps"):
        CheckpointStore(tmp_path, keep_every=0)
