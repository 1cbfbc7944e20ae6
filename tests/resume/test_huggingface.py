"""Padded texts and hidden tokens across a kill in the middle of an epoch, with other workers afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hub import overrides, save_reviews, save_tokenizer
from tests.resume.harness import BASE, Case, configured

pytest.importorskip("datasets")
pytest.importorskip("transformers")

KINDS = {
    "texts": ("data.dataset.target=label",),
    "hidden tokens": (
        "data.dataset.task=masked_lm", "data.dataset.max_length=8", "loss=token_cross_entropy",
        "metrics=language_modeling",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.thorough(first=1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_goes_on_with_the_same_bits(project: Path, kind: str) -> None:
    save_reviews(project / "reviews")
    save_tokenizer(project / "words")
    base = [line for line in BASE if not line.startswith("model.")]
    case = Case(configured(*overrides(*KINDS[kind], "logger.tensorboard.enabled=true"), base=base), project / "case")
    moments = case.moments("micro")
    place = case.kill(moments[len(moments) // 2], "killed")
    case.resume(place, "data.num_workers=2")
    assert case.differences(place) == []
