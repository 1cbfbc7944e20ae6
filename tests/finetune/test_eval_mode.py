"""What rests beside the parameters of frozen parts: norm layers that a network holds, and the numbers of layers."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.finetune.names import NetworkNames
from lightkit.finetune.phases import Phase
from lightkit.finetune.tuning import (
    frozen_modules,
    frozen_norms,
    frozen_stateful_modules,
    has_state,
    norm_parameters,
    norms_held_by_model,
    with_norms_held_by_model,
)
from tests.finetune.spies import Centred, CentredAnyhow, HoldsNorms


class Counted(nn.Module):
    """Buffers that no mode of a module changes, or that are no numbers to compute with."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.count += self.training
        return x


class OwnNorm(nn.Module):
    """A norm layer that leaves its statistics to a function."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, training=self.training)


def spectral(width: int) -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(width, width))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Centred(3), True),
        (OwnNorm(3), True),
        (nn.utils.spectral_norm(nn.Linear(3, 3)), True),
        (spectral(3), False),
        (spectral(3).parametrizations.weight[0], True),
        (CentredAnyhow(3), False),
        (Counted(), False),
        (nn.Linear(3, 3), False),
        (nn.Dropout(0.5), False),
        (nn.MultiheadAttention(4, 2, dropout=0.5), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_that_keep_numbers_in_train_mode(module: nn.Module, expected: bool) -> None:
    assert has_state(module) == expected


def network() -> nn.Module:
    model = nn.Sequential()
    model.stem = nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 3)), spectral(3), Counted())
    model.body = nn.Sequential(OwnNorm(3), nn.BatchNorm1d(3))
    model.head = nn.Linear(3, 2)
    return model


ALL = {"stem.0", "stem.1.parametrizations.weight.0", "body.0"}


@pytest.mark.parametrize(
    ("trained", "bn", "expected"),
    [
        (["head.weight", "head.bias"], "frozen", ALL),
        (["head.weight"], "stats", set()),
        (["head.weight"], "train", set()),
        (["stem.0.bias", "stem.1.bias", "body.0.bias"], "frozen", ALL),
        (["body.0.weight"], "frozen", ALL - {"body.0"}),
        (["stem.0.weight_orig"], "frozen", ALL - {"stem.0"}),
        (["stem.1.parametrizations.weight.original"], "frozen", ALL - {"stem.1.parametrizations.weight.0"}),
    ],
)
def test_states_of_frozen_layers_rest(trained: list[str], bn: str, expected: set[str]) -> None:
    model = network()
    names = NetworkNames(model, head="head")
    assert frozen_stateful_modules(model, trained, names, trainable=frozenset(trained), bn=bn) == expected


def test_norm_layers_that_a_network_holds_are_found() -> None:
    model = HoldsNorms(3, 2)
    model.eval()
    held = norms_held_by_model(model)
    assert held == {"norm", "blocks.0.1", "blocks.1.1"}
    assert not any(module.training for module in model.modules())
    assert norms_held_by_model(network()) == frozenset()


def test_what_a_network_holds_may_depend_on_what_trains() -> None:
    class Holds(nn.Sequential):
        def train(self, mode: bool = True) -> Holds:
            super().train(mode)
            self[1].training = mode and self[0].weight.requires_grad
            return self

    model = Holds(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    everything = frozenset(name for name, _ in model.named_parameters())
    phases = [Phase(everything, epoch=0), Phase(everything - {"0.weight"}, epoch=1, frozen_norms=frozenset("2"))]
    assert [with_norms_held_by_model(model, phase).frozen_norms for phase in phases] == [frozenset(), frozenset("12")]


def with_norms() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5)),
            body=nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2, affine=False), nn.LayerNorm(2)),
            head=nn.Linear(2, 2),
        )
    )


def names_of(model: nn.Module) -> NetworkNames:
    return NetworkNames(model, head="head")


def test_norms_of_frozen_parts_rest() -> None:
    model = with_norms()
    names = names_of(model)
    head = names.find_parameters(["@head"], argument="k")
    assert frozen_norms(model, head, names, bn="frozen") == {"stem.1", "body.1"}
    assert frozen_norms(model, head, names, bn="stats") == frozenset()
    body = [*head, *names.find_parameters(["body"], argument="k")]
    assert frozen_norms(model, body, names, bn="frozen") == {"stem.1"}
    assert frozen_norms(model, ["stem.0.bias", "stem.1.bias"], names, bn="frozen") == {"stem.1", "body.1"}
    assert frozen_norms(model, ["stem.1.weight"], names, bn="frozen") == {"body.1"}
    # One weight that trains makes the part around it alive, and a norm without weights is what its part is.
    assert frozen_norms(model, ["body.0.bias"], names, bn="frozen") == {"stem.1"}
    assert frozen_norms(model, list(names.aliases), names, bn="frozen") == frozenset()


def test_norm_layers_with_statistics_are_those_that_bn_speaks_of() -> None:
    model = with_norms()
    names = names_of(model)
    assert norm_parameters(model, set(names.aliases), names) == {"stem.1.weight", "stem.1.bias"}


def test_modules_without_parameters_are_what_the_part_around_them_is() -> None:
    model = with_norms()
    names = names_of(model)
    frozen = frozen_modules(model, names.find_parameters(["body", "@head"], argument="k"), names)
    assert {"stem", "stem.0", "stem.1", "stem.2"} == frozen
    assert "" in frozen_modules(model, [], names)
