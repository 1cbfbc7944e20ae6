"""Fusion and soft gradient boosting: networks that are trained as one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightkit.ensemble.methods import Fusion, SoftGradientBoosting
from tests.ensemble.methods.running import facts, result, role, stored, train


def test_one_member_holds_all_networks() -> None:
    (fused,) = Fusion(size=4).next(facts(), [])
    assert role(fused) == {"joint": "fusion", "networks": 4}
    (boosted,) = SoftGradientBoosting(size=3, shrinkage=0.2).next(facts(), [])
    assert role(boosted) == {"joint": "soft_gradient_boosting", "networks": 3, "shrinkage": 0.2}


@pytest.mark.parametrize("method", ["fusion", "soft_gradient_boosting"])
def test_the_networks_are_in_the_file_and_count_as_one(method: str, tmp_path: Path) -> None:
    found = train(tmp_path / "run", f"ensemble={method}", "ensemble.size=2")
    (member,) = stored(tmp_path / "run").members
    assert {name.split(".")[1] for name in member.state} == {"0", "1"}
    first, second = (member.state[f"estimators.{number}.head.weight"] for number in (0, 1))
    assert not torch.equal(first, second)
    own = result(tmp_path / "run", f"00-{method}")
    assert found["metrics"]["val/loss"] == pytest.approx(own["best"]["val/loss"], abs=1e-5)
