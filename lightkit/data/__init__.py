"""Data sets, splits, preparation and exactly resumable loaders."""

from __future__ import annotations

from lightkit.data.build import Data, build_data
from lightkit.data.info import DataInfo
from lightkit.data.loaders import Loader
from lightkit.data.splits import SplitSpec
from lightkit.data.tensors import TensorData

__all__ = ["Data", "DataInfo", "Loader", "SplitSpec", "TensorData", "build_data"]
