from __future__ import annotations

import torch
from torch import nn

from lightkit.common.modules import all_like, is_shard, like, part, reshard, whole


def test_whole_tensors_are_left_alone() -> None:
    tensor = torch.ones(3)
    nested = {"a": [tensor, (tensor, 1)], "b": "text"}
    found = whole(nested)
    assert found["a"][0] is tensor
    assert found["a"][1] == (tensor, 1)
    assert found["b"] == "text"
    assert not is_shard(tensor)
    assert part(tensor) is tensor
    reshard(nn.Linear(1, 1))
    assert like(tensor, torch.zeros(3)) is tensor
    assert all_like({"a": tensor, "b": 3}, {"a": torch.zeros(3)})["a"] is tensor
