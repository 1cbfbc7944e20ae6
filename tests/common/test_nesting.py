from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from lightkit.common.modules import mapped, tensors

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


def test_compilers_can_follow() -> None:
    def call(x: torch.Tensor) -> Any:
        return mapped(lambda tensor: tensor + 1, [x, {"a": (x, 3)}, Pair(x, None), OrderedDict(b=x)])

    torch._dynamo.reset()
    found = torch.compile(call, backend="eager", fullgraph=True)(ONE)
    assert repr(found) == repr(call(ONE))
