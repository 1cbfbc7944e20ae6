from __future__ import annotations

import json
import os

import pytest
import torch

from lightkit.checkpoint.manifest import read_mode
from lightkit.checkpoint.prune import prune
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError


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
        ({"keep_last": 9}, [10, 20, 30, 40, 50]),
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
    with pytest.raises(
        UserError, match=r"nothing is deleted, as step-00000050.pt, which is to stay, is damaged"
    ) as caught:
        prune(folder)
    assert caught.value.exit_code == 5
    assert len(list(folder.glob("step-*.pt"))) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "there is no manifest.json"), ("{", "nothing is deleted: manifest.json is damaged")],
)
def test_without_a_manifest_nothing_is_deleted(folder, text, message):
    (folder / "manifest.json").unlink()
    if text:
        (folder / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=message):
        prune(folder)
    assert len(list(folder.glob("step-*.pt"))) == 6


def test_the_last_one_is_not_deleted(folder):
    with pytest.raises(UserError, match="no checkpoint would be left"):
        prune(folder, keep_last=0, keep_best=0)


def test_what_is_best_must_be_known(folder):
    content = json.loads((folder / "manifest.json").read_text())
    del content["mode"]
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="whether a smaller or a larger value is better"):
        prune(folder)
    prune(folder, keep_best=0, keep_last=2)
    assert steps(folder) == [40, 50]


def test_pruning_finishes_what_a_kill_cut_off(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(type(folder), "unlink", lambda path, **options: None)
        prune(folder, keep_last=1, keep_best=0)
    assert (folder / "step-00000010.pt").exists()
    prune(folder, keep_last=1, keep_best=0, dry_run=True)
    assert (folder / "step-00000010.pt").exists()
    prune(folder, keep_last=1, keep_best=0)
    assert {path.name for path in folder.glob("*.pt")} == {"step-00000050.pt", "step-00000060.pt"}
