"""What a run ran with."""

from __future__ import annotations

import json
import subprocess

from lightkit.loggers.environment import DIFF_LIMIT, environment, git_state


def git(folder, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_environment_is_plain_and_knows_the_essentials(tmp_path):
    found = environment(project=tmp_path, device="cpu", seed=3)
    assert (found["seed"], found["device"], found["git"]) == (3, "cpu", None)
    assert {"torch", "numpy", "torchmetrics"} <= set(found["packages"])
    assert found["cpus"] >= 1
    assert json.loads(json.dumps(found)) == found


def test_git_state_before_and_after_a_commit_and_with_changes(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "a.txt").write_text("one\n")
    assert git_state(tmp_path)["commit"] is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    clean = git_state(tmp_path)
    assert (len(clean["commit"]), clean["branch"], clean["dirty"], clean["diff"]) == (40, "main", False, "")
    (tmp_path / "a.txt").write_text("two\n")
    (tmp_path / "new.txt").write_text("x")
    dirty = git_state(tmp_path)
    assert dirty["dirty"]
    assert "+two" in dirty["diff"]
    assert "?? new.txt" in dirty["status"]
    (tmp_path / "a.txt").write_text("x\n" * DIFF_LIMIT)
    assert DIFF_LIMIT < len(git_state(tmp_path)["diff"]) < DIFF_LIMIT + 100


def test_without_git_there_is_no_git_state(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None
