"""A sampler, a function of all predictions and metrics of texts: across a kill, and in several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.resume.harness import Case
from tests.resume.harness import configured as alone
from tests.runner.processes import configured, series, train

FUNCTION = "{{_target_: lightkit.metrics.Function, function: sklearn.metrics.{}}}"
WINE = (
    "data=wine",
    "data.sampler._target_=lightkit.data.samplers.Balanced",
    *(f"metrics.{split}.loss2={FUNCTION.format('log_loss')}" for split in ("train", "val", "test")),
    f"metrics.val.mcc={FUNCTION.format('matthews_corrcoef')}",
)
TEXTS = (
    "data=text", "data.dataset.path=text.txt", "data.dataset.context_length=16", "data.sampler.replacement=true",
    "data.sampler._target_=torch.utils.data.RandomSampler", "model=lstm_lm", "model.dim=8", "~model.hidden",
    *(f"metrics.{split}.m={{_target_: torchmetrics.text.{name}}}" for split, name in
      (("train", "CHRFScore"), ("val", "EditDistance"), ("test", "BLEUScore"))),
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("overrides", [WINE, TEXTS], ids=["wine", "texts"])
def test_a_run_that_was_killed_goes_on_with_the_same_bits(project: Path, overrides: tuple[str, ...]) -> None:
    (project / "text.txt").write_text("the cat sat on the mat, and the dog ran on a road.\n" * 24)
    case = Case(alone(*overrides, "trainer.epochs=2"), project / "case")
    moments = case.moments("micro")
    place = case.kill(moments[len(moments) // 2], "killed")
    case.resume(place)
    assert case.differences(place) == []


def test_values_of_two_processes_are_those_of_one(project: Path) -> None:
    cfg = configured(*WINE, "trainer.epochs=1")
    one, two = (series(train(project / f"of{count}", cfg, count)) for count in (1, 2))
    assert one.keys() == two.keys()
    assert {name for _, name in one} >= {"train/loss2", "val/loss2", "val/mcc", "test/loss2"}
    assert all(two[place] == pytest.approx(value, rel=1e-3, abs=1e-4) for place, value in one.items())
