from __future__ import annotations

import pytest
import torch

from lightkit.trainer.audit.fingerprints import Fingerprints, fingerprint, row_fingerprints

KINDS = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(fingerprint(a), fingerprint(b))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7, 5), (70_000,)], ids=str)
def test_every_change_of_a_bit_shows(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    start = torch.zeros(shape).to(kind) if kind == torch.bool else (torch.randn(shape) * 5).to(kind)
    other = start.clone()
    assert same(start, other)
    raw = other.reshape(-1).view(torch.uint8)
    raw[-1] ^= 1
    assert not same(start, other)


def test_shapes_of_memory_that_are_not_contiguous() -> None:
    image = torch.randn(2, 3, 5, 7)
    for view in (
        image.to(memory_format=torch.channels_last),
        image.transpose(1, 3),
        image[:, ::2],
        image.expand(2, 3, 5, 7),
    ):
        other = view.clone(memory_format=torch.preserve_format)
        assert same(view, other)
        other[1, 0, 0, 0] += 1
        assert not same(view, other)
    matrix = torch.randn(6, 6)
    assert not same(matrix, matrix.flip(0))


def test_changes_that_cancel_out_in_plain_sums() -> None:
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        numbers = torch.randn(64).to(kind)
        assert not same(numbers, -numbers)
        assert not same(numbers, numbers.roll(1))
        swapped = numbers.clone()
        swapped[[3, 40]] = numbers[[40, 3]]
        assert not same(numbers, swapped)
    assert not same(torch.tensor([0.0]), torch.tensor([-0.0]))
    long = torch.zeros(200_000)
    moved = long.clone()
    long[0], moved[65_536] = 1.0, 1.0
    assert not same(long, moved)


def test_nan_is_equal_to_itself_and_empty_is_fine() -> None:
    broken = torch.tensor([1.0, torch.nan, torch.inf])
    assert same(broken, broken.clone())
    assert same(torch.empty(0, 3), torch.empty(0, 3))


def test_sparse_tensors() -> None:
    sparse = torch.eye(4).to_sparse()
    assert same(sparse, torch.eye(4).to_sparse())
    assert not same(sparse, (2 * torch.eye(4)).to_sparse())


def test_which_of_several_changed() -> None:
    tensors = {
        "a": torch.ones(3),
        "b": torch.ones(3),
        "gone": torch.ones(1),
        "shape": torch.ones(4),
        "empty": torch.ones(0),
    }
    before = Fingerprints(tensors)
    tensors["b"][1] = 2.0
    del tensors["gone"]
    tensors |= {"shape": torch.ones(2, 2), "new": torch.ones(1)}
    assert before.changed(Fingerprints(tensors)) == {"b", "shape"}


def test_draws_no_random_numbers_and_needs_no_gradient() -> None:
    state = torch.get_rng_state()
    weight = torch.nn.Parameter(torch.ones(3))
    assert not fingerprint(weight).requires_grad
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(4,), (4, 0), (4, 7, 5), (3, 40_000), (2, 70_000)], ids=str)
def test_a_row_has_the_fingerprint_that_it_has_alone(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    rows = (torch.randn(shape) * 5).to(kind)
    found = row_fingerprints(rows)
    assert found.shape == (len(rows), 2)
    assert all(own.equal(fingerprint(row)) for own, row in zip(found, rows))
    assert row_fingerprints(rows[1:]).equal(found[1:])
