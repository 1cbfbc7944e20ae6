"""A detector that is small enough for a processor."""

from __future__ import annotations

from torch import Tensor, nn
from torchvision.models.detection import FCOS
from torchvision.models.detection.anchor_utils import AnchorGenerator

from lightkit.models import CNN


class Features(nn.Module):
    """The stages of a small network, one map of features at an eighth of the size."""

    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        self.stages = CNN((3, 48, 48), 1, channels=channels, depth=2).stages
        self.out_channels = channels[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Map pictures to features."""
        return self.stages(x)


def small_fcos(num_classes: int, size: int, channels: list[int] | None = None) -> FCOS:
    """Build an FCOS (https://arxiv.org/abs/1904.01355) over four small stages.

    Args:
        num_classes: Classes with the background.
        size: Pixels a side of the pictures.
        channels: Of each stage; all but the first halve the picture.
    """
    features = Features([16, 32, 64, 64] if channels is None else channels)
    anchors = AnchorGenerator(sizes=((size // 2,),), aspect_ratios=((1.0,),))
    return FCOS(features, num_classes, min_size=size, max_size=size, anchor_generator=anchors, detections_per_img=20)
