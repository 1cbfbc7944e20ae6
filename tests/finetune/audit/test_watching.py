"""What an audit watches: fingerprints of tensors, and the gradients that reach them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightkit.trainer.audit.observations import Fingerprints, GradientListener, fingerprint, row_fingerprints


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(fingerprint(a), fingerprint(b))


def numbers(kind: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.zeros(shape).to(kind) if kind == torch.bool else (torch.randn(shape) * 5).to(kind)


KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.complex128]
KINDS += [torch.int64, torch.int16, torch.uint8, torch.bool]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_change_of_a_bit_shows(kind: torch.dtype) -> None:
    for shape in ((), (1,), (7, 5), (70_000,)):
        start = numbers(kind, *shape)
        other = start.clone()
        assert same(start, other)
        other.reshape(-1).view(torch.uint8)[-1] ^= 1
        assert not same(start, other)


def test_shapes_of_memory_that_are_not_contiguous() -> None:
    image = torch.randn(2, 3, 5, 7)
    channels_last = image.to(memory_format=torch.channels_last)
    for view in (channels_last, image.transpose(1, 3), image[:, ::2], image.expand(2, 3, 5, 7)):
        other = view.clone(memory_format=torch.preserve_format)
        assert same(view, other)
        other[1, 0, 0, 0] += 1
        assert not same(view, other)
    matrix = torch.randn(6, 6)
    assert not same(matrix, matrix.flip(0))


def test_changes_that_cancel_out_in_plain_sums() -> None:
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        values = numbers(kind, 64)
        swapped = values.clone()
        swapped[[3, 40]] = values[[40, 3]]
        assert not any(same(values, other) for other in (-values, values.roll(1), swapped))
    assert not same(torch.tensor([0.0]), torch.tensor([-0.0]))
    long, moved = torch.zeros(200_000), torch.zeros(200_000)
    long[0], moved[65_536] = 1.0, 1.0
    assert not same(long, moved)


def test_unusual_tensors() -> None:
    broken = torch.tensor([1.0, torch.nan, torch.inf])
    assert same(broken, broken.clone())
    assert same(torch.empty(0, 3), torch.empty(0, 3))
    sparse = torch.eye(4).to_sparse()
    assert same(sparse, torch.eye(4).to_sparse())
    assert not same(sparse, (2 * torch.eye(4)).to_sparse())


def test_which_of_several_changed() -> None:
    sizes = {"a": 3, "b": 3, "gone": 1, "shape": 4, "empty": 0}
    tensors = {name: torch.ones(size) for name, size in sizes.items()}
    before = Fingerprints(tensors)
    tensors["b"][1] = 2.0
    del tensors["gone"]
    tensors |= {"shape": torch.ones(2, 2), "new": torch.ones(1)}
    assert before.changed(Fingerprints(tensors)) == {"b", "shape"}


def test_draws_no_random_numbers_and_needs_no_gradient() -> None:
    state = torch.get_rng_state()
    assert not fingerprint(nn.Parameter(torch.ones(3))).requires_grad
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(4,), (4, 0), (4, 7, 5), (2, 70_000)], ids=str)
def test_a_row_has_the_fingerprint_that_it_has_by_itself(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    rows = numbers(kind, *shape)
    prints = row_fingerprints(rows)
    assert prints.shape == (len(rows), 2)
    assert all(own.equal(fingerprint(row)) for own, row in zip(prints, rows))
    assert row_fingerprints(rows[1:]).equal(prints[1:])


# Gradients


def listened(model: nn.Module) -> GradientListener:
    return GradientListener({name: p for name, p in model.named_parameters() if p.requires_grad})


def test_listens_until_a_gradient_counts() -> None:
    weight, idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    seen = GradientListener({"weight": weight, "idle": idle})
    for factor, nonzero in ((0.0, set()), (torch.nan, set()), (1.0, {"weight"})):
        (weight * factor).sum().backward()
        seen.read()
        assert (seen.seen, seen.nonzero) == ({"weight"}, nonzero)
        weight.grad = None
    assert seen.nonfinite
    assert not weight._post_accumulate_grad_hooks
    assert idle._post_accumulate_grad_hooks
    seen.close()
    assert not idle._post_accumulate_grad_hooks


def test_other_devices_are_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = nn.Parameter(torch.ones(2))
    seen = GradientListener({"weight": weight})
    monkeypatch.setattr(GradientListener, "AT_ONCE", ())  # what happens on a GPU
    for factor in (0.0, 3.0, torch.inf):
        (weight * factor).sum().backward()
        weight.grad = None
    assert not seen.nonzero
    seen.read()
    assert (seen.nonzero, bool(seen.nonfinite)) == ({"weight"}, True)


def test_sparse_half_and_empty_gradients() -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    half, empty = nn.Parameter(torch.ones(2, dtype=torch.bfloat16)), nn.Parameter(torch.ones(0))
    seen = GradientListener({"embedding": embedding.weight, "half": half, "empty": empty})
    (embedding(torch.tensor([1])).sum() + half.float().sum() + empty.sum()).backward()
    assert seen.nonzero == {"embedding", "half"}
    assert seen.seen == {"embedding", "half", "empty"}


def test_copies_and_saved_weights_know_nothing_of_it() -> None:
    model = nn.Linear(2, 2)
    seen = listened(model)
    copy.deepcopy(model)(torch.ones(1, 2)).sum().backward()
    assert not seen.seen
    assert all(not tensor._post_accumulate_grad_hooks for tensor in model.state_dict().values())


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_under_compile_and_data_parallel(compiled: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    model[0].weight.requires_grad_(False)
    network = torch.compile(model, backend="aot_eager") if compiled else nn.DataParallel(model)
    seen = listened(model)
    for _ in range(2):
        network(torch.ones(2, 3)).sum().backward()
    assert {"2.weight", "2.bias"} <= seen.nonzero
    assert "0.weight" not in seen.seen
