"""Runs in two processes on the CPU against the same run in one."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.runner import Runner
from lightkit.runner.fit import Observer
from lightkit.runner.verify import TracedJob, shortened
from lightkit.trainer import Callback
from lightkit.trainer.learner import Learner
from tests.runner.processes import configured, far, go_on, series, together, train
from tests.waiting import until

LOST = 7


def content(place: Path) -> dict[str, Any]:
    found = CheckpointStore(place / "checkpoints").load_newest()
    assert found is not None
    return found[1]


def same_bits(one: Path, other: Path) -> None:
    assert series(one) == series(other)
    first, second = content(one), content(other)
    assert first["state"] | {"last": 0, "best": 0} == second["state"] | {"last": 0, "best": 0}
    assert first["model"].keys() == second["model"].keys()
    for name, tensor in first["model"].items():
        assert torch.equal(tensor, second["model"][name]), name
    for name, tensor in ((first["ema"] or {}).get("weights") or {}).items():
        assert torch.equal(tensor, second["ema"]["weights"][name]), name


IMAGES = (
    "data=shapes", "data.batch_size=20", "data.dataset.size=16", "data.dataset.train=90", "data.dataset.val=24",
    "data.dataset.test=24", "data.augment=[{_target_: lightkit.data.transforms.RandomAffine}]", "trainer.epochs=1",
)  # fmt: skip
DRAWING = ("data=custom", "data.dataset._target_=tests.resume.sets.Drawing", "data.num_workers=1", "trust=[tests]")
GRADUAL = ("finetune.freeze=['@body']", "finetune.gradual.every_steps=4", "model.hidden=[8,8]", "trainer.epochs=3")
CHANGES = {
    "much at once": ("data.batch_size=9", "trainer.accumulate=2", "data.eval_batch_size=5", "trainer.ema.decay=0.9",
                     "trainer.clip_norm=0.5", "trainer.validate_unit=step", "trainer.validate_every=3",
                     "data.more={same: {split: {}}, few: {split: {val: 0, test: 0.1}}}"),
    "plain": (),
    "mixup": ("data.mixup.alpha=0.4", "data.batch_size=17"),
    "epochs of steps, mean of weights": ("trainer.epoch_steps=5", "trainer.swa.from_epoch=1", "data.batch_size=18"),
    "regression": ("data=diabetes", "data.batch_size=101"),
    "augmented images": IMAGES,
    "samples read one by one in loader processes": (*DRAWING, "trainer.epochs=1"),
    "phases": GRADUAL,
    # 124 rows in batches of 41: the last has one sample, and evaluation ends on one with two.
    "three, of which some have nothing to do": ("data.batch_size=41", "data.eval_batch_size=4"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", CHANGES)
def test_several_processes_learn_what_one_does(name: str, tmp_path: Path) -> None:
    dropout = () if name in ("regression", "augmented images") else ("model.dropout=0.0",)
    cfg = configured(*CHANGES[name], *dropout)
    Runner(cfg, tmp_path / "one").run()
    train(tmp_path / "two", cfg, 3 if name.startswith("three") else 2)
    assert far(tmp_path / "one", tmp_path / "two") == []
    assert json.loads((tmp_path / "two" / "result.json").read_text())["status"] == "finished"


class EndAt(Callback):
    """Ends a process in mid-run; `how` is told its rank."""

    def __init__(self, step: int, how: Any) -> None:
        self.at, self.how = step, how

    def on_step(self, trainer: Any) -> None:
        if trainer.state.step == self.at:
            self.how(trainer.engine.ranks.rank)


class Adding(Observer):
    """Adds a callback."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def watch(self, learner: Learner) -> Learner:
        return replace(learner, callbacks={**learner.callbacks, "end": self._callback})


def ending(cfg: Any, place: Path, end: Callback) -> Runner:
    """A run with such a callback."""
    return Runner(cfg, place, observer=Adding(end))


def ended(place: Path, cfg: Any, at: int, how: Any, *, count: int = 2) -> list[int]:
    return together(lambda: ending(cfg, place, EndAt(at, how)).run(), count, place.with_name(f"{place.name}.log"))


def terminate(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)


def kill(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.thorough
@pytest.mark.parametrize("end", [kill, terminate])
def test_one_that_is_ended_ends_all_and_resume_has_the_same_bits(end: Any, tmp_path: Path) -> None:
    average = "trainer.ema.decay=0.9" if end is kill else "trainer.swa.from_epoch=1"
    options = ("trainer.epoch_steps=3", "logger.tensorboard.histograms=2", "model.norm=batch", "data.drop_last=true")
    cfg = configured("model.dropout=0.5", "checkpoint.every_steps=2", average, *options)
    whole = train(tmp_path / "whole", cfg, 2)
    codes = ended(tmp_path / "cut", cfg, 5, end)
    assert codes == ([LOST, -signal.SIGKILL] if end is kill else [128 + signal.SIGTERM] * 2)
    if end is kill:
        result = json.loads((tmp_path / "cut" / "result.json").read_text())
        assert result["status"] == "failed"
        assert "another process of this run has ended" in result["reason"]
        assert content(tmp_path / "cut")["state"]["step"] == 4
    same_bits(whole, go_on(tmp_path / "cut", 2))


@pytest.mark.thorough
def test_another_number_of_processes_goes_on(tmp_path: Path) -> None:
    cfg = configured("model.dropout=0.0", "data.batch_size=10")
    Runner(cfg, tmp_path / "one").run()
    place = tmp_path / "changing"
    assert ended(place, cfg, 3, terminate) == [143, 143]
    assert ended_again(place, 8) == [143]
    go_on(place, 2)
    assert far(tmp_path / "one", place) == []


def ended_again(place: Path, at: int) -> list[int]:
    from lightkit.config import load_run

    cfg = load_run(place).cfg
    end = EndAt(at, lambda rank: os.kill(os.getpid(), signal.SIGTERM))
    return together(lambda: ending(cfg, place, end).run(resume=True), 1, place.with_name("again.log"))


@pytest.mark.thorough
def test_one_that_fails_takes_the_others_along(tmp_path: Path) -> None:
    def fail(rank: int) -> None:
        if rank == 1:
            raise RuntimeError("only here")

    assert ended(tmp_path / "run", configured(), 2, fail) == [LOST, 1]
    assert "only here" in (tmp_path / "run.log-1").read_text()


def limit(before: timedelta, after: timedelta) -> None:
    """From here on processes wait for each other so long; a start may take longer on a busy machine."""
    backend = torch.distributed.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert backend.options._timeout == before
    backend._set_default_timeout(after)


@pytest.mark.thorough
def test_a_process_that_hangs_is_noticed(tmp_path: Path) -> None:
    def hang(rank: int) -> None:
        limit(timedelta(seconds=300.0), timedelta(seconds=0.5))
        if rank == 1:
            until((tmp_path / "run" / "result.json").exists, "the other to give up")

    codes = ended(tmp_path / "run", configured("device.ddp.timeout_seconds=300"), 2, hang)
    assert codes == [LOST, LOST]  # the second when it goes on and finds nobody there
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"


@pytest.mark.thorough
def test_a_process_that_is_ahead_waits_for_the_next_run_and_not_in_the_last_one(tmp_path: Path) -> None:
    def twice() -> None:
        import torch.distributed as dist

        leave = dist.destroy_process_group

        def leave_late() -> None:
            time.sleep(1 if os.environ["RANK"] == "0" else 0)
            leave()

        dist.destroy_process_group = leave_late
        for seed in (0, 1):
            Runner(configured(f"seed={seed}", "trainer.epochs=1"), tmp_path / f"run{seed}").run()

    assert together(twice, 2, tmp_path / "log") == [0, 0]
    assert series(tmp_path / "run0") != series(tmp_path / "run1")


def test_they_are_neither_verified_nor_started_from_python(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"device\.nproc: runs of one process only can be verified(.|\n)*nproc=1"):
        shortened(TracedJob(folder="", trace="", overrides=("device=ddp", "data=wine")))
    with pytest.raises(UserError, match=r"device\.nproc: these processes are started by the command line"):
        Runner(configured("device.nproc=2"), tmp_path / "run").run()
    assert not (tmp_path / "run").exists()


class Spoilt(Observer):
    """Makes the fourth loss of rank 1 one that is not finite."""

    def watch(self, learner: Learner) -> Learner:
        inner, counted = learner.criterion, [0]

        def criterion(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            counted[0] += output.requires_grad
            bad = learner.engine.ranks.rank == 1 and counted[0] == 4 and output.requires_grad
            return inner(output, target) * (torch.nan if bad else 1.0)

        return replace(learner, criterion=criterion)


@pytest.mark.thorough
@pytest.mark.parametrize("action", ["skip", "stop", "rollback"])
def test_a_bad_loss_in_one_process_concerns_all(action: str, tmp_path: Path) -> None:
    cfg = configured(f"trainer.nonfinite.action={action}", "trainer.nonfinite.every=2", "trainer.epochs=1")
    codes = together(lambda: Runner(cfg, tmp_path / "run", observer=Spoilt()).run(), 2, tmp_path / "log")
    output = "".join(path.read_text() for path in tmp_path.glob("log-*"))
    assert codes == ([3, 3] if action == "stop" else [0, 0]), output
    if action != "stop":
        state = content(tmp_path / "run")["state"]
        assert state["skipped" if action == "skip" else "rollbacks"] == 1
