"""The work all contestants of the step benchmark do: data, network, metrics, and when to log."""

from __future__ import annotations

import contextlib
import importlib
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import Sample
from lightkit.data.tensors import TensorData
from lightkit.models import MLP
from lightkit.trainer import Callback, Trainer

FEATURES, HIDDEN, CLASSES = 64, 64, 10
BATCH, RATE, LOG_STEPS = 32, 0.02, 50
STEPS_PER_EPOCH = 200
METRICS: dict[str, dict[str, Any]] = {
    "accuracy": {"_target_": "torchmetrics.classification.MulticlassAccuracy", "average": "micro"},
    "f1": {"_target_": "torchmetrics.classification.MulticlassF1Score", "average": "macro"},
    "precision": {"_target_": "torchmetrics.classification.MulticlassPrecision", "average": "macro"},
    "recall": {"_target_": "torchmetrics.classification.MulticlassRecall", "average": "macro"},
    "top3": {"_target_": "torchmetrics.classification.MulticlassAccuracy", "average": "micro", "top_k": 3},
}


@dataclass(frozen=True)
class Work:
    """How much is to be done, and where the event files go.

    Args:
        steps_per_epoch: Batches of an epoch, all of the same size.
        epochs: Passes over the data.
        folder: Of this benchmark, removed at its end.
    """

    steps_per_epoch: int
    epochs: int
    folder: Path

    @property
    def rows(self) -> int:
        """Samples of the data set."""
        return self.steps_per_epoch * BATCH

    @property
    def steps(self) -> int:
        """Optimizer steps in all."""
        return self.steps_per_epoch * self.epochs


def clouds(rows: int) -> tuple[Tensor, Tensor]:
    """Ten overlapping clouds of points: inputs `(rows, 64)` and classes `(rows,)`, always the same."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (rows,), generator=generator)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    return 0.35 * centres[y] + torch.randn(rows, FEATURES, generator=generator), y


def data_set(rows: int) -> TensorData:
    """The same as a data set of lightkit, for `data.dataset._target_`."""
    return TensorData(*clouds(rows))


def network() -> nn.Module:
    """The network of all contestants."""
    torch.manual_seed(0)
    return MLP(FEATURES, CLASSES, hidden=[HIDDEN])


def sgd(model: nn.Module) -> torch.optim.SGD:
    """The optimizer of all contestants."""
    return torch.optim.SGD(model.parameters(), lr=RATE)


def metric_collection() -> Any:
    """The five metrics in torchmetrics' own collection, which counts once what several of them need."""
    from torchmetrics import MetricCollection, classification

    made = {}
    for name, node in METRICS.items():
        kind = getattr(classification, node["_target_"].rpartition(".")[2])
        made[name] = kind(num_classes=CLASSES, **{key: value for key, value in node.items() if key != "_target_"})
    return MetricCollection(made)


class InMemory:
    """Batches by `index_select` in a new order each epoch."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(self.x)).split(BATCH):
            yield self.x.index_select(0, rows), self.y.index_select(0, rows)


def data_loader(x: Tensor, y: Tensor) -> Any:
    """The same from PyTorch's loader, in this process."""
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)


class Stopwatch(Callback):
    """Times `Trainer.fit` of a run that is started by its configuration; the times end up among the run's values."""

    def on_fit_start(self, trainer: Trainer) -> None:
        """Start the clocks."""
        self._sample = Sample()
        self._sample.__enter__()

    def on_fit_end(self, trainer: Trainer) -> None:
        """Stop them."""
        self._sample.__exit__(None, None, None)
        trainer.state.last.update({"stopwatch/wall": self._sample.wall, "stopwatch/cpu": self._sample.cpu})


def trained_in_blocks(
    name: str, *, steps: int, rounds: int, hidden: Any = HIDDEN, batch: int = BATCH, **own: Any
) -> Any:
    """Train an MLP from a composed configuration with its usual files, without checkpoints, in blocks of two kinds.

    Args:
        name: Module in `benchmarks` whose callback `Blocks` times them.
        steps: Optimizer steps of a block.
        rounds: Blocks of each kind.
        hidden: Widths of the hidden layers.
        batch: Rows of a batch.
        **own: Further arguments of the callback.

    Returns:
        What its newest `Blocks` has measured.
    """
    from lightkit import Runner, compose

    given = "".join(f", {key}: {value}" for key, value in own.items())
    overrides = [
        "data=custom", "data.dataset._target_=benchmarks.work.data_set",
        f"+data.dataset.rows={min(STEPS_PER_EPOCH, steps) * batch}",
        "data.split.val=0", "data.split.test=0", f"data.batch_size={batch}", "model=mlp", f"model.hidden=[{hidden}]",
        "checkpoint=none", "device.name=cpu", "device.threads=1", "metrics=none", "metrics.monitor=train/loss",
        "metrics.mode=min", f"trainer.steps={(2 * rounds + 1) * steps}", "trainer.test=none",
        "logger.console.style=quiet", "logger.system.enabled=false",
        f"trainer.callbacks={{blocks: {{_target_: benchmarks.{name}.Blocks, steps: {steps}{given}}}}}",
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        Runner(compose(overrides).cfg, Path(folder)).run()
    # By the name that the configuration has for it: a script that runs is `__main__`.
    return importlib.import_module(f"benchmarks.{name}").Blocks.last.results
