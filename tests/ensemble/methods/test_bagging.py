"""Bagging: members that learn from other rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lightkit.common.errors import UserError
from lightkit.ensemble.methods import Bagging
from tests.ensemble.methods.running import facts, predictions, refused, role, train


def test_each_member_has_a_draw_of_its_own() -> None:
    members = Bagging(size=3).next(facts(), [])
    assert [role(member) for member in members] == [
        {"rows": "bootstrap", "draw": 3, "index": index} for index in range(3)
    ]


def test_folds_are_the_members_and_repeats_come_last() -> None:
    once, twice = (Bagging(resample="folds", folds=3, repeats=n).next(facts(), []) for n in (1, 2))
    assert [member.name for member in twice] == [
        "00-fold0",
        "01-fold1",
        "02-fold2",
        "03-r1-fold0",
        "04-r1-fold1",
        "05-r1-fold2",
    ]
    assert [member.values for member in twice[:3]] == [member.values for member in once], "a finished bag grows"
    assert role(twice[4]) == {"rows": "folds", "draw": 3, "folds": 3, "fold": 1, "repeat": 1}


def test_folds_predict_every_training_row_once(tmp_path: Path) -> None:
    found = train(tmp_path / "run", "ensemble=bagging", "ensemble.resample=folds", "ensemble.folds=2")
    kept = load_file(tmp_path / "run" / "oof.safetensors")
    inner = kept["split"] == 0
    assert (kept["counts"][inner] == 1).all()
    assert (kept["counts"][~inner] == 2).all()
    assert "oof/accuracy" in found["metrics"]
    parts = [load_file(tmp_path / "run" / "members" / name / "oof.safetensors") for name in ("00-fold0", "01-fold1")]
    rows = [part["rows"][part["split"] == 0] for part in parts]
    assert torch.equal(torch.cat(rows).sort().values, kept["rows"][inner])
    torch.testing.assert_close(kept["predictions"][inner][torch.isin(kept["rows"][inner], rows[0])], _train(parts[0]))
    both = [predictions(tmp_path / "run" / "members" / name, 1) for name in ("00-fold0", "01-fold1")]
    torch.testing.assert_close(predictions(tmp_path / "run", 1), (both[0] + both[1]) / 2)


def _train(part: dict[str, torch.Tensor]) -> torch.Tensor:
    return part["predictions"][part["split"] == 0]


def test_what_cannot_be_dealt_out_is_refused(tmp_path: Path) -> None:
    folds = ["ensemble=bagging", "ensemble.resample=folds"]
    refused(r"ensemble\.size: the folds are the members", *folds, "ensemble.size=5")
    refused(r"ensemble\.resample: a random draw", "ensemble=bagging", "data.split.by=ordered")
    refused(r"ensemble\.folds: out of range", *folds, "ensemble.folds=1")
    with pytest.raises(UserError, match=r"ensemble\.folds: there are fewer rows than folds") as caught:
        train(tmp_path / "run", *folds, "ensemble.folds=500")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()
