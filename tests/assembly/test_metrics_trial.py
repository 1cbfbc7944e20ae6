"""Metrics that are tried before the run: what could not be computed is refused, what could be passes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.regression import MeanSquaredError

from lightkit.assembly.dry_run import Tried, try_metrics
from lightkit.common.errors import UserError
from lightkit.data import Data, DataInfo, TensorData, build_data
from lightkit.device import Engine
from lightkit.metrics import SplitMetrics
from lightkit.trainer.tasks import Criterion, StepOutput, Supervised, Task
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
TINY = ("data=wine", "trainer.epochs=1", "device=cpu", "model.hidden=[4]", "logger.tensorboard.enabled=false")
MEASURES = """\
import torch
from torchmetrics import Metric


class Kept(Metric):
    higher_is_better = True

    def __init__(self, when="compute", least=0):
        super().__init__()
        self.when, self.least = when, least
        self.add_state("seen", [])

    def update(self, preds, target):
        if self.when == "update":
            raise RuntimeError("no room")
        self.seen.append(preds)

    def compute(self):
        seen = torch.cat(self.seen)
        if len(seen) < self.least:
            raise KeyError("too few")
        return {"mean": seen.mean(), "drawn": seen.mean() + torch.rand(())}


def make():
    return Kept()
"""


@pytest.fixture
def measures(project: Path) -> Path:
    (project / "measures.py").write_text(MEASURES, encoding="utf-8")
    return project


def untouched(project: Path) -> bool:
    return not any((project / "outputs").rglob("metrics.jsonl"))


@pytest.mark.thorough
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("node", "text"),
    [
        ("{_target_: torchmetrics.classification.MulticlassAUROC, thresholds: []}", "cannot be computed: IndexError"),
        ("{_target_: torchmetrics.classification.MulticlassF1Score, num_classes: 7}", "does not take what the model"),
        ("{_target_: torchmetrics.retrieval.RetrievalMAP}", "takes indexes besides output and target"),
        ("{_target_: measures.Kept, least: 100000}", "cannot be computed: KeyError: 'too few'"),
        ("{_target_: measures.Kept, when: update}", "does not take what the model gives: no room"),
        ("{_target_: torchmetrics.MetricCollection, metrics: [{_target_: "
         "torchmetrics.classification.MulticlassF1Score, num_classes: 7}]}", "MulticlassF1Score: the metric does not"),
    ],
)  # fmt: skip
def test_a_metric_that_cannot_be_computed_never_costs_a_training(
    cli: Cli, measures: Path, split: str, node: str, text: str
) -> None:
    done = cli("train", *TINY, f"metrics.{split}.odd={node}")
    assert done.code == 2
    assert f"metrics.{split}.odd: " in done.err
    assert text in done.err
    assert "fix:" in done.err
    assert untouched(measures)


def test_a_metric_that_needs_more_than_two_samples_passes(cli: Cli, measures: Path) -> None:
    done = cli("train", *TINY, "metrics.test.odd={_target_: measures.Kept, least: 30}", "hydra.run.dir=outputs/a")
    assert done.code == 0, done.err
    assert "test/odd/mean" in json.loads((measures / "outputs/a/result.json").read_text(encoding="utf-8"))["test"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["metrics.monitor=val/odd/maen"], "metrics.monitor: no such value"),
        (["metrics.monitor=val/odd/mean", "metrics.mode=min", "metrics.val.odd={_target_: measures.make}"],
         "metrics.mode: contradicts metrics.monitor: larger values of val/odd/mean are better"),
    ],
)  # fmt: skip
def test_what_decides_is_known_before_training(cli: Cli, measures: Path, overrides: list[str], text: str) -> None:
    done = cli("train", *TINY, "metrics.val.odd={_target_: measures.Kept}", *overrides)
    assert done.code == 2
    assert text in done.err
    assert untouched(measures)


@pytest.mark.thorough
def test_a_collection_has_its_metrics_below_its_name(cli: Cli, project: Path) -> None:
    (project / "experiments/all.yaml").write_text(
        """\
metrics:
  monitor: val/all/MeanSquaredError
  val:
    all:
      _target_: torchmetrics.MetricCollection
      metrics: [{_target_: torchmetrics.regression.MeanSquaredError}, {_target_: torchmetrics.regression.R2Score}]
  test:
    all:
      _target_: torchmetrics.MetricCollection
      metrics: {mse: {_target_: torchmetrics.regression.MeanSquaredError}}
      prefix: my_
""",
        encoding="utf-8",
    )
    done = cli("train", "data=diabetes", *TINY[1:], "experiment=all", "hydra.run.dir=outputs/a")
    assert done.code == 0, done.err
    result = json.loads((project / "outputs/a/result.json").read_text(encoding="utf-8"))
    assert result["objective"]["mode"] == "min"
    assert result["test"]["test/all/my_mse"] == result["test"]["test/mse"]
    assert result["metrics"]["val/all/MeanSquaredError"] == result["metrics"]["val/mse"]
    assert result["metrics"]["val/all/R2Score"] == result["metrics"]["val/r2"]


class Busy(nn.Module):
    """Counts its calls, and draws from every generator."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(self.norm(x)) + torch.rand(1) + random.random() + np.random.rand()


def data() -> Data:
    table = TensorData(torch.randn(24, 4), torch.arange(24) % 3, DataInfo("multiclass", (4,), 3, ("a", "b", "c")))
    return build_data(dataset=table, split={"val": 0.25, "test": 0.25}, batch_size=8)


def meters(make: Callable[[], dict[str, Metric]]) -> dict[str, SplitMetrics]:
    return {split: SplitMetrics(split, make) for split in ("train", "val", "test")}


def tried(model: nn.Module, make: Callable[[], dict[str, Metric]], task: Task | None = None) -> dict[str, Tried]:
    parts: Any = (task or Supervised(), nn.CrossEntropyLoss(), Engine("cpu"))
    return try_metrics(data(), model, *parts, meters(make), monitor="val/loss")


def test_nothing_is_left_behind() -> None:
    model, made = Busy(), meters(lambda: {"accuracy": MulticlassAccuracy(3)})
    model.norm.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    samples, engine = data(), Engine("cpu")
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    found = try_metrics(samples, model, Supervised(), nn.CrossEntropyLoss(), engine, made, monitor="val/accuracy")
    assert {name for split in found.values() for name in split.values} >= {"val/accuracy", "test/loss"}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert (model.calls, model.training, model.norm.training) == (0, True, False)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert states[2]["state"]["pos"] == np.random.get_state(legacy=False)["state"]["pos"]
    assert all(meter.state_dict()["samples"] == 0 and meter._collection is None for meter in made.values())


class Odd(Task):
    """Gives something else while it trains."""

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        output = model(batch[0])
        loss = criterion(output, batch[1])
        return (
            StepOutput(loss, output[:, 0], batch[1].float()) if model.training else StepOutput(loss, output, batch[1])
        )


def test_a_task_that_gives_something_else_in_training_is_tried_in_training() -> None:
    made = {"train": SplitMetrics("train", lambda: {"mse": MeanSquaredError()}),
            "val": SplitMetrics("val", lambda: {"accuracy": MulticlassAccuracy(3)})}  # fmt: skip
    parts: Any = (Odd(), nn.CrossEntropyLoss(), Engine("cpu"))
    found = try_metrics(data(), nn.Linear(4, 3), *parts, made, monitor="val/loss")
    assert {"train/mse", "val/accuracy"} <= {name for split in found.values() for name in split.values}
    made["train"] = SplitMetrics("train", lambda: {"accuracy": MulticlassAccuracy(3)})
    with pytest.raises(UserError, match=r"^metrics\.train\.accuracy: the metric does not take"):
        try_metrics(data(), nn.Linear(4, 3), *parts, made, monitor="val/loss")


class Wants(nn.Linear):
    """A network that fails outside of training, or on small batches."""

    def __init__(self, need: str) -> None:
        super().__init__(4, 3)
        self.need = need

    def forward(self, x: Tensor) -> Tensor:
        if not {"training": self.training, "batch": len(x) > 2, "nothing": True}[self.need]:
            raise RuntimeError(self.need)
        return super().forward(x)


@pytest.mark.parametrize("need", ["training", "batch", "nothing"])
def test_what_the_model_cannot_do_is_not_for_metrics_to_say(need: str) -> None:
    found = tried(Wants(need), lambda: {"accuracy": MulticlassAccuracy(3)})
    assert bool(found) == (need != "training")


def test_without_metrics_or_sizes_nothing_is_tried() -> None:
    assert try_metrics(data(), Busy(), Supervised(), nn.MSELoss(), Engine("cpu"), {}, monitor="val/loss") == {}
    assert tried(nn.LazyLinear(3), lambda: {"accuracy": MulticlassAccuracy(3)}) == {}
