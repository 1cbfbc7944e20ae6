"""How many features a module takes and gives, and in which dimension."""

from __future__ import annotations

from torch import nn

from lightkit.finetune.peft.feature_dims import channels_first, input_dim, output_dim
from tests.finetune.peft import injecting as on


def test_widths_are_told() -> None:
    stage = on.resnet18().layer2[0]
    assert (input_dim(stage), output_dim(stage), channels_first(stage)) == (64, 128, {4})
    block = on.torchvision_swin().get_submodule("features.1.0")
    assert (input_dim(block), output_dim(block), channels_first(block)) == (16, 16, frozenset())
    assert output_dim(nn.GRU(3, 5)) == 5
    assert channels_first(nn.BatchNorm1d(4)) == {3}
    assert channels_first(nn.GroupNorm(2, 4)) == {3, 4, 5}
    assert output_dim(nn.ReLU()) is None
