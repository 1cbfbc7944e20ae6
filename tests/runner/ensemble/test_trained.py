"""What an earlier part of a run has trained; that it becomes whole again is in tests/resume/test_ensembles.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.ensemble.methods.base import member
from lightkit.runner import Runner
from lightkit.runner.ensemble.trained import find_trained, member_config
from lightkit.runs.folder import RunFolder
from tests.ensemble.methods.running import QUICK, facts, train


def test_damaged_checkpoints_are_set_aside(tmp_path: Path) -> None:
    told: list[str] = []
    train(tmp_path, "ensemble=voting", "ensemble.size=1")
    cfg = compose([*QUICK, "ensemble=voting", "ensemble.size=1"]).cfg
    found = find_trained(cfg, RunFolder(tmp_path), member(facts(), 0), told.append)
    assert found["status"] == "finished"
    for path in (tmp_path / "members" / "00" / "checkpoints").glob("*.pt"):
        path.write_bytes(b"")
    assert find_trained(cfg, RunFolder(tmp_path), member(facts(), 0), told.append) == {}
    assert told[0].startswith("member 00 is damaged, and is made whole again alone: step-")
    assert (tmp_path / "members" / "00" / "checkpoints.damaged" / "manifest.json").is_file()
    assert not (tmp_path / "members" / "00" / "checkpoints").exists()
    (tmp_path / "members" / "00" / "oof.safetensors").write_bytes(b"")
    Runner(cfg, tmp_path).run(resume=True)
    assert "member 00 is damaged, and is made whole again alone" in (tmp_path / "run.log").read_text(encoding="utf-8")


def test_members_learn_from_the_data_of_the_run() -> None:
    with pytest.raises(UserError, match=r"data\.batch_size: the members of a run learn from the same data"):
        member_config(compose(QUICK).cfg, member(facts(), 0, values={"data.batch_size": 4}))
