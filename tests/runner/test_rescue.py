"""An error in anybody's code costs no whole step: once it is mended, the run ends as if nothing had happened."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.common.modules import mapped
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
PARTS = """
import os
from pathlib import Path
import torch
import torchmetrics
from torch import nn
from lightkit import Logger
from lightkit.data.tables import wine
from lightkit.trainer import Callback
from lightkit.trainer.tasks import Supervised

def fails(place, step):
    file = Path("broken")
    if Task.armed and file.exists() and file.read_text() == f"{place} {step}":
        raise (KeyboardInterrupt if place == "stop" else ValueError)("my own mistake")

class Net(nn.Module):
    def __init__(self, in_features: int, num_classes: int):
        super().__init__()
        norm, last = nn.BatchNorm1d(8), nn.Linear(8, num_classes)
        self.layers = nn.Sequential(nn.Linear(in_features, 8), norm, nn.ReLU(), nn.Dropout(0.2), last)

    def forward(self, x):
        return self.layers(x)

class Task(Supervised):
    calls, armed = 0, False
    def step(self, model, batch, criterion):
        out = super().step(model, batch, criterion)
        kind = "train" if model.training else "val"
        Task.calls += model.training and Task.armed
        fails(kind, Task.calls)
        fails("stop", Task.calls)
        return out

class Loss(nn.CrossEntropyLoss):
    def forward(self, x, y):
        fails("loss", Task.calls)
        return super().forward(x, y)

class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = wine()
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        fails("data", Task.calls)
        return self.rows[index]

class Metric(torchmetrics.SumMetric):
    def update(self, *args):
        fails("metric", Task.calls)
        super().update(1.0)

class Log(Logger):
    def scalars(self, values, *, step, epoch):
        fails("logger", step)

class Counter(Callback):
    def __init__(self):
        self.steps = self.validations = self.epochs = 0
    def on_fit_start(self, trainer):
        Task.calls, Task.armed = 0, True
    def on_fit_end(self, trainer):
        Task.armed = False
    def on_step(self, trainer):
        self.steps += 1
        trainer.log({"extra/steps": self.steps})
        fails("on_step", trainer.state.step)
    def on_validation(self, trainer, values):
        self.validations += 1
        fails("on_validation", trainer.state.step)
    def on_epoch(self, trainer, values):
        self.epochs += 1
        trainer.log({"extra/epochs": self.epochs})
        fails("on_epoch", trainer.state.step)
        if Path("broken").exists() and Path("broken").read_text() == "weights":
            with torch.no_grad():
                next(trainer.model.parameters()).mul_(2)
            raise ValueError("in the middle of the weights")
    def state_dict(self):
        return dict(vars(self))
    def load_state_dict(self, state):
        vars(self).update(state)
"""
ARGS = (
    "data=wine", "model={_target_: own_parts.Net}", "loss={_target_: own_parts.Loss}",
    "trainer.task._target_=own_parts.Task", "trainer.callbacks.counter._target_=own_parts.Counter", "trainer.epochs=3",
    "trainer.accumulate=2", "data.batch_size=16", "metrics.figures=[]", "logger.every_steps=1",
    "checkpoint.every_epochs=100", "scheduler=plateau", "logger.tensorboard.enabled=false",
)  # fmt: skip
PARTS_OF_A_RUN = ("model", "optimizer", "scheduler", "state", "callbacks", "metrics")
OWN = ("speed/", "system/", "time")


@pytest.fixture
def parts(project: Path) -> Path:
    (project / "own_parts.py").write_text(PARTS)
    return project


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: v for name, v in json.loads(line).items() if not name.startswith(OWN)} for line in lines]


def final(folder: Path) -> dict[str, Any]:
    saved = torch.load(max((folder / "checkpoints").glob("step-*.pt")), weights_only=True)
    state = saved["state"]
    state["last"] = {name: value for name, value in state["last"].items() if not name.startswith(OWN)}
    return mapped(lambda tensor: tensor.numpy(), {name: saved[name] for name in PARTS_OF_A_RUN})


def begin(cli: Cli, *more: str) -> Outcome:
    return cli("train", *ARGS, *more)


PLACES = [
    ("on_validation", 8), ("train", 6), ("loss", 7), ("stop", 6), ("val", 16), ("on_step", 4), ("on_epoch", 8),
    ("data", 6), ("data", 16), ("metric", 8), ("metric", 16),
]  # fmt: skip
OWN_PARTS = {
    "data": ("data.dataset._target_=own_parts.Rows", "data.normalize=none", "data.split.by=random"),
    "metric": ("metrics.train.own._target_=own_parts.Metric", "metrics.val.own._target_=own_parts.Metric"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("place", "step"), PLACES)
def test_the_last_whole_step_is_saved_wherever_the_error_comes(cli: Cli, parts: Path, place: str, step: int) -> None:
    project = parts
    own = OWN_PARTS.get(place, ())
    whole = begin(cli, "hydra.run.dir=whole", *own)
    assert whole.code == 0, whole.err
    (project / "broken").write_text(f"{place} {step}")
    failed = begin(cli, "hydra.run.dir=run", *own)
    assert failed.code != 0
    result = json.loads((project / "run" / "result.json").read_text())
    assert result["status"] == ("interrupted" if place == "stop" else "failed")
    assert "the last that is whole, is saved" in failed.out + failed.err, failed.out + failed.err
    assert (project / "run" / "checkpoints").is_dir()
    (project / "broken").unlink()
    resumed = cli("resume", "run")
    assert resumed.code == 0, resumed.err
    assert rows(project / "run") == rows(project / "whole")
    np.testing.assert_equal(final(project / "run"), final(project / "whole"))


def test_what_is_not_whole_is_not_saved_and_that_is_said(cli: Cli, parts: Path) -> None:
    (parts / "broken").write_text("weights")
    failed = begin(cli, "hydra.run.dir=run")
    assert failed.code == 1
    assert "which is not saved: lightkit resume goes on from the last checkpoint" in failed.out + failed.err
    assert not [*(parts / "run" / "checkpoints").glob("step-*.pt")]


@pytest.mark.thorough
def test_members_of_an_ensemble_lose_no_step_either(cli: Cli, parts: Path) -> None:
    (parts / "broken").write_text("train 6")
    args = ("ensemble=voting", "ensemble.size=2", "ensemble.engine=sequential")
    assert begin(cli, *args, "hydra.run.dir=run").code == 1
    assert "00  step 2, the last that is whole, is saved" in (parts / "run" / "run.log").read_text()
    assert "the last that is whole, is saved" in (parts / "run" / "members" / "00" / "run.log").read_text()
    (parts / "broken").unlink()
    assert cli("resume", "run").code == 0


def test_a_logger_that_fails_costs_nothing(cli: Cli, parts: Path) -> None:
    (parts / "broken").write_text("logger 4")
    done = begin(cli, "logger.more.own._target_=own_parts.Log", "hydra.run.dir=run")
    log = (parts / "run" / "run.log").read_text()
    assert (done.code, "logger.more.own is left out: scalars fails: ValueError: my own mistake" in log) == (0, True)
    (parts / "broken").unlink()
    assert begin(cli, "hydra.run.dir=whole").code == 0
    np.testing.assert_equal(final(parts / "run"), final(parts / "whole"))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [("cv=2",), ("ensemble=voting", "ensemble.size=2", "ensemble.engine=sequential")])
def test_models_of_one_run_say_which_code_has_changed_before_they_train(cli: Cli, parts: Path, kind: Any) -> None:
    (parts / "broken").write_text("train 6")
    assert begin(cli, *kind, "trainer.epochs=2", "hydra.run.dir=run").code == 1
    (parts / "broken").unlink()
    (parts / "own_parts.py").write_text(PARTS.replace("my own mistake", "mine"))
    del sys.modules["own_parts"]
    done = cli("resume", "run")
    assert done.code == 0, done.err
    text = done.out + done.err
    line = "the code of own_parts (loss, model, trainer.task, trainer.callbacks.counter) has changed"
    assert line in text
    assert text.index(line) < text.index("step ")
