"""How well boxes are found."""

from __future__ import annotations

from torch import Tensor
from torchmetrics.detection import MeanAveragePrecision


class BoxPrecision(MeanAveragePrecision):
    """Mean average precision of boxes as in COCO (https://cocodataset.org/#detection-eval), its usual numbers.

    `map` is the mean over overlaps of 0.5 to 0.95, `map_50` and `map_75` count a box as found from that overlap on,
    and `mar_100` is the mean recall of the 100 boxes with the best scores.
    """

    warn_on_many_detections = False  # models may give more boxes than COCO counts

    def compute(self) -> dict[str, Tensor]:
        """Return the numbers by name."""
        found = super().compute()
        return {name: found[name] for name in ("map", "map_50", "map_75", "mar_100")}
