"""A detector that is small enough for a processor."""

from __future__ import annotations

from torch import Tensor, nn
from torchvision.models.detection import FCOS
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.fcos import FCOSHead

from lightkit.models import CNN


class Features(nn.Module):
    """The stages of a small network, whose last map of features is that of a detector."""

    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        self.stages = CNN((3, 48, 48), 1, channels=channels, depth=2).stages
        self.out_channels = channels[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Map pictures to features."""
        return self.stages(x)


def small_fcos(num_classes: int, size: int, channels: list[int] | None = None) -> FCOS:
    """Build an FCOS (https://arxiv.org/abs/1904.01355) over small stages, with heads of two convolutions.

    Sides of boxes are those of `relu(output) * 8` pixels. A bias of 1 lets them begin at 8 pixels: at torchvision's 0,
    half of the outputs have no gradient, and some runs find no box at all.

    Args:
        num_classes: Classes with the background.
        size: Pixels a side of the pictures.
        channels: Of each stage; all but the first halve the picture.
    """
    features = Features([16, 32, 64] if channels is None else channels)
    head, anchors = FCOSHead(features.out_channels, 1, num_classes, 2), AnchorGenerator(((8,),), ((1.0,),))
    nn.init.ones_(head.regression_head.bbox_reg.bias)
    scaled = {"min_size": size, "max_size": size}
    return FCOS(
        features, num_classes, **scaled, anchor_generator=anchors, head=head, detections_per_img=20, score_thresh=0.05
    )
