"""Damaged and foreign files are found when they are read."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch

from lightkit.checkpoint import store
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from tests.checkpoint.crashes import content, loaded_step
from tests.checkpoint.test_store import filled


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
    "gone": (Path.unlink, "the file is gone"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "bytes instead of|directory"),
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


@pytest.mark.parametrize("damage", ["flipped", "gone"])
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
    "cut": _cut,
    "other": lambda path: path.write_text('{"version": 1, "entries": [{"file": "../../x", "step": 1}]}'),
    "climbing": lambda path: path.write_text(path.read_text().replace("step-00000030.pt", "../step-00000030.pt")),
    "types": lambda path: path.write_text(path.read_text().replace('"step": 30', '"step": "30"')),
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


def test_foreign_files_are_refused_and_a_missing_one_is_named(tmp_path):
    with pytest.raises(UserError, match=r"x\.pt: this checkpoint cannot be read: the file is gone"):
        store.read(tmp_path / "x.pt")
    for raw in ({"weights": torch.ones(2)}, [1, 2]):
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
