"""Texts, hidden tokens, tags and images across a kill in the middle of an epoch, with other workers afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hub import overrides, save_reviews, save_tokenizer, sentences
from tests.resume.harness import BASE, Case, configured


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    for name in ("datasets", "transformers"):
        pytest.importorskip(name)


KINDS = {
    "texts": ("data.dataset.target=label",),
    "hidden tokens": (
        "data.dataset.task=masked_lm", "data.dataset.max_length=8", "loss=token_cross_entropy",
        "metrics=language_modeling",
    ),
    "tags": (
        "data.dataset.path=tagged", "data.dataset.text=words", "data.dataset.target=tags", "metrics=tagging",
    ),
    "images": (
        "data.dataset.path=pictures", "data.dataset.text=null", "data.dataset.image=image", "data.dataset.target=label",
        "data.dataset.size=16", "data.normalize=image",
    ),
}  # fmt: skip


VIT = "{hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, image_size: 16, patch_size: 8}"


def save_rows(folder: Path) -> None:
    """Write words with a tag each, and pictures."""
    from datasets import ClassLabel, Dataset, Features, Image, List, Value
    from PIL.Image import new

    words = [text.split() for text, _ in sentences(80)]
    tags = [[int(word in ("cat", "dog")) for word in own] for own in words]
    kinds = {"words": List(Value("string")), "tags": List(ClassLabel(names=["other", "noun"]))}
    Dataset.from_dict({"words": words, "tags": tags}, features=Features(kinds)).save_to_disk(folder / "tagged")
    images = {"image": [new("RGB", (20, 18), (3 * row, 40, 90)) for row in range(80)], "label": [0, 1] * 40}
    seen = Features({"image": Image(), "label": ClassLabel(names=["dark", "light"])})
    Dataset.from_dict(images, features=seen).save_to_disk(folder / "pictures")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.thorough(first=1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_goes_on_with_the_same_bits(project: Path, kind: str) -> None:
    save_reviews(project / "reviews")
    save_tokenizer(project / "words")
    if kind in ("tags", "images"):
        save_rows(project)
    base = [line for line in BASE if not line.startswith("model.")]
    model = {"kind": "vit", "config": f"model.config={VIT}"} if kind == "images" else {}
    words = overrides(*KINDS[kind], "logger.tensorboard.enabled=true", **model)
    case = Case(configured(*words, base=base), project / "case")
    moments = case.moments("micro")
    place = case.kill(moments[len(moments) // 2], "killed")
    case.resume(place, "data.num_workers=1")
    assert case.differences(place) == []
