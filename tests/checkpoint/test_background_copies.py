from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.checkpoint.background import HostBuffers
from lightkit.checkpoint.files import to_plain


def pointers(plain: dict) -> list[int]:
    return [value.data_ptr() for value in plain.values() if isinstance(value, torch.Tensor)]


def test_a_copy_shares_no_memory_with_the_state():
    state = {"w": torch.arange(6.0), "steps": 3, "deep": [{"x": torch.ones(2)}], "none": None}
    copied = HostBuffers().copy(state)
    state["w"].zero_()
    state["deep"][0]["x"].zero_()
    assert copied["w"].tolist() == [0, 1, 2, 3, 4, 5]
    assert copied["deep"][0]["x"].tolist() == [1, 1]
    assert (copied["steps"], copied["none"]) == (3, None)


def test_the_memory_is_used_again_for_the_same_shapes():
    buffers = HostBuffers()
    first = pointers(buffers.copy({"a": torch.ones(1000), "b": torch.ones(5)}))
    again = buffers.copy({"a": torch.full((1000,), 2.0), "b": torch.zeros(6)})
    assert pointers(again)[0] == first[0]
    assert again["a"].unique().tolist() == [2.0]
    assert again["b"].tolist() == [0.0] * 6
    assert buffers.copy({"b": torch.ones(6)})["b"].data_ptr() == pointers(again)[1]
    assert list(buffers._buffers) == ["checkpoint.b"]  # nothing is held for what is gone
    buffers.release()
    assert buffers._buffers == {}


def test_another_type_gets_other_memory():
    buffers = HostBuffers()
    buffers.copy({"a": torch.ones(4)})
    assert buffers.copy({"a": torch.ones(4, dtype=torch.int32)})["a"].dtype == torch.int32


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).T,
        torch.arange(10.0)[2:5],
        torch.arange(12.0).view(3, 4)[:, 1],
        torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.ones(3).expand(4, 3),
        torch.zeros(0, 3),
        torch.tensor(3),
        torch.ones(2, dtype=torch.complex64).conj(),
        nn.Parameter(torch.ones(2)),
        torch.eye(3).to_sparse(),
    ],
    ids=[
        "transposed",
        "slice",
        "column",
        "channels last",
        "expanded",
        "empty",
        "single",
        "conj",
        "parameter",
        "sparse",
    ],
)
def test_every_layout_is_copied(tensor):
    buffers = HostBuffers()
    for _ in range(2):
        copied = buffers.copy({"x": tensor})["x"]
        assert torch.equal(copied.to_dense(), tensor.detach().to_dense())
        assert not copied.requires_grad
        if copied.numel() and not copied.is_sparse:
            assert copied.data_ptr() != tensor.data_ptr()


def test_a_slice_of_a_large_storage_takes_the_memory_of_the_slice():
    copied = HostBuffers().copy({"x": torch.zeros(1_000_000)[:10]})["x"]
    assert copied.untyped_storage().nbytes() == 40


def test_tied_weights_stay_one():
    weight = nn.Parameter(torch.ones(3, 3))
    copied = HostBuffers().copy({"a": weight, "b": weight, "other": torch.ones(3, 3), "part": weight[:2]})
    assert copied["a"].data_ptr() == copied["b"].data_ptr()
    assert len({copied[name].data_ptr() for name in ("a", "other", "part")}) == 3


def test_empty_tensors_are_not_taken_for_one_another():
    copied = HostBuffers().copy({"a": torch.zeros(0, 3), "b": torch.zeros(3, 0)})
    assert (copied["a"].shape, copied["b"].shape) == ((0, 3), (3, 0))


def test_what_cannot_be_saved_is_named_and_the_memory_kept():
    buffers = HostBuffers()
    kept = buffers.copy({"a": torch.ones(3)})["a"]
    with pytest.raises(TypeError, match=r"checkpoint\.b\.c is a builtins\.set"):
        buffers.copy({"a": torch.zeros(3), "b": {"c": {1}}})
    assert kept.tolist() == [1, 1, 1]


def test_plain_gives_every_tensor_to_the_taker():
    seen = []
    to_plain({"a": [torch.ones(1)], "b": 2}, take=lambda tensor, where: seen.append(where) or tensor)
    assert seen == ["checkpoint.a[0]"]


@pytest.mark.gpu
def test_a_copy_from_a_gpu_holds_the_state_of_the_moment():
    buffers, weight = HostBuffers(), torch.zeros(50_000_000, device="cuda")
    for value in (1.0, 2.0):
        weight.fill_(value)
        copied = buffers.copy({"w": weight})["w"]
        weight.fill_(-1.0)  # training goes on while the copy is queued
        buffers.wait()
        assert copied.is_pinned()
        assert (copied.min(), copied.max()) == (value, value)
