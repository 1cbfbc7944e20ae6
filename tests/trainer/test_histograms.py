"""Histograms of weights and gradients: their names, their true size, and each of them once after a kill."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from lightkit.assembly import build
from lightkit.common.errors import UserErrors
from lightkit.device import Engine
from lightkit.loggers.base import Logger
from lightkit.loggers.events import repeated
from lightkit.trainer.callbacks import Callback
from lightkit.trainer.histograms import Histograms
from tests.resume.harness import Case, configured
from tests.trainer.parts import Recorder, network, trainer


def points(folder: Path) -> Counter[tuple[str, int, float]]:
    """Tag, step and sum of every histogram."""
    events = EventAccumulator(str(folder), {"histograms": 0}).Reload()
    found = {tag: events.Histograms(tag) for tag in events.Tags()["histograms"]}
    return Counter((tag, one.step, one.histogram_value.sum) for tag, all_ in found.items() for one in all_)


@pytest.mark.thorough
@pytest.mark.parametrize("phase", ["micro", "save", "test"])
def test_a_killed_run_has_each_histogram_once(tmp_path: Path, phase: str) -> None:
    case = Case(configured("data=wine", "logger.tensorboard.histograms=3", "trainer.nonfinite.every=2"), tmp_path)
    whole = points(case.whole)
    names = {name for name, _ in build(case.cfg, tmp_path / "other").model.named_parameters()}
    assert {tag.partition("/vitals/")[2] for tag, _, _ in whole} >= {f"weights/{name}" for name in names}
    assert {step for _, step, _ in whole} == {*range(3, 25, 3)}
    moments = case.moments(phase)
    place = case.kill(moments[len(moments) // 2], phase)
    case.resume(place)
    assert points(place) == whole
    assert repeated(place) == {}
    assert case.differences(place) == []


class Norms(Callback):
    """Keeps the norm of the gradients of each step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_before_update(self, trainer: Any) -> None:
        self.found.append(float(torch.stack([grad.norm() for grad in trainer.gradients().values()]).norm()))


class Wrapped(nn.Module):
    """What puts a prefix before all names."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self.module(x)


class Kept(Recorder):
    """Keeps names and steps of histograms too."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, int]] = []

    def histogram(self, name: str, values: Any, *, step: int) -> None:
        self.seen.append((name, step, values.numel()))


def test_names_are_those_of_the_model_and_gradients_have_their_true_size() -> None:
    net, norms, logger = network(), Norms(), Kept()
    net[0].bias.requires_grad_(False)
    engine = Engine("cpu", precision="fp16")
    engine.precision.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)  # of which nothing overflows
    parts = {"network": Wrapped(net), "engine": engine, "logger": logger}
    run = trainer(net, callbacks=[norms, Histograms(3)], timetable={"epochs": 1}, **parts)
    run.fit()
    assert engine.precision.scaler.get_scale() == 8.0
    assert norms.found == pytest.approx([value for _, value in logger.series("grad/norm")], rel=1e-3)
    names = [name for name, weight in net.named_parameters() if weight.requires_grad]
    found = [(f"{kind}/{name}", 3) for kind in ("gradients", "weights") for name in names]
    assert [(name, step) for name, step, _ in logger.seen] == found
    assert "0.bias" not in names


def test_sparse_gradients_show_what_they_hold() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 1, sparse=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.table(torch.zeros(len(x), dtype=torch.int64))

    logger = Kept()
    trainer(Words(), callbacks=[Histograms(1)], timetable={"epochs": 1}, momentum=0.0, logger=logger).fit()
    assert ("gradients/table.weight", 1, 1) in logger.seen


def test_nobody_is_called_where_there_are_none() -> None:
    for value in ("null", "0"):
        assert configured(f"logger.tensorboard.histograms={value}").logger.tensorboard.histograms in (None, 0)
    run = trainer(logger=Logger())
    assert not any(run._hooks.values())
    engine = ("ensemble=voting", "ensemble.size=2", "ensemble.engine=torchensemble")
    with pytest.raises(UserErrors, match=r"logger\.tensorboard\.histograms: ensemble\.engine=torchensemble"):
        configured("logger.tensorboard.histograms=3", *engine, base=())
