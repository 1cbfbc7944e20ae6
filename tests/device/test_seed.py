from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.device.process import MicroSeed, seed_everything, set_threads, use_deterministic


def draws() -> tuple:
    return random.random(), float(np.random.rand()), torch.rand(2).tolist()


@pytest.fixture(autouse=True)
def _as_before():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.get_num_threads()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    torch.set_num_threads(states[3])
    use_deterministic(False)


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 5, 2**63 - 1])
def test_every_generator_is_seeded(seed):
    seed_everything(seed)
    first = draws()
    seed_everything(seed)
    assert draws() == first
    seed_everything(seed + 1 if seed < 2**63 - 1 else 0)
    assert all(left != right for left, right in zip(draws(), first))


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(UserError, match="seed: not a seed"):
        seed_everything(seed)


def test_a_batch_draws_the_same_whatever_came_before():
    micro = MicroSeed(3)
    micro(0, 32)
    first = torch.rand(4)
    micro(1, 0)
    torch.rand(100)
    micro(0, 32)
    assert torch.equal(torch.rand(4), first)
    MicroSeed(3)(0, 32)
    assert torch.equal(torch.rand(4), first)


def test_places_seeds_and_epochs_differ():
    seen = set()
    for seed in range(4):
        micro = MicroSeed(seed)
        for epoch in range(8):
            for samples_done in range(0, 320, 5):
                micro(epoch, samples_done)
                seen.add(tuple(torch.rand(3).tolist()))
    assert len(seen) == 4 * 8 * 64


def test_neighbouring_places_are_unrelated():
    micro, rows = MicroSeed(0), []
    for samples_done in range(400):
        micro(0, samples_done)
        rows.append(torch.rand(50))
    stacked = torch.stack(rows)
    assert abs(float(stacked.mean()) - 0.5) < 0.01
    correlation = torch.corrcoef(torch.stack([stacked[:-1].flatten(), stacked[1:].flatten()]))[0, 1]
    assert abs(float(correlation)) < 0.03


def test_deterministic_algorithms_on_and_off(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    use_deterministic(True)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    use_deterministic(False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.deterministic


def test_a_users_own_cublas_setting_stays(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    use_deterministic(True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_threads():
    set_threads(1)
    assert torch.get_num_threads() == 1
    set_threads(None)
    assert torch.get_num_threads() == 1
    with pytest.raises(UserError, match=r"threads: not a number of threads"):
        set_threads(0)
