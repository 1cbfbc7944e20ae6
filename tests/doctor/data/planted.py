"""Data sets with one planted fault, and what each check says of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf

from lightkit.data import Data, DataInfo, TensorData
from lightkit.doctor.data import augmentation, features, labels, leaks, neighbours, order, overlap
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding

CHECKS = {
    "labels": labels.check,
    "order": order.check,
    "answers": neighbours.check,
    "pictures": features.check_pictures,
    "overlap": overlap.check,
    "columns": features.check,
    "leaks": leaks.check,
    "scale": features.check_scale,
    "augmentation": augmentation.check,
}
Examine = Callable[..., list[Finding]]


class Rows:
    """Map-style data set of given samples."""

    def __init__(self, samples: list[Any], **attributes: Any) -> None:
        self.samples = samples
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> Any:
        return self.samples[row]


def findings(data: Data, *names: str, monitor: str = "val/accuracy", **loss: Any) -> list[Finding]:
    """What checks of these names find, all of them where none is named."""
    cfg = OmegaConf.create({"loss": {"_target_": "torch.nn.CrossEntropyLoss", **loss}, "metrics": {"monitor": monitor}})
    run: Any = SimpleNamespace(sample=DataSample(data), cfg=cfg)
    found = [finding for name in names or CHECKS for finding in CHECKS[name](run)]
    assert all(finding.measured and finding.why and finding.key and finding.fix for finding in bad(found))
    return found


def bad(found: list[Finding], check: str = "") -> list[Finding]:
    """Those that say that something should be done."""
    return [finding for finding in found if finding.is_bad and finding.check.startswith(check)]


def only(found: list[Finding], check: str) -> Finding:
    """The only finding of a check."""
    chosen = [finding for finding in found if finding.check == check]
    assert len(chosen) == 1, found
    return chosen[0]


def table(rows: int = 400, features: int = 6, *, classes: int = 3, seed: int = 0) -> TensorData:
    """A healthy table: classes follow from features, with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, generator=generator)
    weights = torch.randn(features, classes, generator=generator)
    y = (x @ weights + torch.randn(rows, classes, generator=generator)).argmax(1)
    return TensorData(x, y)


def labelled(y: torch.Tensor, info: DataInfo | None = None, *, width: int = 4) -> TensorData:
    """Random inputs with given targets."""
    generator = torch.Generator().manual_seed(0)
    return TensorData(torch.randn(len(y), width, generator=generator), y, info)


def drawn(*shape: int, high: int = 3, seed: int = 0) -> torch.Tensor:
    """Random classes."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))
