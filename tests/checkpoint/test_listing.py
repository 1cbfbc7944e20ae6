"""What a kill cut off is finished later."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.checkpoint.store import CheckpointStore
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
