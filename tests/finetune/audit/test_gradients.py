from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightkit.trainer.audit.gradients import GradientListener


def listened(model: nn.Module) -> GradientListener:
    return GradientListener({name: p for name, p in model.named_parameters() if p.requires_grad})


def test_listens_until_a_gradient_counts() -> None:
    weight, idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    seen = GradientListener({"weight": weight, "idle": idle})
    for factor, touched, reached in (
        (0.0, {"weight"}, set()),
        (torch.nan, {"weight"}, set()),
        (1.0, {"weight"}, {"weight"}),
    ):
        (weight * factor).sum().backward()
        seen.read()
        assert (seen.seen, seen.nonzero) == (touched, reached if weight.grad.isfinite().all() else set())
        weight.grad = None
    assert seen.nonfinite
    assert not weight._post_accumulate_grad_hooks
    assert idle._post_accumulate_grad_hooks
    seen.close()
    assert not idle._post_accumulate_grad_hooks


def test_other_devices_are_asked_only_when_read(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = nn.Parameter(torch.ones(2))
    seen = GradientListener({"weight": weight})
    monkeypatch.setattr(GradientListener, "AT_ONCE", ())  # what happens on a GPU
    for factor in (0.0, 3.0, torch.inf):
        (weight * factor).sum().backward()
        weight.grad = None
    assert not seen.nonzero
    seen.read()
    assert seen.nonzero == {"weight"}
    assert seen.nonfinite


def test_sparse_half_and_empty_gradients() -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    half = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    empty = nn.Parameter(torch.ones(0))
    seen = GradientListener({"embedding": embedding.weight, "half": half, "empty": empty})
    (embedding(torch.tensor([1])).sum() + half.float().sum() + empty.sum()).backward()
    assert seen.nonzero == {"embedding", "half"}
    assert seen.seen == {"embedding", "half", "empty"}


def test_copies_and_saved_weights_know_nothing_of_it() -> None:
    model = nn.Linear(2, 2)
    seen = listened(model)
    twin = copy.deepcopy(model)
    twin(torch.ones(1, 2)).sum().backward()
    assert not seen.seen
    assert all(not tensor._post_accumulate_grad_hooks for tensor in model.state_dict().values())


def test_numbers_are_the_same_with_it() -> None:
    def train(listen: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = listened(model) if listen else None
        for _ in range(3):
            model(torch.ones(3, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert seen is None or len(seen.nonzero) >= 3
        return list(model.state_dict().values())

    assert all(torch.equal(a, b) for a, b in zip(train(True), train(False)))


def test_under_compile_and_data_parallel() -> None:
    for wrap in (lambda model: torch.compile(model, backend="aot_eager"), nn.DataParallel):
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
        model[0].weight.requires_grad_(False)
        network, seen = wrap(model), listened(model)
        for _ in range(2):
            network(torch.ones(2, 3)).sum().backward()
        assert {"2.weight", "2.bias"} <= seen.nonzero
        assert "0.weight" not in seen.seen
