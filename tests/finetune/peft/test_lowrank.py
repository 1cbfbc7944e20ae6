"""The two matrices of LoRA: scale, start, dropout, precision."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.finetune.peft.lora import inject_lora
from lightkit.finetune.peft.lowrank import LowRank
from lightkit.finetune.peft.merging import merged_state
from tests.finetune.peft.low_rank import (
    IMPLS,
    LAYERS,
    Around,
    make,
    tuned,
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(("rslora", "scale"), [(False, 3 / 4), (True, 3 / 2)])
def test_scale(rslora, scale):
    model, _ = make("linear")
    tuned(model, "parametrize", rank=4, rslora=rslora)
    (low,) = (module for module in model.modules() if isinstance(module, LowRank))
    change = merged_state(model)["layer.weight"] - model.layer.parametrizations.weight.original
    assert torch.allclose(change, scale * low.lora_B @ low.lora_A, atol=1e-6)


@pytest.mark.parametrize("impl", IMPLS)
def test_matrices_come_from_the_generator(impl):
    def drawn(**options: Any) -> list[Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.Embedding(9, 4))
        inject_lora(model, {"0": 2, "1": 2}, alpha=1, impl=impl, **options)
        return [module.lora_A for module in model.modules() if isinstance(module, LowRank)]

    for options in ({}, {"generator": torch.Generator().manual_seed(1)}):
        first = drawn(**options)
        options = {key: torch.Generator().manual_seed(1) for key in options}
        assert all(torch.equal(a, b) for a, b in zip(first, drawn(**options)))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    model = nn.Linear(4, 4)
    drew = torch.get_rng_state()
    inject_lora(model, {"": 2}, alpha=1, dropout=0.5, impl=impl, generator=torch.Generator())
    assert not torch.equal(drew, state)
    assert torch.equal(torch.get_rng_state(), drew)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith("embedding")])
@pytest.mark.parametrize("impl", IMPLS)
def test_dropout_is_for_training_only(name, impl):
    model, x = make(name)
    tuned(model, impl, dropout=0.5)
    assert not torch.equal(model(*x), model(*x))
    model.eval()
    assert torch.equal(model(*x), model(*x))
    exact = model(*x)
    model.train()
    mean = torch.stack([model(*x) for _ in range(400)]).mean(dim=0)
    if not name.startswith("attention"):  # that is no linear function of its weights
        assert (mean - exact).abs().max() < 0.35 * max(1.0, exact.abs().max())


def test_what_is_dropped_for_whom():
    x = torch.ones(64, 6)
    for impl, several in (("parametrize", False), ("wrap", True)):
        model, _ = make("linear")
        tuned(model, impl, dropout=0.5)
        assert (len(model(x).unique(dim=0)) > 1) is several


@pytest.mark.parametrize("impl", IMPLS)
def test_embeddings_have_no_dropout_and_padding_stays(impl):
    model, (x,) = make("embedding")
    padding = model(torch.tensor([2]))
    names = tuned(model, impl, dropout=0.5, learnt=False)
    assert torch.equal(model(x), model(x))
    optimizer = torch.optim.SGD([dict(model.named_parameters())[name] for name in names], lr=0.5)
    for _ in range(3):
        (model(x) - 1).square().sum().backward()
        optimizer.step()
    assert torch.equal(model(torch.tensor([2])), padding)


@pytest.mark.parametrize("impl", IMPLS)
def test_an_argument_given_by_name(impl):
    model, (x,) = make("linear")
    tuned(model, impl)
    assert torch.equal(model.layer(input=x), model.layer(x))


def test_rows_with_a_largest_norm():
    model = Around(nn.Embedding(11, 6, max_norm=0.5))
    tuned(model, "parametrize")
    weights, x = copy.deepcopy(model.state_dict()), torch.arange(11)
    output, plain = model(x), Around(nn.Embedding(11, 6, max_norm=0.5))
    plain.load_state_dict(merged_state(model))
    assert output.norm(dim=1).max() <= 0.5 + 1e-4
    assert torch.allclose(plain(x), output, atol=1e-5)
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())


def test_sparse_gradients():
    model, x = Around(nn.Embedding(11, 6, sparse=True)), torch.tensor([[1, 3]])
    names = tuned(model, "wrap")
    model(x).sum().backward()
    assert [dict(model.named_parameters())[name].grad.is_sparse for name in names] == [False, True]


def test_low_precision_weights():
    for impl in IMPLS:
        model, x = make("linear")
        model.bfloat16()
        output = model(x[0].bfloat16())
        names = tuned(model, impl, learnt=False)
        assert torch.equal(model(x[0].bfloat16()), output)
        assert {dict(model.named_parameters())[name].dtype for name in names} == {torch.bfloat16}


@pytest.mark.parametrize("impl", IMPLS)
def test_moving_to_another_precision(impl):
    model, (x,) = make("conv2d, groups")
    tuned(model, impl)
    output = model(x)
    assert torch.allclose(model.double()(x.double()).float(), output, atol=1e-5)
