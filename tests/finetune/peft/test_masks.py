"""Masks and tables of positions grow with learnt positions in front of a sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.finetune.peft.prompt import inject_prompts
from lightkit.models.attention import Block, rotary_table
from tests.finetune.peft import injecting as on


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


LENGTH = 3


def text() -> Tensor:
    return torch.randn(4, 5, 16)


@pytest.mark.parametrize("causal", [False, True])
def test_rotary_positions_are_those_of_the_sequence(causal: bool) -> None:
    block = on.made(lambda: Block(16, 2, causal=causal))
    x, table = torch.randn(2, 5, 16), rotary_table(5, 8)
    still = torch.stack([torch.ones(LENGTH, 8), torch.zeros(LENGTH, 8)])
    longer = torch.cat([still, table], dim=1)
    tokens = torch.randn(LENGTH, 16)
    expected = on.out(block, torch.cat([tokens.expand(2, -1, -1), x], dim=1), longer)[:, LENGTH:]
    inject_prompts(nn.ModuleDict({"block": block}), ["block"], length=LENGTH)
    block.prompt.tokens.data.copy_(tokens)  # type: ignore[union-attr]
    torch.testing.assert_close(on.out(block, x, table), expected)
    torch.testing.assert_close(on.out(block, x, rotary=table), expected)


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["0", "0.layers"])
@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_with_masks(path: str, floats: bool, batch_first: bool) -> None:
    """Nothing is seen past a causal mask, be it through the prompt, with or without a hint; padding is left out."""
    model = on.frozen(on.made(lambda: nn.ModuleList([on.encoder(batch_first=batch_first)])))
    on.stir(model, inject_prompts(model, [path], length=LENGTH))
    x = text()
    padding = torch.arange(5) >= torch.tensor([[5], [3], [2], [4]])
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    if floats:
        padding, causal = (torch.zeros(m.shape).masked_fill(m, float("-inf")) for m in (padding, causal))

    def run(x: Tensor, **options: Any) -> Tensor:
        x = x if batch_first else x.transpose(0, 1)
        with torch.no_grad():
            y = model[0](x, **options)
        return y if batch_first else y.transpose(0, 1)

    found = run(x, src_key_padding_mask=padding)
    for row, length in enumerate((5, 3, 2, 4)):
        expected = run(x[row : row + 1, :length])[0]
        torch.testing.assert_close(found[row, :length], expected, atol=1e-5, rtol=1e-5)
    found = run(x, mask=causal)
    assert not torch.allclose(found, run(x), atol=1e-3)
    torch.testing.assert_close(run(x[:, :3], mask=causal[:3, :3]), found[:, :3], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(run(x, mask=causal, is_causal=True), found, atol=1e-5, rtol=1e-5)
    model.train()
    torch.testing.assert_close(run(x, mask=causal), found, atol=1e-5, rtol=1e-5)


def test_decoder_with_masks() -> None:
    layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = on.made(lambda: nn.ModuleDict({"decoder": nn.TransformerDecoder(layer, 2)}))
    on.stir(model, inject_prompts(model, ["decoder"], length=LENGTH))
    x, memory = text(), torch.randn(4, 6, 16)
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    near = torch.ones(5, 6, dtype=torch.bool).triu(2)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [2], [4]])
    options = {"tgt_mask": causal, "memory_mask": near, "tgt_key_padding_mask": padding}
    found = on.out(model["decoder"], x, memory, **options)  # type: ignore[index]
    short = {"tgt_mask": causal[:3, :3], "memory_mask": near[:3], "tgt_key_padding_mask": padding[:, :3]}
    torch.testing.assert_close(on.out(model["decoder"], x[:, :3], memory, **short), found[:, :3])  # type: ignore[index]
    hinted = on.out(model["decoder"], x, memory, **options, tgt_is_causal=True)  # type: ignore[index]
    torch.testing.assert_close(hinted, found)


@pytest.mark.parametrize("kind", ["bool", "float", "keys"])
def test_timm_with_masks(kind: str) -> None:
    model = on.made(lambda: on.timm_vit())
    on.stir(model, inject_prompts(model, ["blocks.0"], length=LENGTH))
    x, sees = torch.randn(2, 5, 16), torch.ones(5, 5, dtype=torch.bool).tril()
    mask: Tensor = {
        "bool": sees,
        "float": torch.zeros(5, 5).masked_fill(~sees, float("-inf")),
        "keys": sees[2].view(1, 1, 1, 5),
    }[kind]
    block = model.blocks[0]
    found = on.out(block, x, attn_mask=mask)
    assert torch.equal(on.out(block, x, mask), found)
    short = mask[..., :3] if kind == "keys" else mask[:3, :3]
    torch.testing.assert_close(on.out(block, x[:, :3], short), found[:, :3])
