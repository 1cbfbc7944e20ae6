"""What is known of networks without running them: blocks, sublayers, attentions, and features of modules."""

from __future__ import annotations

import torch
from torch import nn

from lightkit.finetune.peft.blocks import attentions, channels_first, find_blocks, input_dim, output_dim, sublayers
from lightkit.models import CNN
from tests.finetune.peft import networks as on


class ConvNorm(nn.Module):
    """One convolution and its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)


def test_blocks() -> None:
    assert find_blocks(on.classifier()) == ["blocks.0", "blocks.1"]
    assert find_blocks(on.encoder(depth=1)) == ["layers.0"]
    assert find_blocks(on.torchvision_vit()) == ["encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1"]
    assert find_blocks(on.torchvision_swin()) == [f"features.{i}.{j}" for i in (1, 3) for j in (0, 1)]
    assert find_blocks(on.timm_vit()) == ["blocks.0", "blocks.1"]
    assert find_blocks(on.resnet18()) == [f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)]
    assert find_blocks(CNN((3, 16, 16), 3)) == ["stages.0", "stages.1", "stages.2"]
    transformer = nn.Transformer(8, 2, 1, 2, 16, batch_first=True)
    assert find_blocks(transformer) == ["encoder.layers.0", "decoder.layers.0", "decoder.layers.1"]
    assert find_blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) == []
    body = nn.ModuleList([ConvNorm(), ConvNorm()])
    assert find_blocks(nn.ModuleDict({"body": body, "one": ConvNorm()})) == ["body.0", "body.1"]


def test_blocks_of_torchvision_and_timm() -> None:
    import timm
    import torchvision

    with torch.device("meta"):
        for name, count in {"efficientnet_b0": 16, "convnext_tiny": 18, "mobilenet_v3_small": 11}.items():
            assert len(find_blocks(getattr(torchvision.models, name)())) == count
        for name, count in {"convnext_atto": 12, "regnetx_002": 13}.items():
            assert len(find_blocks(timm.create_model(name))) == count


def test_sublayers() -> None:
    assert sublayers(on.classifier().blocks[0]) == (["attn"], "fc2")  # type: ignore[index]
    assert sublayers(on.timm_vit().blocks[0]) == (["attn"], "mlp")  # type: ignore[index]
    vit = on.torchvision_vit().get_submodule("encoder.layers.encoder_layer_0")
    assert sublayers(vit) == (["self_attention"], "mlp")
    assert sublayers(nn.TransformerDecoderLayer(8, 2, 16)) == (["self_attn", "multihead_attn"], "linear2")
    assert sublayers(on.resnet18().layer1[0]) == ([], None)  # type: ignore[index]


def test_attentions() -> None:
    assert attentions(on.classifier()) == attentions(on.timm_vit()) == ["blocks.0.attn", "blocks.1.attn"]
    assert attentions(on.torchvision_vit()) == [f"encoder.layers.encoder_layer_{i}.self_attention" for i in (0, 1)]
    assert len(attentions(on.torchvision_swin())) == 4
    assert attentions(on.resnet18()) == []
    assert attentions(on.Translator()) == ["reader.self_attn", "writer.self_attn", "writer.multihead_attn"]


def test_features() -> None:
    stage = on.resnet18().layer2[0]  # type: ignore[index]
    assert (input_dim(stage), output_dim(stage), channels_first(stage)) == (64, 128, {4})
    block = on.torchvision_swin().get_submodule("features.1.0")
    assert (input_dim(block), output_dim(block), channels_first(block)) == (16, 16, frozenset())
    assert output_dim(nn.GRU(3, 5)) == 5
    assert channels_first(nn.BatchNorm1d(4)) == {3}
    assert channels_first(nn.GroupNorm(2, 4)) == {3, 4, 5}
    assert output_dim(nn.ReLU()) is None
