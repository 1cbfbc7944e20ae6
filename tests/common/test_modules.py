from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.common.modules import (
    has_statistics,
    inside,
    is_bias,
    is_norm,
    parameter_aliases,
    parent_of,
    path_of,
    replace_submodule,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("bias", True), ("body.0.bias", True), ("attention.in_proj_bias", True), ("rnn.bias_ih_l0", True),
     ("weight", False), ("bias_net.weight", False)],
)  # fmt: skip
def test_biases_are_known_by_their_own_name(name: str, expected: bool) -> None:
    assert is_bias(name) == expected


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
