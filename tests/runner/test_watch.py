"""Whole runs that are watched: sound ones of every kind, and faults in fine-tuning and in one of several processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.runner.fit import Observer
from lightkit.trainer import Callback
from lightkit.trainer.learner import Learner
from tests.runner.processes import configured, together

QUIET = ("device=cpu", "logger=quiet", "logger.tensorboard.enabled=false", "metrics.figures=[]", "checkpoint=none")
WINE = ("data=wine", "model.hidden=[8]", "trainer.epochs=2", *QUIET)
STOP = ("trainer.watch.every=3", "trainer.watch.action=stop")


class Nudge(Callback):
    """Moves a weight a little, after a step and in the processes that are named."""

    def __init__(self, name: str, *, at: int = 4, ranks: tuple[int, ...] = (0,)) -> None:
        self.name, self.at, self.ranks = name, at, ranks

    def on_step(self, trainer: Any) -> None:
        if trainer.state.step == self.at and trainer.engine.ranks.rank in self.ranks:
            weights = dict(trainer.learner.model.named_parameters())[self.name]
            with torch.no_grad():
                weights += 1e-3


class With(Observer):
    """Adds a callback."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def watch(self, learner: Learner) -> Learner:
        return replace(learner, callbacks={**learner.callbacks, "fault": self.callback})


def run(folder: Path, *overrides: str, fault: Callback | None = None) -> str:
    """Train; returns the log."""
    observer = None if fault is None else With(fault)
    Runner(compose([*WINE, *overrides]).cfg, folder, observer=observer).run()
    return (folder / "run.log").read_text()


GRADUAL = ("finetune=gradual", "finetune.gradual.share=null", "finetune.gradual.every_steps=5", "model.hidden=[8,7]")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [
        ("optim=sgd", "trainer.ema.decay=0.9", "trainer.accumulate=2", "trainer.validate_unit=step"),
        GRADUAL,
        ("finetune=lora",),
        ("device.precision=bf16", "scheduler=one_cycle", "trainer.nonfinite.action=rollback"),
    ],
    ids=["sgd", "gradual", "lora", "rollback"],
)
def test_sound_runs_go_on(changes: tuple[str, ...], tmp_path: Path) -> None:
    assert "watch (" not in run(tmp_path, *STOP, *changes)


def test_a_frozen_parameter_of_a_fine_tuning_that_moves(tmp_path: Path) -> None:
    tuned = ("finetune=head", "finetune.audit=none")
    with pytest.raises(UserError, match=r"\(after step 6\)\n +frozen, but moved: layers") as caught:
        run(tmp_path, *STOP, *tuned, fault=Nudge("layers.linear0.weight"))
    assert caught.value.exit_code == 6


def test_a_run_is_watched_unless_it_is_told_otherwise_and_only_tells(tmp_path: Path) -> None:
    tuned = ("finetune=head", "finetune.audit=none")
    told = run(tmp_path / "told", *tuned, fault=Nudge("layers.linear0.weight"))
    assert "watch (after step 16): frozen, but moved: layers.linear0.weight" in told
    assert "watch (" not in run(
        tmp_path / "not", *tuned, "trainer.watch.every=null", fault=Nudge("layers.linear0.weight")
    )


def watched(place: Path, cfg: Any, fault: Callback, *, count: int = 2) -> tuple[list[int], str]:
    """Train in several processes; returns their exit statuses, and what they said."""
    log = place.with_name("log")
    codes = together(lambda: Runner(cfg, place, observer=With(fault)).run(), count, log)
    return codes, "\n".join(path.read_text() for path in sorted(log.parent.glob("log-*")))


def test_processes_whose_weights_come_apart(tmp_path: Path) -> None:
    codes, told = watched(tmp_path / "run", configured(*STOP), Nudge("layers.linear0.weight", ranks=(1,)))
    assert codes == [6, 6]
    assert "training does not do what it says (after step 6)" in told
    assert "not the same in all processes: layers.linear0.weight" in told


@pytest.mark.thorough
def test_parts_of_a_model_in_several_processes_of_which_a_frozen_one_moves(tmp_path: Path) -> None:
    """Each process sees its part, and all come to the same verdict."""
    parts = ("device.parallel=fsdp", "device.fsdp.min_parameters=1", "finetune=head", "finetune.audit=none")
    codes, told = watched(tmp_path / "run", configured(*STOP, *parts), Nudge("layers.linear0.weight", ranks=(0, 1)))
    assert codes == [6, 6]
    assert told.count("frozen, but moved: layers.linear0.weight") >= 2
