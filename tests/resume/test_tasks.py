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
TEXTS = (
    "data=texts", "data.dataset.path=texts.csv", "model.dim=8", "model.depth=1", "model.dropout=0.1", "~model.hidden",
)  # fmt: skip
TAGS = (*TEXTS, "data.dataset.tags=true", "data.dataset.target=tags", "metrics=tagging")
SERIES = (
    "data=series", "data.dataset.path=series.csv", "data.dataset.context=8", "data.dataset.horizon=4", "model=mlp",
    "data.dataset.season=4", "trainer.task._target_=lightkit.trainer.Forecast", "model.dropout=0.1",
)  # fmt: skip
GAN = ("experiment=gan_ring", "data.dataset.rows=150", "model.hidden=8", "~optim.lr")
KINDS = {
    "several optimizers": GAN,
    "tags": TAGS,
    "texts": TEXTS,
    "series": SERIES,
    "several heads": HEADS,
    "two views": VIEWS,
}


def write_tables() -> None:
    words = ["the cat sat", "a dog ran on a road", "cat", "dog dog dog"] * 16
    rows = [f"{text},{number % 2},{' '.join(word[0] for word in text.split())}" for number, text in enumerate(words)]
    Path("texts.csv").write_text("\n".join(["text,target,tags", *rows]))
    Path("series.csv").write_text("\n".join(["time,value", *(f"{at},{at % 4 + at / 50}" for at in range(120))]))


@pytest.mark.thorough(first=1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_goes_on_with_the_same_bits(project: Path, kind: str) -> None:
    write_tables()
    case = Case(configured(*KINDS[kind]), project / "case")
    moments = case.moments("micro")
    place = case.kill(moments[len(moments) // 2], "killed")
    case.resume(place, "data.num_workers=1")
    assert case.differences(place) == []
