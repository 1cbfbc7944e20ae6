"""LoRA on every kind of layer, in both ways, under everything that wraps, copies, saves or speeds up a network."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from lightkit.finetune.peft.lora import inject_lora, lora_b_names
from lightkit.finetune.peft.merging import merged_state
from tests.finetune.peft.low_rank import (
    EVERY,
    IMPLS,
    LAYERS,
    language_model,
    learn,
    make,
    tuned,
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(("name", "impl"), EVERY)
@pytest.mark.parametrize("rank", [1, 2])
def test_merged_is_the_plain_network(name, impl, rank):
    model, x = make(name)
    base, (plain, _) = model(*x), make(name)
    tuned(model, impl, rank=rank, rslora=rank == 2)
    trained = model(*x)
    model.eval(), plain.eval()
    plain.load_state_dict(merged_state(model), strict=True)
    with torch.no_grad():
        output = model(*x)
        assert (output - base).abs().max() > 0.01
        assert torch.allclose(output, trained, atol=1e-6)
        assert torch.allclose(plain(*x), output, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", LAYERS)
def test_both_ways_are_the_same_function_with_the_same_gradients(name):
    model, x = make(name)
    other = copy.deepcopy(model)
    mine, its = tuned(model, "parametrize"), tuned(other, "wrap")
    parameters, others = dict(model.named_parameters()), dict(other.named_parameters())
    with torch.no_grad():
        for first, second in zip(mine, its):
            others[second].copy_(parameters[first])
    assert torch.allclose(model(*x), other(*x), atol=1e-5)
    model(*x).square().sum().backward()
    other(*x).square().sum().backward()
    for first, second in zip(mine, its):
        assert torch.allclose(parameters[first].grad, others[second].grad, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("name", "impl"), EVERY)
def test_autocast(name, impl):
    model, x = make(name)
    tuned(model, impl)
    exact, (plain, _) = model(*x), make(name)
    plain.load_state_dict(merged_state(model))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(*x)
        if impl == "parametrize":
            assert torch.equal(output, plain(*x))
        assert output.dtype == plain(*x).dtype
    assert torch.allclose(output.float(), exact, atol=0.2)
    output.float().sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("impl", IMPLS)
def test_accumulated_gradients_are_those_of_the_whole_batch(impl):
    model, (x,) = make("conv2d, groups")
    names = tuned(model, impl)
    model(x).sum().backward()
    whole = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for part in x.split(2):
        model(part).sum().backward()
    assert all(torch.allclose(dict(model.named_parameters())[name].grad, whole[name], atol=1e-4) for name in names)


@pytest.mark.thorough
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("masked", [False, True])
def test_the_fast_path_of_encoders_sees_what_was_learnt(impl, masked):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    paths = [f"layers.{i}.{part}" for i in range(2) for part in ("self_attn", "linear1", "linear2")]
    plain = copy.deepcopy(model)
    learn(model, inject_lora(model, dict.fromkeys(paths, 2), alpha=4, impl=impl))
    x, hidden = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    hidden[0, 3:] = masked
    given = {"src_key_padding_mask": hidden} if masked else {}
    trained = model(x, **given)
    plain.load_state_dict(merged_state(model))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype, says PyTorch
        for network in (model.eval(), plain.eval()):
            assert torch.allclose(network(x, **given)[~hidden], trained[~hidden], atol=1e-5)


@pytest.mark.parametrize("impl", IMPLS)
def test_an_output_projection_is_never_called(impl):
    model, x = make("attention")
    names = inject_lora(model, {"layer.out_proj": 1}, alpha=1, impl=impl)
    learn(model, names)
    assert names == [f"layer.out_proj.parametrizations.weight.0.lora_{which}" for which in "AB"]
    model(*x).sum().backward()
    assert all(dict(model.named_parameters())[name].grad.abs().sum() > 0 for name in names)


def test_queries_keys_and_values_have_matrices_of_their_own():
    model, _ = make("attention")
    tuned(model, "parametrize", rank=1)
    change = merged_state(model)["layer.in_proj_weight"] - model.layer.parametrizations.in_proj_weight.original
    assert torch.linalg.matrix_rank(change, rtol=1e-4) == 3
    assert [torch.linalg.matrix_rank(part, rtol=1e-4) for part in change.chunk(3)] == [1, 1, 1]


def test_names():
    for impl, start in (("parametrize", "layer.parametrizations.weight.0"), ("wrap", "layer.lora")):
        model, _ = make("linear")
        assert tuned(model, impl) == [f"{start}.lora_A", f"{start}.lora_B"]
        assert lora_b_names(model) == [f"{start}.lora_B"]


@pytest.mark.thorough
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("path", ["embed.values", "head"])
def test_tied_layers_stay_tied(path, impl):
    (model, x), (plain, _) = language_model(), language_model()
    before = model(x)
    names = inject_lora(model, {path: 2}, alpha=2, impl=impl)
    assert torch.equal(model(x), before)
    assert len(names) == 2
    learn(model, names)
    assert lora_b_names(model) == names[1:]
    trained = model(x)
    merged = merged_state(model)
    assert merged["head.weight"] is merged["embed.values.weight"]
    plain.load_state_dict(merged, strict=True)
    assert torch.allclose(plain(x), trained, atol=1e-5)
    copied = copy.deepcopy(model)
    learn(copied, names)
    assert torch.equal(merged_state(copied)["head.weight"], merged_state(copied)["embed.values.weight"])
    assert torch.equal(model(x), trained)
    model(x).sum().backward()
    assert all(dict(model.named_parameters())[name].grad.abs().sum() > 0 for name in names)
