"""What a run does otherwise as the member of an ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.assembly import build_engine, build_own, build_shared
from lightkit.assembly.learner import build_learner
from lightkit.assembly.member import own_task
from lightkit.assembly.parts import role_of
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.ensemble.tasks import FastGradientSign, JointResiduals, Residual
from lightkit.trainer.tasks import Supervised, Task

QUICK = ["data=wine", "model.hidden=[8]", "device=cpu", "metrics.figures=[]"]


def test_a_member_draws_its_rows_and_keeps_the_others_apart(tmp_path: Path) -> None:
    shared = build_shared(compose(QUICK).cfg, tmp_path)
    roles = [f"ensemble.member={{rows: folds, draw: 3, folds: 4, fold: {fold}}}" for fold in range(4)]
    parts = [build_own(compose([*QUICK, role]).cfg, shared, tmp_path / "00").data for role in roles]
    rows = shared.data.rows["train"]
    for part in parts:
        assert set(part.rows["train"].tolist()) < set(rows.tolist())
        assert part.rows["val"].equal(shared.data.rows["val"])
    held = [part.left_out for part in parts if part.left_out is not None]
    assert torch.cat(held).sort().values.equal(rows.sort().values)
    with pytest.raises(UserError, match=r"ensemble\.member\.fold: there is no such fold"):
        build_own(compose([*QUICK, "ensemble.member={rows: folds, fold: 7}"]).cfg, shared, tmp_path / "00")


ROLES: dict[str, type[Task]] = {
    "{}": Supervised,
    "{epsilon: 0.1}": FastGradientSign,
    "{adds_to: []}": Residual,
    "{joint: soft_gradient_boosting}": JointResiduals,
    "{joint: fusion}": Supervised,
}


class Mine(Supervised):
    """A task of one's own."""


def test_the_role_decides_what_is_learnt_and_a_task_of_ones_own_is_not_changed(tmp_path: Path) -> None:
    info = build_shared(compose(QUICK).cfg, tmp_path).data.info
    facts: dict[str, Any] = {"last": False, "mode": "min"}
    for text, kind in ROLES.items():
        cfg = compose([*QUICK, f"ensemble.member={text}"]).cfg
        learnt = own_task(role_of(cfg), Supervised(), info, build_engine(cfg), tmp_path / "00", **facts)
        assert type(learnt) is kind
        if kind in (FastGradientSign, Residual):
            with pytest.raises(UserError, match=r"trainer\.task: the members of this ensemble"):
                own_task(role_of(cfg), Mine(), info, build_engine(cfg), tmp_path / "00", **facts)


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("{weights_of: nobody}", "the member that this one goes on from has no checkpoint"),
        ("{adds_to: [nobody]}", "not the folder of a run"),
    ],
)
def test_members_that_are_not_there_are_named(role: str, message: str, tmp_path: Path) -> None:
    cfg = compose([*QUICK, f"ensemble.member={role}"]).cfg
    with pytest.raises(UserError, match=message):
        build_learner(cfg, build_shared(cfg, tmp_path), tmp_path / "00")
