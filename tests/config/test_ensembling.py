"""Mistakes of an ensemble that the configuration shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

from lightkit.config import compose, to_plain
from lightkit.config.project import shipped_conf


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
        (["ensemble.member.weights_of=../../mine"], "ensemble.member.weights_of: the name of a folder leads nowhere"),
        (["ensemble.member.adds_to=[/tmp/mine]"], "ensemble.member.adds_to: the name of a folder leads nowhere"),
        (["ensemble.member.features=[[a],['..']]"], "ensemble.member.features: the name of a folder does not begin"),
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


METHODS = sorted(path.stem for path in (shipped_conf() / "ensemble").glob("*.yaml"))
NEEDED = {"snapshot": ["trainer.epochs=10"], "fast_geometric": ["trainer.epochs=10"]}


@pytest.mark.parametrize("method", METHODS)
def test_every_shipped_method_is_composed_and_checked(method: str) -> None:
    composed = compose([f"ensemble={method}", *NEEDED.get(method, [])])
    node = yaml.safe_load((shipped_conf() / "ensemble" / f"{method}.yaml").read_text(encoding="utf-8"))
    node.pop("meta", None)  # its keys become those of the command line
    found = to_plain(composed.cfg.ensemble)
    assert {key: found[key] for key in node} == node


@pytest.mark.parametrize("method", sorted({*METHODS} - {"none"}))
def test_an_unknown_setting_of_a_shipped_method_is_told(method: str, report: Callable[..., str]) -> None:
    text = report(f"ensemble={method}", "ensemble.sizes=3", *NEEDED.get(method, []))
    assert "ensemble.sizes" in text
    assert "1 problem found" in text


def test_the_shipped_methods_go_with_the_defaults() -> None:
    for method in ("voting", "bagging", "fusion", "gradient_boosting", "soft_gradient_boosting", "greedy"):
        compose([f"ensemble={method}"])
    compose(["ensemble=snapshot", "trainer.epochs=10"])
    compose(["ensemble=bagging", "ensemble.resample=folds", "ensemble.size=null", "data.split.by=ordered"])
