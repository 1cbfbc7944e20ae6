"""Callbacks and logged numbers of a user's own, through a whole run."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli import main
from lightkit.runs.reading import read_jsonl
from tests.conftest import Outcome
from tests.resume.harness import forked
from tests.runner.processes import configured, train

Cli = Callable[..., Outcome]
RUN = "outputs/runs/one"
SHORT = (
    "data=wine", "model.hidden=[8]", "trainer.epochs=2", "checkpoint.every_steps=3", "logger.every_steps=2",
    "metrics.figures=[]", "device=cpu", f"hydra.run.dir={RUN}",
)  # fmt: skip
HOOKED, TASK = "trainer.callbacks.hooked._target_=mine.Hooked", "trainer.task._target_=mine.Regularised"
CODE = '''
import os
import signal

import torch
from matplotlib.figure import Figure

from lightkit.trainer import Callback, StepOutput, Supervised


class Hooked(Callback):
    """Writes down every call."""

    def __init__(self, fail=""):
        self.fail, self.batches = fail, 0

    def _note(self, trainer, *words):
        with open("calls", "a") as file:
            print(*words, file=file)
        if words[0] == self.fail:
            raise ValueError("broken on purpose")

    def on_fit_start(self, trainer):
        run = trainer.run
        self._note(trainer, "fit_start", run.name, run.folder.name, run.config.optim.lr, run.git is not None)

    def on_batch(self, trainer, loss, outputs):
        assert loss.ndim == 0 and not loss.requires_grad and not outputs.requires_grad
        self.batches += 1

    def on_before_update(self, trainer):
        assert all(parameter.grad is not None for parameter in trainer.model.parameters())

    def on_step(self, trainer):
        self._note(trainer, "step", trainer.state.step, self.batches)

    def on_validation(self, trainer, values):
        self._note(trainer, "validation", len(values))

    def on_epoch(self, trainer, values):
        step, weights = trainer.state.step, torch.cat([weight.flatten() for weight in trainer.model.parameters()])
        trainer.log({"extra/norm": weights.norm()})
        trainer.logger.histogram("weights", weights, step=step)
        trainer.logger.figure("empty", Figure(), step=step)
        trainer.logger.text("note", "*so far*", step=step)
        trainer.logger.images("noise", torch.rand(2, 1, 4, 4), step=step)
        self._note(trainer, "epoch", trainer.state.epoch)

    def on_save(self, trainer, path):
        self._note(trainer, "save", path.name)

    def on_fit_end(self, trainer):
        self._note(trainer, "fit_end")

    def on_test(self, trainer, values):
        self._note(trainer, "test", "test/loss" in values)

    def on_exception(self, trainer, error):
        self._note(trainer, "exception", type(error).__name__)

    def on_end(self, trainer, status):
        self._note(trainer, "end", status)

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]


class Regularised(Supervised):
    """Logs two numbers of its own."""

    def __init__(self, name="outputs"):
        self.name = name

    def step(self, model, batch, criterion):
        step = super().step(model, batch, criterion)
        means = step.preds.detach().double()
        return step._replace(log={self.name: means[:, 0], "first": batch[0].double()[:, 0].mean(), "one": 1.0})


class Kill(Callback):
    """Kills the run once."""

    def on_step(self, trainer):
        if trainer.state.step == 5 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
'''


@pytest.fixture
def own(project: Path) -> Path:
    (project / "mine.py").write_text(CODE)
    return project


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def series(folder: Path, name: str) -> dict[int, float]:
    return {row["step"]: row[name] for row in read_jsonl(folder / "metrics.jsonl") if name in row}


def test_a_callback_sees_the_whole_run(own: Path, cli: Cli) -> None:
    assert cli("train", *SHORT, HOOKED, "optim.lr=0.02", "data.batch_size=16", "trainer.accumulate=2").code == 0
    seen = calls(own)
    assert seen[0].startswith("fit_start wine_mlp one 0.02 ")
    assert seen[-3:] == ["fit_end", "test True", "end finished"]
    steps = [line for line in seen if line.startswith("step")]
    assert steps[:4] == ["step 1 2", "step 2 4", "step 3 6", "step 4 8"]
    assert [line for line in seen if line.startswith("epoch")] == ["epoch 1", "epoch 2"]
    assert {line for line in seen if line.startswith("save")} >= {"save step-00000003.pt", "save step-00000008.pt"}
    assert set(series(own / RUN, "extra/norm")) == {4, 8}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(own / RUN), {"histograms": 0}).Reload()
    (tag,) = [tag for tag in events.Tags()["histograms"] if "weights" in tag]
    assert [event.step for event in events.Histograms(tag)] == [4, 8]
    assert all(any(name in tag for tag in events.Tags()["images"]) for name in ("empty", "noise"))


@pytest.mark.parametrize(
    ("option", "code", "end"),
    [
        ("trainer.callbacks.hooked.fail=step", 1, ["exception ValueError", "end failed"]),
        pytest.param(
            "trainer.callbacks.hooked.fail=test", 1, ["exception ValueError", "end failed"], marks=pytest.mark.thorough
        ),
        ("trainer.stop_at=1", 0, ["end paused"]),
    ],
)
def test_it_sees_errors_and_the_end(own: Path, cli: Cli, option: str, code: int, end: list[str]) -> None:
    assert cli("train", *SHORT, HOOKED, option).code == code
    assert calls(own)[-len(end) :] == end
    assert result(own / RUN)["status"] == end[-1].partition(" ")[2]


def test_an_error_in_the_last_hooks_does_not_hide_the_first(own: Path, cli: Cli) -> None:
    (own / "other.py").write_text(
        "from mine import Hooked\nclass Other(Hooked):\n    def on_step(self, trainer): raise KeyError('the first')\n"
    )
    ended = cli("train", *SHORT, "trainer.callbacks.hooked={_target_: other.Other, fail: end}")
    assert ended.err.rstrip().splitlines()[-1].startswith("KeyError: 'the first'"), ended.err
    assert "a callback fails where the run ends: ValueError: broken on purpose" in (own / RUN / "run.log").read_text()


LOGGED = (
    "metrics=none",
    "logger.tensorboard.enabled=false",
    "data.batch_size=32",
    "metrics.monitor=val/outputs",
    "metrics.mode=max",
)


def test_numbers_of_the_task_are_means_over_samples(own: Path, cli: Cli) -> None:
    assert cli("train", *SHORT, TASK, *LOGGED).code == 0
    large = result(own / RUN)
    assert large["objective"]["name"] == "val/outputs"
    assert large["objective"]["value"] == max(series(own / RUN, "val/outputs").values())
    assert large["test"]["test/one"] == 1.0
    rest = (*SHORT[:-1], "hydra.run.dir=outputs/runs/two")
    assert cli("train", *rest, TASK, *LOGGED, "data.batch_size=7", "trainer.accumulate=1").code == 0
    small = result(own / "outputs/runs/two")
    for name in ("train/first", "val/first", "test/first"):  # of the inputs: the same whatever was learnt
        assert large["metrics"][name] == pytest.approx(small["metrics"][name], abs=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("ensemble", [(), ("ensemble=voting", "ensemble.size=2")])
def test_numbers_of_the_task_survive_a_kill_in_mid_epoch(own: Path, cli: Cli, ensemble: tuple[str, ...]) -> None:
    options = (*SHORT, TASK, *LOGGED, *ensemble, "data.batch_size=16", "checkpoint.every_steps=2")
    whole = (*options, "hydra.run.dir=outputs/runs/whole")
    assert cli("train", *whole).code == 0
    kill = "trainer.callbacks.kill._target_=mine.Kill"
    forked(lambda: main(["train", *options, kill]), own / "log", want=-signal.SIGKILL)
    assert cli("resume", RUN).code == 0
    for name in ("train/outputs", "val/outputs", "test/outputs", "train/first"):
        for folder in ("members/00", "members/01") if ensemble else (".",):
            assert series(own / RUN / folder, name) == series(own / "outputs/runs/whole" / folder, name) != {}


@pytest.mark.thorough
def test_several_processes_count_each_sample_once(own: Path) -> None:
    options = (TASK, "trainer.epochs=1", "metrics.monitor=val/first", "metrics.mode=min")
    train(own / "two", configured(*options), 2)
    train(own / "one", configured(*options), 1)
    for name in ("train/first", "val/first", "test/first"):
        assert series(own / "two", name) == pytest.approx(series(own / "one", name), abs=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([TASK, "metrics.monitor=val/output", "metrics.mode=max"], "val/outputs"),
        ([TASK, "trainer.task.name=accuracy"], "a name that is taken"),
        (["metrics.monitor=val/outputs"], "no metric of that name"),
    ],
)
def test_a_wrong_name_is_an_error_before_training(own: Path, cli: Cli, options: list[str], message: str) -> None:
    refused = cli("train", *SHORT, *options)
    assert (refused.code, message in refused.err) == (2, True), refused.err
