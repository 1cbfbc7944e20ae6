"""One model of a run that trains several."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.runner import Runner
from tests.ensemble.test_plan import OPTIONS, TwoModels


def test_members_learn_from_the_same_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.batch_size: the members of a run learn from the same data"):
        Runner(compose(OPTIONS).cfg, tmp_path / "run", plan=TwoModels({"data.batch_size": 4})).run()
    assert not (tmp_path / "run").exists()


def test_a_member_that_cannot_be_built_leaves_no_trace(tmp_path: Path) -> None:
    plan = TwoModels({"optim._target_": "torch.optim.LBFGS"})
    with pytest.raises(UserError, match="LBFGS"):
        Runner(compose(OPTIONS).cfg, tmp_path / "run", plan=plan).run()
    assert not (tmp_path / "run").exists()


def test_a_folder_with_members_is_not_begun_anew(tmp_path: Path) -> None:
    cfg = compose([*OPTIONS, "trainer.epochs=1"]).cfg
    Runner(cfg, tmp_path / "run", plan=TwoModels()).run()
    with pytest.raises(UserError, match="the folder already holds a run"):
        Runner(cfg, tmp_path / "run", plan=TwoModels()).run()


def test_a_run_of_several_models_is_not_gone_on_with_as_one(tmp_path: Path) -> None:
    cfg = compose([*OPTIONS, "trainer.epochs=1"]).cfg
    Runner(cfg, tmp_path / "run", plan=TwoModels()).run()
    with pytest.raises(UserError, match="trains several models, which its plan names"):
        Runner(cfg, tmp_path / "run").run(resume=True)
    assert not (tmp_path / "run" / "checkpoints").exists()
