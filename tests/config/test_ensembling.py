"""Mistakes of an ensemble that the configuration shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lightkit.config import compose


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["ensemble=voting", "checkpoint=none"], "checkpoint.enabled: an ensemble is made of the checkpoints"),
        (["ensemble=voting", "ensemble.member.index=3"], "ensemble.member.index: the method of an ensemble"),
        (
            ["ensemble=bagging", "ensemble.resample=folds", "ensemble.size=5"],
            "size: the folds are the members",
        ),
        (["ensemble=bagging", "ensemble.folds=3"], "ensemble.folds: rows are drawn with replacement"),
        (["ensemble=bagging", "data.split.by=ordered"], "ensemble.resample: a random draw"),
        (["ensemble=snapshot", "trainer.epochs=7"], "trainer.epochs: the cycles of snapshots"),
        (["ensemble=snapshot", "trainer.epochs=null", "trainer.steps=50"], "trainer.steps: the cycles of snapshots"),
        (["ensemble=fast_geometric", "ensemble.low=0.6"], "ensemble.low: the rate of a cycle"),
        (
            ["ensemble=voting", "ensemble.engine=processes", "device=ddp", "device.nproc=2"],
            "engine: each member",
        ),
    ],
)
def test_what_does_not_go_together_is_told(overrides: list[str], message: str, report: Callable[..., str]) -> None:
    text = report(*overrides)
    assert message in text
    assert "1 problem found" in text


def test_the_shipped_methods_go_with_the_defaults() -> None:
    for method in ("voting", "bagging", "fusion", "gradient_boosting", "soft_gradient_boosting", "greedy"):
        compose([f"ensemble={method}"])
    compose(["ensemble=snapshot", "trainer.epochs=10"])
    compose(["ensemble=bagging", "ensemble.resample=folds", "ensemble.size=null", "data.split.by=ordered"])
