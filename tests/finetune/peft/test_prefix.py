"""Prefixes in every attention, against attention to them by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError, keys_under
from lightkit.finetune.peft.blocks import attentions
from lightkit.finetune.peft.lora import inject_lora
from lightkit.finetune.peft.merging import merge, merged_state
from lightkit.finetune.peft.prefix import Prefix, inject_prefixes
from lightkit.models.parts import Attention, rotary_table, rotate
from tests.finetune.peft import networks as on


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


BIG = torch.finfo(torch.float32).min
LENGTH = 3


def inject_all(model: nn.Module) -> list[str]:
    """Put a prefix into every attention."""
    return inject_prefixes(model, attentions(model), length=LENGTH)


def prefixed(layer: nn.Module) -> nn.Module:
    """An attention with a prefix that does something."""
    names = inject_prefixes(nn.ModuleDict({"layer": layer}), ["layer"], length=LENGTH)
    on.stir(layer, [name.removeprefix("layer.") for name in names])
    return layer


# nn.MultiheadAttention by hand


def multihead(*, batch_first: bool = True, separate: bool = False, bias: bool = True, extra: bool = False) -> Any:
    sizes = {"kdim": 6, "vdim": 10} if separate else {}
    options = {"add_bias_kv": extra, "add_zero_attn": extra}
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first, bias=bias, **sizes, **options)  # type: ignore[arg-type]
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.eval()


def projections(layer: Any) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    packed = layer._qkv_same_embed_dim
    weights = (
        layer.in_proj_weight.chunk(3) if packed else (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    )
    return weights, (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)


def heads(x: Tensor) -> Tensor:
    """`(B, N, D)` → `(B, H, N, K)`."""
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


def by_hand(layer: Any, query: Tensor, key: Tensor, value: Tensor, shut: Tensor) -> tuple[Tensor, Tensor]:
    """Output `(B, N, D)` and weights `(B, H, N, S)`; `shut` `(B, H, N, S)` is true where nothing is seen."""
    prefix: Prefix = layer.prefix
    q, k, v = (heads(F.linear(x, *each)) for x, *each in zip((query, key, value), *projections(layer)))
    weights = (q @ k.mT / 2).masked_fill(shut, BIG).softmax(-1)
    y = weights @ v + (q @ prefix.keys.mT / 2).softmax(-1) @ prefix.values
    return layer.out_proj(y.transpose(1, 2).flatten(2)), weights


def called(layer: Any, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
    inputs = (query, key, value) if layer.batch_first else tuple(x.transpose(0, 1) for x in (query, key, value))
    with torch.no_grad():
        y, weights = layer(*inputs, **options)
    return (y if layer.batch_first else y.transpose(0, 1)), weights


def masks(kind: str, *, floats: bool) -> tuple[dict[str, Any], Tensor]:
    """Options of a call on 4 samples, 5 positions and 5 keys, and what they shut by `(B, H, N, S)`."""
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    each = torch.rand(8, 5, 5) < 0.4
    each[..., 0] = False
    padding = torch.arange(5) >= torch.tensor([[5], [3], [2], [4]])
    nothing = torch.zeros(4, 2, 5, 5, dtype=torch.bool)
    options, shut = {
        "none": ({}, nothing),
        "causal": ({"attn_mask": causal}, nothing | causal),
        "causal-hint": ({"attn_mask": causal, "is_causal": True}, nothing | causal),
        "each-head": ({"attn_mask": each}, nothing | each.view(4, 2, 5, 5)),
        "padding": ({"key_padding_mask": padding}, nothing | padding[:, None, None]),
        "both": ({"attn_mask": causal, "key_padding_mask": padding}, causal | padding[:, None, None] | nothing),
    }[kind]
    if floats:
        options = {
            name: torch.zeros(mask.shape).masked_fill(mask, float("-inf")) if torch.is_tensor(mask) else mask
            for name, mask in options.items()
        }
    return options, shut


@pytest.mark.parametrize(
    ("kind", "floats", "batch_first", "separate"),
    [
        ("none", False, True, True),
        ("causal", True, False, False),
        ("causal-hint", False, True, False),
        ("each-head", False, False, True),
        ("padding", True, True, True),
        ("both", False, False, False),
    ],
)
def test_multihead_by_hand(kind: str, floats: bool, batch_first: bool, separate: bool) -> None:
    layer = prefixed(multihead(batch_first=batch_first, separate=separate))
    query, key, value = torch.randn(4, 5, 8), torch.randn(4, 5, 6), torch.randn(4, 5, 10)
    if not separate:
        key = value = query
    options, shut = masks(kind, floats=floats)
    expected, weights = by_hand(layer, query, key, value, shut)
    output, none = called(layer, query, key, value, need_weights=False, **options)
    assert none is None
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)
    output, shown = called(layer, query, key, value, **options)
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(shown, weights.mean(1), atol=1e-4, rtol=1e-4)
    _, shown = called(layer, query, key, value, average_attn_weights=False, **options)
    torch.testing.assert_close(shown, weights, atol=1e-4, rtol=1e-4)


def test_multihead_without_a_batch() -> None:
    layer = prefixed(multihead())
    x, memory = torch.randn(5, 8), torch.randn(4, 8)
    padding = torch.tensor([False, False, True, False])
    output, weights = layer(x, memory, memory, key_padding_mask=padding)
    shut = padding.expand(1, 2, 5, 4)
    expected, expected_weights = by_hand(layer, x[None], memory[None], memory[None], shut)
    torch.testing.assert_close(output, expected[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(weights, expected_weights[0].mean(0), atol=1e-4, rtol=1e-4)


def test_multihead_without_biases_in_double_precision_with_keys_of_its_own() -> None:
    """`add_bias_kv` and `add_zero_attn` put theirs at the end."""
    layer, x = prefixed(multihead(bias=False).double()), torch.randn(4, 5, 8).double()
    expected, _ = by_hand(layer, x, x, x, masks("none", floats=False)[1])
    output, _ = layer(query=x, key=x, value=x, need_weights=False)
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)
    layer, x = multihead(extra=True), x.float()
    plain, weights = layer(x, x, x)
    output, again = prefixed(layer)(x, x, x)
    assert again.shape == weights.shape
    assert not torch.allclose(output, plain)


# Attentions with a layer qkv by hand


def packed(layer: Any, x: Tensor, shut: Tensor, rotary: Tensor | None = None) -> Tensor:
    q, k, v = (heads(each) for each in F.linear(x, layer.qkv.weight, layer.qkv.bias).chunk(3, dim=-1))
    if hasattr(layer, "q_norm"):
        q, k = layer.q_norm(q), layer.k_norm(k)
    prefix: Prefix = layer.prefix
    own = (q @ prefix.keys.mT / q.shape[-1] ** 0.5).softmax(-1) @ prefix.values
    if rotary is not None:
        q, k = rotate(q, rotary), rotate(k, rotary)
    y = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(shut, BIG).softmax(-1) @ v
    return layer.proj((y + own).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_lightkit_by_hand(causal: bool, turned: bool) -> None:
    layer, x = prefixed(Attention(8, 2, causal=causal)), torch.randn(4, 5, 8)
    rotary = rotary_table(5, 4) if turned else None
    shut = torch.ones(5, 5, dtype=torch.bool).triu(1) & causal
    expected = packed(layer, x, shut, rotary)
    torch.testing.assert_close(layer(x, rotary), expected)
    torch.testing.assert_close(layer(x, rotary=rotary), expected)


@pytest.mark.parametrize(
    ("kind", "norms", "fused"),
    [("none", True, True), ("hint", True, True), ("each", False, True), ("keys", True, False), ("float", False, False)],
)
def test_timm_by_hand(kind: str, norms: bool, fused: bool) -> None:
    from timm.layers import Attention as TimmAttention

    layer = TimmAttention(8, 2, qkv_bias=True, qk_norm=norms, norm_layer=nn.LayerNorm)
    layer.fused_attn = fused
    prefixed(layer)
    x = torch.randn(4, 5, 8)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    padding = (torch.arange(5) < torch.tensor([[5], [3], [2], [4]]))[:, None, None]
    sees = {"each": causal & padding, "keys": padding, "float": causal, "hint": causal}.get(kind)
    shut = torch.zeros(4, 2, 5, 5, dtype=torch.bool) if sees is None else ~sees.expand(4, 2, 5, 5)
    expected = packed(layer, x, shut)
    if kind == "hint":
        return torch.testing.assert_close(layer(x, is_causal=True), expected)
    mask = torch.zeros(5, 5).masked_fill(~causal, float("-inf")) if kind == "float" else sees
    torch.testing.assert_close(layer(x, attn_mask=mask), expected)
    return torch.testing.assert_close(layer(x, mask), expected)


# Whole networks


def test_language_model_stays_causal() -> None:
    model = on.made(on.language_model)
    on.stir(model, inject_all(model))
    tokens = torch.randint(0, 11, (2, 8))
    other = tokens.clone()
    other[:, 5:] = (tokens[:, 5:] + 1) % 11
    first, second = on.out(model, tokens), on.out(model, other)
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5:], second[:, 5:])
    torch.testing.assert_close(on.out(model, tokens[:, :5]), first[:, :5])


@pytest.mark.parametrize("depth", [1, 2])
def test_encoder_with_padding_in_eval_mode(depth: int) -> None:
    """Neither the encoder's nested tensors nor the layers' fast path leave the prefix out."""
    model = on.made(lambda: on.encoder(depth=depth)).requires_grad_(False)
    x = torch.randn(4, 5, 16)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [2], [4]])
    on.stir(model, inject_all(model))
    with torch.no_grad():
        output = model(x, src_key_padding_mask=padding)
        alone = torch.cat([model(x[i : i + 1, :n])[0] for i, n in enumerate((5, 3, 2, 4))])
    torch.testing.assert_close(output[~padding], alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.train()(x, src_key_padding_mask=padding), output, atol=1e-5, rtol=1e-5)


def test_start_of_keys_and_values() -> None:
    model = on.language_model()
    inject_prefixes(model, ["blocks.0.attn"], length=400)
    inject_prefixes(model, ["blocks.1.attn"], length=400, init_std=0.1)
    first, second = model.blocks[0].attn.prefix, model.blocks[1].attn.prefix
    assert first.keys.shape == (2, 400, 8)
    assert first.keys.std().item() == pytest.approx(1.0, rel=0.1)
    assert second.keys.std().item() == pytest.approx(0.1, rel=0.1)
    assert not first.values.any()
    assert repr(first) == "Prefix(length=400)"


@pytest.mark.parametrize(
    ("make", "impl", "layers"),
    [
        (on.timm_vit, "wrap", (".qkv", ".proj")),
        (on.timm_vit, "parametrize", (".qkv", ".proj")),
        (on.torchvision_vit, "parametrize", ("",)),
    ],
)
def test_goes_with_lora(make: on.Make, impl: str, layers: tuple[str, ...]) -> None:
    model, x = on.made(make), on.images()
    ranks = {f"{path}{layer}": 2 for path in attentions(model) for layer in layers}
    names = inject_lora(model, ranks, alpha=4.0, impl=impl)  # type: ignore[arg-type]
    names += inject_all(model)
    on.stir(model, names, std=0.3)
    output = on.out(model, x)
    with merge(model):
        torch.testing.assert_close(on.out(model, x), output, atol=1e-4, rtol=1e-4)
    with pytest.raises(UserError, match=r"cannot be merged(.|\n)*\(prefix\)"):
        merged_state(model)


def test_what_cannot_be() -> None:
    model = on.Translator()
    before = list(model.state_dict())
    with (
        pytest.raises(UserError, match=r"^other.length: a prefix needs positions(.|\n)*received: 0"),
        keys_under("other"),
    ):
        inject_prefixes(model, ["reader.self_attn"], length=0)
    with pytest.raises(UserError, match="^init_std: all positions would stay equal"):
        inject_prefixes(model, ["reader.self_attn"], init_std=0.0)
    with pytest.raises(UserError, match=r"writer is no attention(.|\n)*writer.self_attn, writer.multihead_attn"):
        inject_prefixes(model, ["writer"])
    with pytest.raises(UserError, match=r"reader.linear1 is no attention(.|\n)*received: 'Linear'"):
        inject_prefixes(model, ["reader.self_attn", "reader.linear1"])
    with pytest.raises(UserError, match=r"no such module(.|\n)*nearest: reader.self_attn"):
        inject_prefixes(model, ["reader.self_att"])
    assert list(model.state_dict()) == before
    assert inject_prefixes(model, ["reader.self_attn"]) == [f"reader.self_attn.prefix.{n}" for n in ("keys", "values")]
    with pytest.raises(UserError, match="reader.self_attn already has something called prefix"):
        inject_prefixes(model, ["reader.self_attn"])


def test_attention_that_changes_the_sequence() -> None:
    class Pooled(Attention):
        def forward(self, x: Tensor, rotary: Tensor | None = None) -> Tensor:
            return super().forward(x, rotary)[:, ::2]

    layer = Pooled(8, 2)
    prefixed(layer)
    with pytest.raises(UserError, match="changes the number of positions"):
        layer(torch.randn(2, 4, 8))
