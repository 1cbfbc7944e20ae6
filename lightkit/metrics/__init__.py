"""What is measured: torchmetrics per split, metrics of our own, and the figures of the final evaluation.

torchmetrics takes seconds to import, so nothing here imports it before the first values are needed; the metric classes
that derive from it live in `lightkit.metrics.function`, `lightkit.metrics.language` and `lightkit.metrics.retrieval`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightkit.common.exports import exporting
from lightkit.metrics.figures import Figures, write_figures
from lightkit.metrics.results import Shaped
from lightkit.metrics.shared import Gathered, SharedMetrics
from lightkit.metrics.split import SplitMetrics

if TYPE_CHECKING:
    from lightkit.metrics.function import Function as Function

__all__ = ["Figures", "Function", "Gathered", "Shaped", "SharedMetrics", "SplitMetrics", "write_figures"]
__getattr__ = exporting(__name__, {"Function": "function"})
