"""Pictures of a size and with the channels that models trained on photographs expect."""

from __future__ import annotations

import torch.nn.functional as F

from lightkit.data.tables import digits
from lightkit.data.tensors import DataInfo, TensorData


def large_digits(*, size: int = 32, channels: int = 3) -> TensorData:
    """The 1,797 handwritten digits, smoothly enlarged.

    Args:
        size: Pixels a side.
        channels: Equal channels.
    """
    small = digits()
    x = F.interpolate(small.x, size=(size, size), mode="bilinear", align_corners=False)
    x = x.expand(-1, channels, -1, -1).contiguous()
    info = DataInfo("multiclass", tuple(x.shape[1:]), small.info.num_classes, small.info.class_names)
    return TensorData(x, small.y, info, name="large_digits")
