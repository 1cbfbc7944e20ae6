"""Metrics of equal nodes: those of many models and splits are made once and copied."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightkit.assembly import build
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.metrics import SplitMetrics

CLASSES = ["data=digits", "metrics.val.auroc={_target_: torchmetrics.classification.MulticlassAUROC}"]
CLASSES += ["metrics.val.binned={_target_: torchmetrics.classification.MulticlassAUROC, thresholds: 20}"]
NUMBERS = ["data=csv", "data.dataset.path=table.csv", "data.dataset.target=y", "data.dataset.task=regression"]
NUMBERS += ["metrics=regression", "loss=mse"]


def counted(metrics: SplitMetrics, seed: int, like: list[str]) -> dict[str, float]:
    """The values of two batches that are drawn by a seed."""
    own = torch.Generator().manual_seed(seed)
    metrics.reset()
    for size in (30, 50):
        preds, target = _drawn(size, own, classes=like is CLASSES)
        metrics.update(preds, target, torch.ones(()), size)
    return metrics.compute()


def _drawn(size: int, own: torch.Generator, *, classes: bool) -> tuple[Tensor, Tensor]:
    if classes:
        return torch.randn(size, 10, generator=own), torch.randint(10, (size,), generator=own)
    return torch.randn(size, 1, generator=own), torch.randn(size, 1, generator=own)


@pytest.mark.parametrize("like", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_metrics_of_equal_nodes_count_apart_and_give_the_same_values(
    like: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("x,y\n" + "".join(f"{row},{row % 7}.5\n" for row in range(60)))
    cfg = compose(like).cfg
    first, second = (build(cfg, tmp_path / name).metrics["val"] for name in ("a", "b"))
    assert isinstance(first, SplitMetrics)
    assert isinstance(second, SplitMetrics)
    values = [counted(first, seed, like) for seed in (0, 1)]
    assert values[0] != values[1]
    assert [counted(second, seed, like) for seed in (0, 1)] == values
    half, other = second.state_dict(), counted(first, 2, like)
    assert second.compute() == values[1], "what one counts is no other's"
    second.load_state_dict(half)
    assert second.compute() == values[1]
    assert other == counted(build(cfg, tmp_path / "c").metrics["val"], 2, like)  # type: ignore[arg-type]


def test_a_copied_metric_looks_at_its_own_first_batch(tmp_path: Path) -> None:
    cfg = compose(["data=digits"]).cfg
    for name in ("a", "b"):
        metrics = build(cfg, tmp_path / name).metrics["val"]
        metrics.update(torch.randn(4, 10), torch.full((4,), 11), torch.ones(()), 4)
        with pytest.raises(UserError, match="the metric does not take what the model gives"):
            metrics.compute()
        metrics.reset()
        metrics.update(torch.randn(4, 10), torch.full((4,), 1), torch.ones(()), 4)
        assert metrics.compute().keys() >= {"val/loss", "val/accuracy"}
