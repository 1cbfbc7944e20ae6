"""What a run does to inputs before its network sees them: kept with the run, so that new ones need no data set.

Shapes: N rows, `...` the shape of one input.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lightkit.common.doors import import_path
from lightkit.data.impute import Filling
from lightkit.data.normalize import Normalizer
from lightkit.data.reader import Reader
from lightkit.data.targets import TargetTransform
from lightkit.data.tensors import DataInfo

_KEPT_ELSEWHERE = ("class_names", "vocabulary", "fingerprint", "decode")
"""Facts about data that a run keeps under names of their own, or not at all."""
READERS = {
    "images": "lightkit.data.images.ImageReader", "series": "lightkit.data.series.SeriesReader",
    "table": "lightkit.data.table_reader.TableReader", "texts": "lightkit.data.text_reader.TextReader",
}  # fmt: skip
"""Readers that are built again from what a run keeps of them, by their kind; most import Arrow."""


@dataclass(frozen=True)
class Preprocessing:
    """What a run does to inputs before its network sees them.

    Args:
        info: Facts about its data; the shape is that of what the network sees.
        reader: Reads files and tables.
        filling: What fills in missing values; None where nothing does.
        normalizer: Scales inputs; None where they are left as they are.
    """

    info: DataInfo
    reader: Reader
    filling: Filling | None = None
    normalizer: Normalizer | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Fill in and scale inputs `(N, ...)` as they are in the data set."""
        x = x if self.info.vocab_size is None else x.long()  # tables are read as floats
        x = x if self.filling is None else self.filling(x)
        return x if self.normalizer is None else self.normalizer(x)

    def state_dict(self) -> dict[str, Any]:
        """Return facts about the data and how new inputs are read, in plain values."""
        facts = {name: value for name, value in asdict(self.info).items() if name not in _KEPT_ELSEWHERE}
        return {**facts, "reader": {"kind": self.reader.kind, **self.reader.state_dict()}}

    @classmethod
    def restored(cls, facts: Mapping[str, Any]) -> Preprocessing | None:
        """Build again what a run recorded (`environment.json`); None where it did not record enough.

        Args:
            facts: What it recorded, which anybody may have written.
        """
        with suppress(LookupError, TypeError, ValueError):
            inputs = dict(facts["inputs"])
            described = dict(inputs.pop("reader"))
            reader = import_path(READERS[described.pop("kind")])(**described)
            names: dict[str, Any] = {
                new: tuple(facts.get(old) or ()) for new, old in (("class_names", "classes"), ("vocabulary",) * 2)
            }
            inputs["input_shape"] = tuple(map(int, inputs["input_shape"]))
            inputs["transform"] = TargetTransform(**inputs.get("transform", {}))
            info = DataInfo(**inputs, **names, fingerprint=str(facts["data"]))
            filling = Filling.restored(facts["filling"]) if facts.get("filling") else None
            scaling = facts["scaling"]
            tensors = [torch.tensor(scaling[name]) for name in ("shift", "scale")] if scaling else []
            return cls(info, reader, filling, Normalizer(*tensors).suited(info.input_shape) if tensors else None)
        return None


def reader_of(source: Any) -> Reader:
    """Return what reads new inputs of a data set; a table whose columns have names is read by these."""
    while not hasattr(source, "reader") and hasattr(source, "base"):
        source = source.base
    names = getattr(source, "feature_names", ())
    return getattr(source, "reader", None) or (import_path(READERS["table"])(names) if names else Reader())
