from __future__ import annotations

import pytest
import torch

from lightkit.common.randomness import SampleRandom, mix


def test_mix_depends_on_every_part_and_on_nothing_else() -> None:
    values = [mix(0, "order", 1), mix(1, "order", 1), mix(0, "sample", 1), mix(0, "order", 2), mix(0, "order", 11)]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 2**63 for value in values)
    assert mix(0, "order", 1) == 7636051531545546627  # runs of earlier versions resume only while this stays


def test_parts_cannot_run_into_each_other() -> None:
    assert mix("ab", "c") != mix("a", "bc")


def test_a_sample_has_the_same_numbers_in_any_batch() -> None:
    whole = SampleRandom(7, torch.arange(10))
    part = SampleRandom(7, torch.arange(4, 6))
    assert torch.equal(whole.uniform(3)[4:6], part.uniform(3))
    assert torch.equal(whole.normal(2)[4:6], part.normal(2))


def test_draws_go_on_where_the_last_one_ended() -> None:
    once, twice = SampleRandom(7, torch.arange(5)), SampleRandom(7, torch.arange(5))
    assert torch.equal(once.uniform(4), torch.cat([twice.uniform(1), twice.uniform(3)], dim=1))


def test_uniform_normal_and_integers_have_their_moments() -> None:
    random = SampleRandom(mix("moments"), torch.arange(200_000))
    uniform, normal, integers = random.uniform(), random.normal(), random.integers(-2, 3)
    assert float(uniform.min()) >= 0
    assert float(uniform.max()) < 1
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(uniform.var()) == pytest.approx(1 / 12, abs=0.002)
    assert float(normal.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(normal.std()) == pytest.approx(1.0, abs=0.01)
    assert torch.isfinite(normal).all()
    assert torch.equal(integers.unique(), torch.arange(-2, 3))


def test_neighbours_and_lanes_are_uncorrelated() -> None:
    values = SampleRandom(3, torch.arange(100_000)).uniform(2)
    stacked = torch.stack([values[:-1, 0], values[1:, 0], values[:-1, 1]])
    correlation = torch.corrcoef(stacked)
    assert float((correlation - torch.eye(3)).abs().max()) < 0.015


def test_nothing_is_drawn_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    SampleRandom(0, torch.arange(3)).normal(3)
    assert torch.equal(before, torch.get_rng_state())


def test_few_numbers_and_many_are_the_same() -> None:
    """Few are drawn by NumPy, many by PyTorch."""
    many = SampleRandom(mix("many"), torch.arange(20_000))
    few = SampleRandom(mix("many"), torch.arange(19_990, 20_000))
    for _ in range(2):
        assert torch.equal(many.bits(3)[-10:], few.bits(3))
    assert torch.equal(many.uniform(2, -1.0, 3.0)[-10:], few.uniform(2, -1.0, 3.0))
    first, second = SampleRandom(0, torch.arange(1)).bits(2)[0].tolist()
    assert (first % 2**64, second % 2**64) == (_splitmix(_splitmix(0)), _splitmix(_splitmix(0) + GOLDEN))


GOLDEN = 0x9E3779B97F4A7C15


def _splitmix(value: int) -> int:
    value = (value + GOLDEN) % 2**64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % 2**64
    value ^= value >> 31
    return value
