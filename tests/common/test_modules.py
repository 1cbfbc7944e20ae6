from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.common.modules import (
    all_like,
    has_statistics,
    inside,
    is_bias,
    is_norm,
    is_shard,
    like,
    mapped,
    parameter_aliases,
    parent_of,
    part,
    path_of,
    replace_submodule,
    reshard,
    tensors,
    whole,
)


def test_biases_are_known_by_their_own_name() -> None:
    assert all(map(is_bias, ("bias", "body.0.bias", "attention.in_proj_bias", "rnn.bias_ih_l0")))
    assert not any(map(is_bias, ("weight", "bias_net.weight")))


def test_norms_of_pytorch_and_of_others() -> None:
    class RMSNorm2d(nn.Module):
        pass

    assert is_norm(nn.BatchNorm1d(2))
    assert is_norm(RMSNorm2d())
    assert not is_norm(nn.Linear(1, 1))
    assert has_statistics(nn.BatchNorm1d(2))
    assert not has_statistics(nn.LayerNorm(2))


def test_paths() -> None:
    assert (parent_of("a.b.c"), parent_of("a")) == ("a.b", "")
    assert inside("a.b", "a")
    assert inside("a", "a")
    assert inside("a", "")
    assert not inside("ab", "a")


def test_a_module_is_found_and_replaced() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    other = nn.Identity()
    assert path_of(model, model[0][0]) == "0.0"
    replace_submodule(model, "0.0", other)
    assert model[0][0] is other
    assert path_of(model, nn.Linear(1, 1)) is None


def test_shared_parameters_have_all_their_names() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    assert parameter_aliases(model) == {"a.weight": ["a.weight", "b.weight"]}
    assert torch.equal(model["a"].weight, model["b"].weight)


Pair = namedtuple("Pair", "a b")


@dataclass(frozen=True)
class Fields:
    a: Any
    b: Any = field(init=False, default=None)


class Output(OrderedDict):
    """One of those that refuse `update`, as the outputs of transformers do."""

    def update(self, *_: Any, **__: Any) -> None:
        raise AssertionError


ONE = torch.ones(1)
HOLDERS = [
    [ONE, "x"], (ONE, 2), Pair(ONE, None), {"a": ONE}, defaultdict(list, a=ONE), Output(a=ONE), Fields(ONE),
    {"a": [Fields((ONE,)), {"b": Output(c=ONE)}]},
]  # fmt: skip


@pytest.mark.parametrize("value", HOLDERS, ids=lambda value: type(value).__name__)
def test_what_holds_tensors_keeps_its_type_and_is_copied(value: Any) -> None:
    found = mapped(lambda tensor: tensor + 1, value)
    assert type(found) is type(value)
    assert found is not value
    assert "tensor([2.])" in repr(found)
    assert "tensor([1.])" not in repr(found)
    assert "tensor([2.])" not in repr(value)


def test_the_tensors_of_nested_values_in_their_order() -> None:
    two = torch.zeros(2)
    found = list(tensors({"a": [ONE, (two, "text")], "b": {"c": ONE}, "d": 3}))
    assert [id(tensor) for tensor in found] == [id(ONE), id(two), id(ONE)]


@pytest.mark.parametrize("value", [None, "text", 3, Fields(ONE), Fields({}.get("a")), Output(a=ONE), defaultdict(list)])
def test_where_nothing_changes_it_is_the_same_object(value: Any) -> None:
    assert mapped(lambda tensor: tensor, value) is value


@pytest.mark.thorough
def test_compilers_can_follow() -> None:
    def call(x: torch.Tensor) -> Any:
        return mapped(lambda tensor: tensor + 1, [x, {"a": (x, 3)}, Pair(x, None), OrderedDict(b=x)])

    torch._dynamo.reset()
    found = torch.compile(call, backend="eager", fullgraph=True)(ONE)
    assert repr(found) == repr(call(ONE))


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
