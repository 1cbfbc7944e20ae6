"""Attention and rotary positions."""

from __future__ import annotations

import torch

from lightkit.models.parts import Attention, rotary_table, rotate


def test_rotated_products_depend_on_the_distance_only():
    table = rotary_table(12, 8)
    q, k = torch.randn(8), torch.randn(8)
    at = lambda x, t: rotate(x.expand(1, 1, 12, 8), table)[0, 0, t]  # noqa: E731
    assert torch.allclose(at(q, 3) @ at(k, 1), at(q, 11) @ at(k, 9), atol=1e-4)
    assert torch.allclose(at(q, 5).norm(), q.norm())


def test_attention_equals_the_formula():
    torch.manual_seed(0)
    layer, x = Attention(8, 2, causal=True), torch.randn(2, 5, 8)
    q, k, v = (part.view(2, 5, 2, 4).transpose(1, 2) for part in layer.qkv(x).chunk(3, dim=-1))
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    expected = layer.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 5, 8))
    assert torch.allclose(layer(x), expected, atol=1e-6)
