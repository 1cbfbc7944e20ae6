"""Data sets, splits, preparation and exactly resumable loaders.

What needs PyTorch is imported when it is asked for: tables and folders are checked before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightkit.common.exports import exporting

if TYPE_CHECKING:
    from lightkit.data.build import Data, build_data
    from lightkit.data.loaders import Loader
    from lightkit.data.splits import SplitSpec
    from lightkit.data.table_spec import table
    from lightkit.data.tensors import DataInfo, TensorData

__all__ = ["Data", "DataInfo", "Loader", "SplitSpec", "TensorData", "build_data", "table"]
_HOME = {"Data": "build", "DataInfo": "tensors", "Loader": "loaders", "SplitSpec": "splits", "TensorData": "tensors",
         "build_data": "build", "table": "table_spec"}  # fmt: skip
__getattr__ = exporting(__name__, _HOME)
