"""LoRA on every kind of layer, in both ways: which weights, at which scale, with what dropout, and what is refused."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError, UserErrors
from lightkit.finetune.peft.lora import inject_lora, lora_b_names
from lightkit.finetune.peft.lowrank import LowRank
from lightkit.finetune.peft.merging import merged_state
from lightkit.models import TransformerLM
from tests.finetune.peft.networks import IMPLS, LAYERS, Around, attention, layer, stir, with_lora

both = pytest.mark.parametrize("impl", IMPLS)


class Odd(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight - self.weight.mean(), self.bias)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def language_model() -> tuple[TransformerLM, Tensor]:
    return TransformerLM(13, 8, dim=8, depth=1, heads=2), torch.randint(0, 13, (2, 8))


def plain_of(model: nn.Module, plain: nn.Module) -> nn.Module:
    """The plain network with what was learnt merged in."""
    plain.load_state_dict(merged_state(model), strict=True)
    return plain.eval()


@pytest.mark.parametrize("name", LAYERS)
@both
def test_merged_is_the_plain_network(name: str, impl: str) -> None:
    model, x = layer(name)
    base, (plain, _) = model(*x), layer(name)
    with_lora(model, impl, rank=2, rslora=impl == "wrap")
    trained = model(*x)
    with torch.no_grad():
        output = model.eval()(*x)
        assert (output - base).abs().max() > 0.01
        assert torch.allclose(output, trained, atol=1e-6)
        assert torch.allclose(plain_of(model, plain)(*x), output, atol=1e-5, rtol=0)


def test_layers_with_a_forward_of_their_own_can_be_parametrized() -> None:
    model, x = Around(Odd()), torch.randn(3, 4)
    with_lora(model, "parametrize")
    assert torch.allclose(plain_of(model, Around(Odd()))(x), model(x), atol=1e-6)


@pytest.mark.parametrize(("rslora", "scale"), [(False, 3 / 4), (True, 3 / 2)])
def test_scale(rslora: bool, scale: float) -> None:
    model, _ = layer("linear")
    with_lora(model, "parametrize", rank=4, rslora=rslora)
    (low,) = (module for module in model.modules() if isinstance(module, LowRank))
    change = merged_state(model)["layer.weight"] - model.layer.parametrizations.weight.original
    assert torch.allclose(change, scale * low.lora_B @ low.lora_A, atol=1e-6)


def test_a_weight_is_rounded_once_under_autocast() -> None:
    for impl in IMPLS:
        model, x = layer("linear")
        with_lora(model, impl)
        plain = plain_of(model, layer("linear")[0])
        with torch.autocast("cpu", torch.bfloat16):
            output = model(*x)
            assert output.dtype == plain(*x).dtype
            assert torch.equal(output, plain(*x)) == (impl == "parametrize")


@both
def test_the_fast_path_of_encoders_sees_what_was_learnt(impl: str) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2)
    paths = [f"layers.{i}.{part}" for i in range(2) for part in ("self_attn", "linear1", "linear2")]
    plain = copy.deepcopy(model)
    stir(model, inject_lora(model, dict.fromkeys(paths, 2), alpha=4, impl=impl))
    x, hidden = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    hidden[0, 3:] = True
    trained = model(x, src_key_padding_mask=hidden)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype, says PyTorch
        for network in (model.eval(), plain_of(model, plain)):
            assert torch.allclose(network(x, src_key_padding_mask=hidden)[~hidden], trained[~hidden], atol=1e-5)


# Names, and which weights


def test_names() -> None:
    for impl, start in (("parametrize", "parametrizations.weight.0"), ("wrap", "lora")):
        model, _ = layer("linear")
        assert with_lora(model, impl) == [f"layer.{start}.lora_A", f"layer.{start}.lora_B"]
        assert lora_b_names(model) == [f"layer.{start}.lora_B"]
        own, x = nn.Linear(4, 3), torch.randn(2, 4)
        names = stir(own, inject_lora(own, {"": 2}, alpha=1, impl=impl))
        assert names == [f"{start}.lora_A", f"{start}.lora_B"]
        assert torch.allclose(plain_of(own, nn.Linear(4, 3))(x), own(x), atol=1e-6)


def test_queries_keys_and_values_have_matrices_of_their_own() -> None:
    model, _ = layer("attention")
    with_lora(model, "parametrize", rank=1)
    change = merged_state(model)["layer.in_proj_weight"] - model.layer.parametrizations.in_proj_weight.original
    assert torch.linalg.matrix_rank(change, rtol=1e-4) == 3
    assert [torch.linalg.matrix_rank(part, rtol=1e-4) for part in change.chunk(3)] == [1, 1, 1]


@both
def test_an_output_projection_is_never_called(impl: str) -> None:
    model, x = layer("attention")
    names = stir(model, inject_lora(model, {"layer.out_proj": 1}, alpha=1, impl=impl))
    assert names == [f"layer.out_proj.parametrizations.weight.0.lora_{which}" for which in "AB"]
    model(*x).sum().backward()
    assert all(dict(model.named_parameters())[name].grad.abs().sum() > 0 for name in names)


def test_an_output_projection_may_have_a_rank_of_its_own() -> None:
    model, _ = layer("attention")
    inject_lora(model, {"layer": 3, "layer.out_proj": 1}, alpha=1)
    assert {name: tuple(p.shape) for name, p in model.named_parameters() if "lora" in name} == {
        "layer.parametrizations.in_proj_weight.0.lora_A": (3, 3, 8),
        "layer.parametrizations.in_proj_weight.0.lora_B": (3, 8, 3),
        "layer.out_proj.parametrizations.weight.0.lora_A": (1, 8),
        "layer.out_proj.parametrizations.weight.0.lora_B": (8, 1),
    }


@both
@pytest.mark.parametrize("path", ["embed.values", "head"])
def test_tied_layers_stay_tied(path: str, impl: str) -> None:
    (model, x), (plain, _) = language_model(), language_model()
    before = model(x)
    names = inject_lora(model, {path: 2}, alpha=2, impl=impl)
    assert torch.equal(model(x), before)
    stir(model, names)
    assert lora_b_names(model) == names[1:]
    trained, merged = model(x), merged_state(model)
    assert merged["head.weight"] is merged["embed.values.weight"]
    assert torch.allclose(plain_of(model, plain)(x), trained, atol=1e-5)
    copied = copy.deepcopy(model)
    stir(copied, names, seed=8)
    assert torch.equal(merged_state(copied)["head.weight"], merged_state(copied)["embed.values.weight"])
    assert torch.equal(model(x), trained)


@both
def test_a_layer_used_twice_is_adapted_once(impl: str) -> None:
    shared = nn.Linear(4, 4)
    model, x = nn.Sequential(shared, nn.ReLU(), shared), torch.randn(2, 4)
    plain = copy.deepcopy(model)
    assert len(stir(model, inject_lora(model, {"0": 2}, alpha=1, impl=impl))) == 2
    assert torch.allclose(plain_of(model, plain)(x), model(x), atol=1e-5)


# Draws, dropout and precision


@both
def test_matrices_come_from_the_generator(impl: str) -> None:
    def drawn(generator: torch.Generator | None) -> list[Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.Embedding(9, 4))
        inject_lora(model, {"0": 2, "1": 2}, alpha=1, impl=impl, generator=generator)
        return [module.lora_A for module in model.modules() if isinstance(module, LowRank)]

    for seed in (None, 1):
        first, second = (drawn(seed and torch.Generator().manual_seed(seed)) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, second))
    model, drew = nn.Linear(4, 4), torch.get_rng_state()
    inject_lora(model, {"": 2}, alpha=1, dropout=0.5, impl=impl, generator=torch.Generator())
    assert torch.equal(torch.get_rng_state(), drew)


@both
@pytest.mark.parametrize("name", ["linear", "conv2d, groups", "attention"])
def test_dropout_is_for_training_only(name: str, impl: str) -> None:
    model, x = layer(name)
    with_lora(model, impl, dropout=0.5)
    assert not torch.equal(model(*x), model(*x))
    model.eval()
    exact = model(*x)
    assert torch.equal(exact, model(*x))
    model.train()
    if name == "linear":  # an attention is no linear function of its weights
        mean = torch.stack([model(*x) for _ in range(400)]).mean(dim=0)
        assert (mean - exact).abs().max() < 0.35 * max(1.0, exact.abs().max())
        # All samples share what is dropped of the one weight; a path drops for each.
        assert (model(torch.ones(64, 6)).std(dim=0).max() > 1e-3) == (impl == "wrap")


@both
def test_embeddings_have_no_dropout_and_padding_stays(impl: str) -> None:
    model, (x,) = layer("embedding")
    padding = model(torch.tensor([2]))
    names = with_lora(model, impl, dropout=0.5, learnt=False)
    assert torch.equal(model(x), model(x))
    optimizer = torch.optim.SGD([dict(model.named_parameters())[name] for name in names], lr=0.5)
    for _ in range(3):
        (model(x) - 1).square().sum().backward()
        optimizer.step()
    assert torch.equal(model(torch.tensor([2])), padding)


def test_rows_with_a_largest_norm() -> None:
    model = Around(nn.Embedding(11, 6, max_norm=0.5))
    with_lora(model, "parametrize")
    weights, x = copy.deepcopy(model.state_dict()), torch.arange(11)
    output = model(x)
    assert output.norm(dim=1).max() <= 0.5 + 1e-4
    assert torch.allclose(plain_of(model, Around(nn.Embedding(11, 6, max_norm=0.5)))(x), output, atol=1e-5)
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())


def test_sparse_gradients() -> None:
    model, x = Around(nn.Embedding(11, 6, sparse=True)), torch.tensor([[1, 3]])
    names = with_lora(model, "wrap")
    model(x).sum().backward()
    assert [dict(model.named_parameters())[name].grad.is_sparse for name in names] == [False, True]


@both
def test_precisions_and_named_arguments(impl: str) -> None:
    model, (x,) = layer("linear")
    with_lora(model, impl)
    assert torch.equal(model.layer(input=x), model.layer(x))
    output = model(x)
    assert torch.allclose(model.double()(x.double()).float(), output, atol=1e-5)
    low, (x,) = layer("linear")
    low.bfloat16()
    output = low(x.bfloat16())
    names = with_lora(low, impl, learnt=False)
    assert torch.equal(low(x.bfloat16()), output)
    assert {dict(low.named_parameters())[name].dtype for name in names} == {torch.bfloat16}


# What cannot be


def linear() -> nn.Module:
    return nn.Linear(4, 3)


def rows(**options: Any) -> Any:
    return lambda: nn.Embedding(9, 4, **options)


REFUSED: list[tuple[Any, int, dict[str, Any], str]] = [
    (
        lambda: nn.BatchNorm1d(4),
        2,
        {},
        r"match: LoRA cannot adapt layer\n.*Linear, .*MultiheadAttention\n.*BatchNorm1d",
    ),
    (lambda: nn.ConvTranspose1d(4, 4, 1), 2, {}, r"cannot adapt layer\n"),
    (linear, 4, {}, r"^rank: the rank does not fit layer.weight, a matrix of 3 × 4\n.*1 to 3\n.*4\n.*lora.ranks"),
    (linear, 0, {}, r"the rank does not fit"),
    (lambda: nn.Conv2d(8, 8, 1, groups=8), 2, {}, r"a matrix of 8 × 1\n"),
    (attention(kdim=3, vdim=8), 4, {}, r"fit layer.k_proj_weight, a matrix of 8 × 3"),
    (lambda: nn.LazyLinear(3), 2, {}, r"layer.weight: it has no size yet\n.*that knows its size"),
    (linear, 2, {"alpha": 0}, r"^alpha: LoRA needs a scale"),
    (linear, 2, {"alpha": float("nan")}, r"^alpha: LoRA needs a scale"),
    (linear, 2, {"dropout": 1.0}, r"^dropout: not a probability\n.*0 to below 1"),
    (linear, 2, {"impl": "wrapped"}, r"^impl: no such way to do LoRA\n.*\n.*nearest: wrap"),
    (rows(max_norm=1), 2, {"impl": "wrap"}, r"limits the norm .*\n.*\n.*impl=parametrize"),
    (rows(scale_grad_by_freq=True), 2, {"impl": "wrap"}, r"divides their gradients"),
    (rows(sparse=True), 2, {}, r"gradients are sparse\n.*\n.*lora.impl=wrap"),
    (Odd, 2, {"impl": "wrap"}, r"Odd computes in a way of its own"),
]


@pytest.mark.parametrize(("build", "rank", "options", "message"), REFUSED)
def test_what_cannot_be(build: Any, rank: int, options: dict[str, Any], message: str) -> None:
    model = Around(build())
    before = list(model.state_dict())
    with pytest.raises(UserError, match=message):
        inject_lora(model, {"layer": rank}, **{"alpha": 1.0, **options})
    assert list(model.state_dict()) == before


def test_several_layers_that_cannot_be() -> None:
    model = nn.Module()
    model.layer, model.table = nn.Linear(4, 4), nn.Bilinear(1, 4, 4)
    model.table.weight = model.layer.weight
    with pytest.raises(UserError, match=r"cannot adapt layer.weight: it is also table.weight, in a Bilinear"):
        inject_lora(model, {"layer": 2}, alpha=1)
    with pytest.raises(UserError, match=r"two ranks for one weight, embed.values.weight and head.weight"):
        inject_lora(language_model()[0], {"embed.values": 2, "head": 3}, alpha=1)
    with pytest.raises(UserError, match=r"^match: there is no layer for LoRA\n.*Linear"):
        inject_lora(nn.Linear(4, 3), {}, alpha=1)
    three = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with pytest.raises(UserErrors, match=r"(?s)adapt 1\n.*fit 0.weight.*fit 2.weight.*3 problems"):
        inject_lora(three, {"0": 9, "1": 1, "2": 9}, alpha=1)


@both
def test_twice_is_once_too_often(impl: str) -> None:
    model, x = layer("linear")
    with_lora(model, "wrap")
    output = model(*x)
    with pytest.raises(UserError, match="has LoRA already"):
        with_lora(model, impl)
    assert torch.equal(model(*x), output)
