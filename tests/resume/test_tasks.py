"""Each kind of task across a kill in the middle of an epoch, with other workers afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.resume.harness import Case, configured

HEADS = (
    "data=custom", "data.dataset._target_=tests.resume.sets.TwoTargets", "model=heads", "~model.hidden",
    "model.heads={kind: 3, size: 1}", "model.trunk.hidden=[8]", "loss=by_head", "loss.weights=uncertainty",
    "loss.losses={kind: {_target_: torch.nn.CrossEntropyLoss}, size: {_target_: torch.nn.MSELoss}}", "metrics=none",
    "metrics.monitor=val/size/mae", "metrics.val={size/mae: {_target_: torchmetrics.regression.MeanAbsoluteError}}",
)  # fmt: skip
NOISE = "{_target_: lightkit.data.transforms.GaussianNoise, deviation: 0.2}"
VIEWS = (
    "data=wine", f"data.augment=[{{_target_: lightkit.data.transforms.Views, augment: [{NOISE}]}}]", "loss=nt_xent",
    "metrics=retrieval", "trainer.task._target_=lightkit.trainer.TwoViews", "model.num_classes=4",
)  # fmt: skip
KINDS = {"several heads": HEADS, "two views": VIEWS}


@pytest.mark.thorough(first=1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_goes_on_with_the_same_bits(project: Path, kind: str) -> None:
    case = Case(configured(*KINDS[kind]), project / "case")
    moments = case.moments("micro")
    place = case.kill(moments[len(moments) // 2], "killed")
    case.resume(place, "data.num_workers=1")
    assert case.differences(place) == []
