"""The repeated blocks of networks, and the sublayers of a transformer block."""

from __future__ import annotations

import torch
from torch import nn

from lightkit.finetune.peft.blocks import find_blocks, sublayers
from lightkit.models import CNN, TransformerClassifier
from tests.finetune.peft import injecting as on


def test_blocks_are_found() -> None:
    assert find_blocks(on.classifier()) == ["blocks.0", "blocks.1"]
    assert find_blocks(TransformerClassifier((6, 5), 3, dim=16, depth=1, heads=2)) == ["blocks.0"]
    assert find_blocks(on.encoder(depth=1)) == ["layers.0"]
    assert find_blocks(on.torchvision_vit()) == ["encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1"]
    assert find_blocks(on.torchvision_swin()) == [f"features.{i}.{j}" for i in (1, 3) for j in (0, 1)]
    assert find_blocks(on.timm_vit()) == ["blocks.0", "blocks.1"]
    assert find_blocks(on.resnet18()) == [f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)]
    assert find_blocks(CNN((3, 16, 16), 3)) == ["stages.0", "stages.1", "stages.2"]
    transformer = nn.Transformer(8, 2, 1, 2, 16, batch_first=True)
    assert find_blocks(transformer) == ["encoder.layers.0", "decoder.layers.0", "decoder.layers.1"]
    assert find_blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) == []
    assert find_blocks(nn.ModuleDict({"body": nn.ModuleList([ConvNorm(), ConvNorm()]), "one": ConvNorm()})) == [
        "body.0",
        "body.1",
    ]


class ConvNorm(nn.Module):
    """One convolution and its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)


def test_blocks_of_torchvision_and_timm() -> None:
    import timm
    import torchvision

    with torch.device("meta"):
        assert len(find_blocks(torchvision.models.efficientnet_b0())) == 16
        assert len(find_blocks(torchvision.models.convnext_tiny())) == 18
        assert len(find_blocks(torchvision.models.mobilenet_v3_small())) == 11
        assert len(find_blocks(timm.create_model("convnext_atto"))) == 12
        assert len(find_blocks(timm.create_model("regnetx_002"))) == 13


def test_sublayers_are_found() -> None:
    assert sublayers(on.classifier().blocks[0]) == (["attn"], "fc2")
    assert sublayers(on.timm_vit().blocks[0]) == (["attn"], "mlp")
    assert sublayers(on.torchvision_vit().get_submodule("encoder.layers.encoder_layer_0")) == (
        ["self_attention"],
        "mlp",
    )
    assert sublayers(nn.TransformerDecoderLayer(8, 2, 16)) == (["self_attn", "multihead_attn"], "linear2")
    assert sublayers(on.resnet18().layer1[0]) == ([], None)
