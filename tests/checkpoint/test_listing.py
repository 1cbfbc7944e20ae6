"""What a kill cut off is finished later, and room is made."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from lightkit.checkpoint.listing import prune
from lightkit.checkpoint.manifest import read_mode
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from tests.checkpoint.crashes import Killed, content, loaded_step
from tests.checkpoint.test_reading import DAMAGES
from tests.checkpoint.test_store import filled, names


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


@pytest.mark.parametrize("damage", ["flipped", "gone"])
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


@pytest.fixture
def folder(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=9, mode="min")
    for step, value in [(10, 0.5), (20, 0.1), (30, 0.4), (40, 0.3), (50, 0.2)]:
        store.save({"x": torch.ones(3)}, step=step, value=value)
    for name in ("step-00000060.pt", "notes.txt"):
        (tmp_path / name).write_text("mine")
    return tmp_path


def steps(folder) -> list[int]:
    return [entry.step for entry in CheckpointStore(folder).entries()]


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ({}, [20, 50]),
        ({"keep_last": 2, "keep_best": 0}, [40, 50]),
        ({"keep_last": 0, "keep_best": 2}, [20, 50]),
        ({"keep_every": 20}, [20, 40, 50]),
        ({"mode": "max"}, [10, 50]),
    ],
)
def test_only_what_the_rules_keep_stays(folder, rules, left):
    staying, leaving = prune(folder, **rules)
    assert steps(folder) == left == [entry.step for entry in staying]
    assert sorted([*left, *(entry.step for entry in leaving)]) == [10, 20, 30, 40, 50]
    listed = {f"step-{step:08d}.pt" for step in left}
    assert {path.name for path in folder.iterdir()} == listed | {"step-00000060.pt", "notes.txt", "manifest.json"}
    assert read_mode(folder) == rules.get("mode", "min")


def test_a_dry_run_deletes_nothing(folder):
    before = sorted((path.name, path.read_bytes()) for path in folder.iterdir())
    _, leaving = prune(folder, dry_run=True)
    assert [entry.step for entry in leaving] == [10, 30, 40]
    assert sorted((path.name, path.read_bytes()) for path in folder.iterdir()) == before


def test_nothing_is_deleted_while_one_to_keep_is_damaged(folder):
    os.truncate(folder / "step-00000050.pt", 100)
    message = r"nothing is deleted, as step-00000050.pt, which is to stay, is damaged"
    with pytest.raises(UserError, match=message) as caught:
        prune(folder)
    assert caught.value.exit_code == 5
    assert len(list(folder.glob("step-*.pt"))) == 6


def test_without_a_manifest_or_one_to_keep_nothing_is_deleted(folder):
    with pytest.raises(UserError, match="no checkpoint would be left"):
        prune(folder, keep_last=0, keep_best=0)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="nothing is deleted: manifest.json is damaged"):
        prune(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match="there is no manifest.json"):
        prune(folder)
    assert len(list(folder.glob("step-*.pt"))) == 6


def test_what_is_best_must_be_known(folder):
    content = json.loads((folder / "manifest.json").read_text())
    del content["mode"]
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="whether a smaller or a larger value is better"):
        prune(folder)
    prune(folder, keep_best=0, keep_last=2)
    assert steps(folder) == [40, 50]
