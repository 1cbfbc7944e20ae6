"""Which layers are gathered by themselves, and tensors that are whole."""

from __future__ import annotations

import torch
from torch import nn

from lightkit.common.shards import all_like, is_shard, like, whole
from lightkit.device.parallel import Sharded, make_parallel
from lightkit.device.sharding import layers


def test_one_process_is_the_plain_case() -> None:
    model, parallel = nn.Linear(2, 1), make_parallel("fsdp", torch.device("cpu"))
    assert isinstance(parallel, Sharded)
    assert parallel.wrap(model) is model
    with parallel.accumulating(model, True):
        pass
    assert parallel.describe() == ", FSDP2 over 1"


def test_layers_of_sequences_and_lists_from_the_inside_out() -> None:
    inner = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 2))
    blocks = nn.ModuleList([nn.Linear(10, 10), nn.Linear(10, 10)])
    model = nn.ModuleDict({"a": nn.Sequential(inner, nn.Linear(2, 2)), "b": blocks})
    found = layers(model, 100)
    assert {id(layer) for layer in found} == {id(layer) for layer in (inner, inner[0], *blocks)}
    assert found.index(inner[0]) < found.index(inner)
    assert layers(model, 10_000) == []


def test_tied_weights_stay_in_one_piece() -> None:
    first, second = nn.Linear(10, 10), nn.Linear(10, 10)
    second.weight = first.weight
    assert layers(nn.Sequential(first, second), 1) == []


def test_whole_tensors_are_left_alone() -> None:
    tensor = torch.ones(3)
    nested = {"a": [tensor, (tensor, 1)], "b": "text"}
    found = whole(nested)
    assert found["a"][0] is tensor
    assert found["a"][1] == (tensor, 1)
    assert found["b"] == "text"
    assert not is_shard(tensor)
    assert like(tensor, torch.zeros(3)) is tensor
    assert all_like({"a": tensor, "b": 3}, {"a": torch.zeros(3)})["a"] is tensor
