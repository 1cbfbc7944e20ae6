"""What checks look at is the run itself, and stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightkit.common.doors import import_path
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.doctor.checks import CHECKS, examined
from lightkit.doctor.training.probing import train_step, training_batches


def test_each_check_gets_the_same_model_whatever_the_one_before_did(project: Path) -> None:
    with examined(compose(["data=wine", "model.dropout=0.1"]).cfg, 60) as run:
        first = run.learner()
        before = [each.detach().clone() for each in first.model.parameters()]
        for number, batch in enumerate(training_batches(first, 3, 8)):
            train_step(first, batch, key=number)
        second = run.learner()

        assert all(torch.equal(one, other) for one, other in zip(before, second.model.parameters(), strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(before, first.model.parameters(), strict=True) if a.ndim > 1)
    assert not run.folder.exists()


def test_several_processes_are_examined_as_one(project: Path) -> None:
    with examined(compose(["data=wine", "device=ddp", "device.compile=default"]).cfg, 60) as run:
        assert (run.cfg.device.parallel, run.cfg.device.nproc) == ("none", 1)
        assert run.cfg.device.compile == "none"
        assert run.full_cfg.device.parallel == "ddp"


def test_a_run_that_would_be_refused_is_refused(project: Path) -> None:
    with (
        pytest.raises(UserError, match="a first batch fails"),
        examined(compose(["data=wine", "model.in_features=5"]).cfg, 60),
    ):
        pass


def test_slow_rows_are_few(project: Path) -> None:
    slow = (
        "data=custom",
        "data.dataset._target_=tests.doctor.faulty.Slow",
        "data.dataset.seconds=0.02",
        "trust=[tests]",
    )
    with examined(compose([*slow, "model.hidden=[4]"]).cfg, 60) as run:
        assert run.seconds_per_row > 0.02
        assert run.rows(128, seconds=0.4) <= 20
        assert run.rows(128, seconds=0.0, least=3) == 3
        assert run.rows(2) == 2


def test_small_data_are_read_again_for_more_batches(project: Path) -> None:
    with examined(compose(["data=wine", "data.split.limit=10"]).cfg, 60) as run:
        learner = run.learner()
        batches = [*training_batches(learner, 3, min(8, learner.data.train.num_samples))]
    assert len(batches) == 3


def test_nothing_is_left_behind(project: Path) -> None:
    before = sorted(project.rglob("*"))
    with examined(compose(["data=wine", "model.hidden=[4]"]).cfg, 60) as run:
        for name in ("splits", "features", "checkpoint"):
            assert [*import_path(dict(CHECKS)[name])(run)]
    assert sorted(path for path in project.rglob("*") if "__pycache__" not in path.parts) == before
