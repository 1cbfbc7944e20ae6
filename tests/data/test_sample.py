"""Single samples and the generators that a data set draws from."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.data.transforms import GaussianNoise
from tests.data.pictures import DATA, Silent, joined, make


@pytest.mark.parametrize(("kind", "workers"), [("memory", 0), ("samples", 0), ("samples", 2)])
def test_global_generators_are_left_alone(made: Any, kind: str, workers: int) -> None:
    data = made(DATA[kind](), num_workers=workers, augment=(GaussianNoise(),), mixup={"alpha": 0.4})
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    joined(data.train, 0)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def test_what_draws_nothing_is_read_without_seeding() -> None:
    train = make(Silent()).train
    random.seed(5)
    expected = random.random()
    random.seed(5)
    joined(train, 0)
    assert random.random() == expected
