"""Text of validation and test that stands in the training text too."""

from __future__ import annotations

import random

import pytest
import torch

from lightkit.data import TensorData
from lightkit.data.text import Text
from tests.doctor.data.planted import Examine, bad

SPLIT = {"by": "file", "val": 0.1, "test": 0.1}


def written(files: int, seed: int = 0) -> dict[str, str]:
    """Files of made-up words, none of which repeats another."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(400)]
    return {f"{number}.txt": " ".join(draw.choices(words, k=400)) for number in range(files)}


def test_different_files_are_fine(examine: Examine) -> None:
    found = examine(Text(texts=written(30), context_length=64), "overlap", split=SPLIT)
    assert [finding.status for finding in found] == ["ok", "ok"]
    assert found[0].numbers["repeated"] == 0


@pytest.mark.parametrize("header", ["", "A licence that differs.\n"])
def test_files_under_two_names_are_found(header: str, examine: Examine) -> None:
    files = written(20)
    files |= {f"copy of {name}": header + text for name, text in files.items()}
    found = bad(examine(Text(texts=files, context_length=64), "overlap", split=SPLIT))
    assert found
    assert found[0].numbers["share"] > 0.2


def test_padding_is_no_text_that_is_known(examine: Examine) -> None:
    draw = random.Random(1)
    files = {f"{number}.txt": "".join(draw.choices("abcdefgh ", k=20)) + " " * 300 for number in range(30)}
    assert not bad(examine(Text(texts=files, context_length=64), "overlap", split=SPLIT))


def test_padded_sentences_with_labels_are_compared_whole(examine: Examine) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(400, 64, dtype=torch.int64)
    x[:, :10] = torch.randint(1, 500, (400, 10), generator=generator)
    y = torch.randint(2, (400,), generator=generator)
    assert not bad(examine(TensorData(x, y), "overlap"))
    both = TensorData(torch.cat([x, x[:100]]), torch.cat([y, y[:100]]))
    assert len(bad(examine(both, "overlap"), "overlap of splits")) == 2
