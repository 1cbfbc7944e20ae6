"""Losses that contradict each other are named, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.assembly import build
from lightkit.config import compose, load_run
from lightkit.data.groups import row_marks
from lightkit.data.tensors import TensorData
from lightkit.ensemble.oof import SPLITS, MemberPredictions
from lightkit.ensemble.stacking import contradiction_lines, contradictions
from lightkit.runner import Runner

ROWS = 120


def copies(near: float = 0.0) -> TensorData:
    """Noise with labels of chance; each training row stands twice, the copy changed by a little."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2 * ROWS, 6, generator=generator), torch.randint(2, (2 * ROWS,), generator=generator)
    twin = x[:ROWS] + near * torch.randn(ROWS, 6, generator=generator)
    splits = {"train": torch.arange(2 * ROWS), "val": torch.arange(2 * ROWS, 2 * ROWS + 40)}
    splits["test"] = torch.arange(2 * ROWS + 40, 3 * ROWS)
    x, y = torch.cat([x[:ROWS], twin, x[ROWS:]]), torch.cat([y[:ROWS], y[:ROWS], y[ROWS:]])
    return TensorData(x, y, splits=splits)


FOLDS = ("ensemble.resample=folds", "ensemble.folds=2")


def run(folder: Path, near: float, *options: str) -> dict[str, Any]:
    copied = f"data.dataset={{_target_: tests.runner.ensemble.test_doubts.copies, near: {near}}}"
    texts = ["data=wine", "data.split.by=file", "data.normalize=none", "model.hidden=[64]", "optim.lr=0.02", copied]
    texts += ["trainer.test=last", "device=cpu", "metrics.figures=[]", "logger.tensorboard.enabled=false"]
    texts += ["logger.console.style=lines", "trainer.validate_every=20", "ensemble=bagging", *options]
    return Runner(compose(texts).cfg, folder).run()


@pytest.mark.thorough(first=0)
def test_near_copies_in_several_folds_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path / "run", 0.001, *FOLDS, "trainer.epochs=60")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["contradictions"] == result["contradictions"]
    for text in (capsys.readouterr().out, (tmp_path / "run" / "run.log").read_text()):
        assert "losses contradict each other" in text
    assert result["contradictions"][0]["low"]["on"] == "oof"
    assert result["contradictions"][0]["high"]["loss"] > 1.5 * result["contradictions"][0]["low"]["loss"]


@pytest.mark.parametrize("options", [FOLDS, ("ensemble.size=1",)], ids=["folds", "bootstrap"])
def test_equal_rows_are_learnt_from_together_or_not_at_all(options: tuple[str, ...], tmp_path: Path) -> None:
    assert run(tmp_path / "run", 0.0, *options, "trainer.epochs=1")["contradictions"] == []
    for folder in (tmp_path / "run" / "members").iterdir():
        data = build(load_run(folder).cfg, folder, pretrained=False, trains=False).data
        assert data.left_out is not None
        parts = [row_marks(data.source.x[rows]) for rows in (data.rows["train"], data.left_out)]
        assert not torch.isin(*parts).any()
        assert options != FOLDS or abs(len(parts[0]) - len(parts[1])) <= 2


def member(learnt: torch.Tensor, tested: torch.Tensor) -> MemberPredictions:
    """Predictions of a regression that are wrong by so much: of training rows, and of those of the test split."""
    errors, count = torch.cat([learnt, tested]), len(learnt) + len(tested)
    split = torch.tensor([SPLITS.index("train")] * len(learnt) + [SPLITS.index("test")] * len(tested)).to(torch.uint8)
    facts = torch.ones(count, dtype=torch.int64), errors[:, None].float(), torch.zeros(count), "regression"
    return MemberPredictions(torch.arange(count), split, *facts)


def test_chance_few_rows_and_rows_of_one_group_say_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    small, large = (torch.randn(200, generator=generator) * size for size in (1.0, 2.0))
    apart, alike, few = member(small, large), member(small, large / 2), member(small, large[:9])
    (pair,) = contradictions([[alike], [apart]])
    assert (pair["low"]["on"], pair["high"]["on"], pair["high"]["rows"]) == ("oof", "test", 200)
    assert "test rows" in contradiction_lines([pair])[0]
    assert not contradictions([[alike], [few], [member(small[:0], large[:0])]])
    (pair,) = contradictions([[apart]], apart=torch.arange(195))
    assert (pair["low"]["on"], pair["low"]["rows"]) == ("holdout", 195)
    # The same losses, where all rows of the test split but a few are of one person.
    groups = torch.arange(400).where(torch.arange(400) < 205, torch.tensor(399))
    assert not contradictions([[apart]], groups)
