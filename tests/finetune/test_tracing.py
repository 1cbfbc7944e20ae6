"""The parameters that compute the outputs of a network, read from a forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tests.finetune.strange as strange
from lightkit.common.modules import inside
from lightkit.finetune.head import find_head, guess_head
from lightkit.finetune.names import NetworkNames
from tests.finetune.outputs import CASES


def ran(model: nn.Module, x: Tensor) -> str | None:
    """Path of the output layer that a forward pass tells."""
    head = find_head(model, forwards=[lambda twin: twin(x)])
    assert head is None or head.found == "computed", head
    return head and head.path


def test_nothing_is_left_of_the_forward_pass() -> None:
    model: Any = strange.Quiet(4, 3).train()
    model.body.requires_grad_(False)
    assert ran(model, torch.rand(2, 4)) == "last"
    assert model.training
    assert model.seen is None
    assert model.times == 0
    assert [p.requires_grad for p in model.parameters()] == [True, True, False, False]


def test_a_network_of_convolutions_has_one_when_it_is_run() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2, stride=2), nn.Softmax(1))
    assert guess_head(model) is None
    assert ran(model, torch.rand(2, 1, 4, 4)) == "2"


def test_parametrized_and_shared_weights_are_found_in_their_layer() -> None:
    normal = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    assert ran(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), normal), torch.rand(2, 4)) == "2"

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.last = nn.Embedding(9, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(self.last(self.embed(x)), self.embed.weight)

    assert ran(Tied(), torch.zeros(2, 5, dtype=torch.long)) == "embed"


@pytest.mark.parametrize("name", CASES)
def test_all_that_makes_the_outputs_is_the_output_layer_and_nothing_else(name: str) -> None:
    case = CASES[name]
    model = case.make()
    head = find_head(model, forwards=[lambda twin: twin(case.x)])
    assert head is not None
    assert head.found == "computed"
    names = NetworkNames(model, head=head.path, beside=head.beside)
    wanted = {own for own in names.aliases if any(inside(own, path) for path in case.head)}
    assert len(wanted) >= len(case.head)
    assert names.match_parameters("@head", argument="train") == wanted
