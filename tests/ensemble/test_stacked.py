"""Many models computed at once: the weights in their places, and the loss in fewer operations."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from lightkit.ensemble.stacked import Computation, StackedModel, cheap_cross_entropy
from lightkit.trainer.tasks import Supervised


@pytest.mark.parametrize("shape", [(3, 8, 5), (3, 4, 5, 6), (2, 4, 3, 6, 6)])
@pytest.mark.parametrize("ignored", [False, True])
def test_cross_entropy_by_plain_operations_gives_the_same_bits(shape, ignored):
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    target = torch.randint(shape[2], (*shape[:2], *shape[3:]))
    target[:, 0] = -100 if ignored else target[:, 0]
    found = []
    for cheap in (False, True):
        if cheap:
            with cheap_cross_entropy():
                losses = vmap(lambda x, y: F.cross_entropy(x, y))(x, target)
        else:
            losses = vmap(lambda x, y: F.cross_entropy(x, y))(x, target)
        found.append((losses, *torch.autograd.grad(losses.sum(), x)))
    assert all(torch.equal(one, other) for one, other in zip(*found))


@pytest.mark.parametrize(
    "options",
    [
        {"weight": torch.tensor([1.0, 2.0, 3.0])},
        {"label_smoothing": 0.1},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"ignore_index": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_cross_entropy_with_options_is_what_it_is_alone(options):
    torch.manual_seed(0)
    x, target = torch.randn(6, 3), torch.randint(3, (6,))
    expected = F.cross_entropy(x, target, **options)
    with cheap_cross_entropy():
        assert torch.allclose(F.cross_entropy(x, target, **options), expected)
    assert torch.equal(F.cross_entropy(x, target, **options), expected)


class Tied(nn.Module):
    """Has one weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self.norm(self.first(x)))
        return found


def test_weights_are_put_in_all_their_places_and_taken_out_again():
    torch.manual_seed(0)
    models = [Tied() for _ in range(3)]
    alone = copy.deepcopy(models)
    x, y = torch.randn(3, 8, 4), torch.randint(4, (3, 8))
    stack = StackedModel(models)
    places = {name: id(tensor) for name, tensor in (*models[0].named_parameters(), *models[0].named_buffers())}
    stack.train()
    found = Computation(stack, models[0], Supervised(), nn.CrossEntropyLoss())((x, y))
    for place, model in enumerate(alone):
        loss = F.cross_entropy(model(x[place]), y[place])
        assert torch.allclose(found.loss[place], loss, atol=1e-6)
        assert torch.allclose(stack.states["norm.running_mean"][place], model.norm.running_mean, atol=1e-6)
    kept = {name: id(tensor) for name, tensor in (*models[0].named_parameters(), *models[0].named_buffers())}
    assert kept == places
