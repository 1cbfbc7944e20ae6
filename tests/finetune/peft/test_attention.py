"""The attentions that can be given learnt keys and values."""

from __future__ import annotations

from lightkit.finetune.peft.attention import attentions
from lightkit.finetune.peft.prefix import inject_prefixes
from tests.finetune.peft import injecting as on


def test_self_and_cross_attention_as_chosen() -> None:
    model = on.Translator()
    assert attentions(model) == ["reader.self_attn", "writer.self_attn", "writer.multihead_attn"]
    names = inject_prefixes(model, ["writer.multihead_attn"], length=2)
    assert names == ["writer.multihead_attn.prefix.keys", "writer.multihead_attn.prefix.values"]


def test_attentions_are_found() -> None:
    assert attentions(on.classifier()) == ["blocks.0.attn", "blocks.1.attn"]
    assert attentions(on.timm_vit()) == ["blocks.0.attn", "blocks.1.attn"]
    assert attentions(on.torchvision_vit()) == [f"encoder.layers.encoder_layer_{i}.self_attention" for i in (0, 1)]
    assert len(attentions(on.torchvision_swin())) == 4
    assert attentions(on.resnet18()) == []
