"""Which models a run trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.runner.plan import OneModel, RunMember


def test_a_plain_run_is_a_plan_of_one(tmp_path: Path) -> None:
    asked: list[int] = []

    class Noted(OneModel):
        def next(self, done: Any) -> RunMember | None:
            asked.append(len(done))
            return super().next(done)

    cfg = compose(["data=wine", "model.hidden=[8]", "trainer.steps=2", "device=cpu", "metrics.figures=[]"]).cfg
    result = Runner(cfg, tmp_path / "run", plan=Noted()).run()
    assert (result["status"], asked) == ("finished", [0, 1])


@pytest.mark.parametrize(("done", "expected"), [([], RunMember("")), ([object()], None)])
def test_nothing_is_trained_after_the_one_model(done: Any, expected: RunMember | None) -> None:
    assert OneModel().next(done) == expected
