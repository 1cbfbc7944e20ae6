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
from lightkit.finetune.peft.prefix import inject_prefixes
from lightkit.models.parts import Attention, rotary_table, rotate
from tests.finetune.peft import networks as on

LENGTH = 3


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def inject_all(model: nn.Module) -> list[str]:
    """Put a prefix into every attention."""
    return inject_prefixes(model, attentions(model), length=LENGTH)


def prefixed(layer: nn.Module) -> Any:
    """An attention with a prefix that does something."""
    around = nn.ModuleDict({"layer": layer})
    on.stir(around, inject_prefixes(around, ["layer"], length=LENGTH))
    return layer


def heads(x: Tensor) -> Tensor:
    """`(B, N, D)` → `(B, H, N, K)`."""
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


def multihead(**options: Any) -> Any:
    layer = nn.MultiheadAttention(8, 2, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.eval()


@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": True},
        {"kdim": 6, "vdim": 10},
        {"bias": False, "dtype": torch.float64},
        {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
    ],
)
def test_multihead_by_hand(options: dict[str, Any]) -> None:
    """What the prefix adds is the same whatever the attention is masked with, and its weights stay."""
    layer = multihead(**options)
    kind = layer.out_proj.weight.dtype
    query, key = torch.randn(5, 4, 8, dtype=kind), torch.randn(5, 4, layer.kdim, dtype=kind)
    value = key if layer.vdim == layer.kdim else torch.randn(5, 4, layer.vdim, dtype=kind)
    masks = [{}, {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)}]
    if not layer.batch_first:
        masks.append({"key_padding_mask": torch.arange(5) >= torch.tensor([[5], [3], [2], [4]])})
    x = [each.transpose(0, 1) if layer.batch_first else each for each in (query, key, value)]
    plain = [layer(*x, **mask) for mask in masks]
    prefixed(layer)
    weight = layer.in_proj_weight[:8] if layer._qkv_same_embed_dim else layer.q_proj_weight
    bias = None if layer.in_proj_bias is None else layer.in_proj_bias[:8]
    q = heads(F.linear(query.transpose(0, 1), weight, bias))
    read = ((q @ layer.prefix.keys.mT / 2).softmax(-1) @ layer.prefix.values).transpose(1, 2).flatten(2)
    added = F.linear(read, layer.out_proj.weight)
    for mask, (before, weights) in zip(masks, plain):
        output, again = layer(query=x[0], key=x[1], value=x[2], **mask)
        expected = before + (added if layer.batch_first else added.transpose(0, 1))
        torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(again, weights)


def test_multihead_without_a_batch() -> None:
    layer, x = prefixed(multihead(batch_first=True)), torch.randn(5, 8)
    torch.testing.assert_close(layer(x, x, x)[0], layer(x[None], x[None], x[None])[0][0], atol=1e-4, rtol=1e-4)


# Attentions with a layer qkv by hand


def packed(layer: Any, x: Tensor, shut: Tensor, rotary: Tensor | None = None) -> Tensor:
    q, k, v = (heads(each) for each in F.linear(x, layer.qkv.weight, layer.qkv.bias).chunk(3, dim=-1))
    if hasattr(layer, "q_norm"):
        q, k = layer.q_norm(q), layer.k_norm(k)
    own = (q @ layer.prefix.keys.mT / q.shape[-1] ** 0.5).softmax(-1) @ layer.prefix.values
    if rotary is not None:
        q, k = rotate(q, rotary), rotate(k, rotary)
    y = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(shut, -torch.inf).softmax(-1) @ v
    return layer.proj((y + own).transpose(1, 2).flatten(2))


CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_lightkit_by_hand(causal: bool, turned: bool) -> None:
    layer, x = prefixed(Attention(8, 2, causal=causal)), torch.randn(4, 5, 8)
    rotary = rotary_table(5, 4) if turned else None
    expected = packed(layer, x, CAUSAL & causal, rotary)
    torch.testing.assert_close(layer(x, rotary), expected)
    torch.testing.assert_close(layer(x, rotary=rotary), expected)


@pytest.mark.parametrize("fused", [False, True])
def test_timm_by_hand(fused: bool) -> None:
    from timm.layers import Attention as TimmAttention

    layer: Any = TimmAttention(8, 2, qkv_bias=True, qk_norm=fused, norm_layer=nn.LayerNorm)
    layer.fused_attn = fused
    x = torch.randn(4, 5, 8)
    torch.testing.assert_close(prefixed(layer)(x), packed(layer, x, CAUSAL & False))
    torch.testing.assert_close(layer(x, attn_mask=~CAUSAL), packed(layer, x, CAUSAL))


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


def test_encoder_with_padding_in_eval_mode() -> None:
    """Neither the encoder's nested tensors nor the layers' fast path leave the prefix out."""
    model = on.made(lambda: on.encoder(depth=1)).requires_grad_(False)
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
