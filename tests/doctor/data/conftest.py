"""Data sets with one planted fault, and what the checks of the data say of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from omegaconf import OmegaConf

from lightkit.common.doors import SHIPPED, import_path
from lightkit.data import DataInfo, TensorData, build_data
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding
from tests.doctor.judging import judge


class Rows:
    """Map-style data set of given samples."""

    def __init__(self, samples: list[Any], **attributes: Any) -> None:
        self.samples = samples
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> Any:
        return self.samples[row]


class Broken(Rows):
    """The same, of which one row and those behind it cannot be read."""

    def __getitem__(self, row: int) -> Any:
        if row >= self.at:  # type: ignore[attr-defined]
            raise OSError("truncated file")
        return self.samples[row]


class Planted(NamedTuple):
    """A data set, the checks to make of it, and what they are to say: see `tests.doctor.judging.judge`."""

    says: str
    checks: str
    data: Callable[[], Any]
    besides: str = ""
    settings: dict[str, Any] = {}

    def judge(self) -> None:
        """Make the checks, and compare what they find with what is to be said."""
        judge(findings(self.checks, self.data(), **self.settings), self.says, self.besides)


def planted(says: str, checks: str, data: Callable[[], Any], besides: str = "", **settings: Any) -> Planted:
    """Return a case; settings are those of `data`, and `monitor` and `loss` of the run."""
    return Planted(says, checks, data, besides, settings)


def findings(
    checks: str, dataset: Any, *, monitor: str = "val/accuracy", loss: Any = None, **settings: Any
) -> list[Finding]:
    """Return what checks of these names find in a data set."""
    loss = {"_target_": "torch.nn.CrossEntropyLoss", **(loss or {})}
    with closing(build_data(dataset=dataset, **{"split": {"by": "random"}, **settings})) as data:
        tree = {"loss": loss, "metrics": {"monitor": monitor}, "data": {"split": {"time": "times"}}}
        run: Any = SimpleNamespace(sample=DataSample(data), cfg=OmegaConf.create(tree))
        found = [each for name in checks.split(", ") for each in import_path(SHIPPED["doctor"][name])(run)]
    assert all(each.key and each.fix for each in found if each.is_bad)
    return found


def seeded(seed: int = 0) -> torch.Generator:
    """Return random numbers that are the same each time."""
    return torch.Generator().manual_seed(seed)


def table(rows: int = 400, features: int = 6, *, classes: int = 3, splits: Any = None) -> TensorData:
    """Return a healthy table: classes follow from features, with noise."""
    generator = seeded()
    x = torch.randn(rows, features, generator=generator)
    weights = torch.randn(features, classes, generator=generator)
    return TensorData(x, (x @ weights + torch.randn(rows, classes, generator=generator)).argmax(1), splits=splits)


def labelled(y: torch.Tensor, info: DataInfo | None = None, **options: Any) -> TensorData:
    """Return random inputs with given targets."""
    return TensorData(torch.randn(len(y), 4, generator=seeded()), y, info, **options)


def drawn(*shape: int, high: int = 3, seed: int = 0) -> torch.Tensor:
    """Return random classes."""
    return torch.randint(high, shape, generator=seeded(seed))
