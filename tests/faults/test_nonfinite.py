"""Losses, weights and data that are not finite, by way of `trainer.nonfinite`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.faults.harness import TRAIN, Process, log, newest, result, rows

Run = Callable[..., Process]
SPOIL = "data.augment=[{_target_: faulty.Spoil, first: 40}]"
MODEL = ("model.what=spoil", "model.phase=train")


def assert_stopped(process: Process, folder: Path, *texts: str) -> None:
    assert process.code == 3, process.out + process.err
    assert "Traceback" not in process.err
    for text in ("error: trainer.nonfinite: ", *texts):
        assert text in process.err
    assert result(folder)["status"] == "failed"
    assert texts[0] in result(folder)["reason"]
    assert texts[0] in log(folder)


@pytest.mark.thorough
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_bad_input_ends_the_run_and_is_named(ran: Run, project: Path, value: str) -> None:
    process = ran(*TRAIN, SPOIL.replace("}", f", value: {value}}}"), "checkpoint.every_steps=1")
    where = "the loss is no longer finite at step 5 (epoch 1, samples from 40 on); tensor 0 of the batch is not finite"
    assert_stopped(process, project / "run", where)
    assert newest(project / "run")["state"]["step"] == 4


def test_a_bad_output_is_named_by_its_module(ran: Run, project: Path) -> None:
    process = ran(*TRAIN, *MODEL, "model.number=9", "model.times=2", "checkpoint.every_steps=1")
    where = "at step 9 (epoch 2, samples from 10 on); the output of head is the first that is not finite"
    assert_stopped(process, project / "run", where)
    saved = newest(project / "run")
    assert saved["state"]["step"] == 8
    assert all(torch.isfinite(tensor).all() for tensor in saved["model"].values())


def test_a_bad_gradient_of_a_fine_loss_is_never_saved(ran: Run, project: Path) -> None:
    task = ("trainer.task._target_=faulty.BadGradient", "trainer.task.number=5")
    process = ran(*TRAIN, *task, "checkpoint.every_steps=1")
    assert_stopped(process, project / "run", "parameter head.weight is no longer finite after step 5 (epoch 1)")
    saved = newest(project / "run")
    assert saved["state"]["step"] == 4
    assert all(torch.isfinite(tensor).all() for tensor in saved["model"].values())


def test_skipping_counts_logs_and_keeps_norm_layers_clean(ran: Run, project: Path) -> None:
    process = ran(*TRAIN, SPOIL.replace("}", ", last: 40}"), "trainer.nonfinite.action=skip")
    assert process.code == 0, process.err
    skipped = [f"step {step}: the loss is not finite, step skipped" for step in (5, 12, 19)]
    assert [line for line in process.out.splitlines() if "skipped" in line] == skipped
    assert all(line in log(project / "run") for line in skipped)
    assert result(project / "run")["skipped_steps"] == 3
    saved = newest(project / "run")
    assert saved["state"]["skipped"] == 3
    assert saved["state"]["step"] == 21
    assert all(torch.isfinite(tensor).all() for tensor in saved["model"].values())
    assert len([row for row in rows(project / "run") if "train/loss_step" in row]) == 21


@pytest.mark.thorough
def test_skipping_has_a_limit_that_holds_across_a_resume(ran: Run, project: Path) -> None:
    options = ("trainer.nonfinite.action=skip", "trainer.nonfinite.limit=1", "checkpoint.every_steps=1")
    process = ran(*TRAIN, SPOIL.replace("}", ", last: 40}"), *options)
    where = "at step 12 (epoch 2, samples from 40 on); tensor 0 of the batch is not finite; after 1 skipped step"
    assert_stopped(process, project / "run", where)
    assert "skip or" not in process.err
    assert_stopped(ran("resume", "run"), project / "run", where)
    (project / "fine").touch()
    assert ran("resume", "run").code == 0
    assert result(project / "run")["skipped_steps"] == 1


def test_going_back_lowers_the_rates_and_forgets_what_was_logged(ran: Run, project: Path) -> None:
    options = ("trainer.nonfinite.action=rollback", "trainer.nonfinite.every=3", "trainer.nonfinite.factor=0.1")
    process = ran(*TRAIN, *MODEL, "model.number=12", *options, "scheduler=constant")
    assert process.code == 0, process.err
    line = "step 12: the loss is not finite, back to step 6, learning rates times 0.1"
    assert line in process.out
    assert line in log(project / "run")
    assert result(project / "run")["rollbacks"] == 1
    logged = [row for row in rows(project / "run") if "train/loss_step" in row]
    assert [row["step"] for row in logged] == list(range(1, 22))
    rates = [row["lr/decay"] for row in logged]
    assert rates == pytest.approx([rates[0]] * 6 + [rates[0] * 0.1] * 15)
    assert newest(project / "run")["scheduler"]["rate_scale"] == pytest.approx(0.1)


def test_going_back_again_and_again_ends(ran: Run, project: Path) -> None:
    options = ("trainer.nonfinite.action=rollback", "trainer.nonfinite.every=3", "trainer.nonfinite.limit=2")
    process = ran(*TRAIN, SPOIL, *options, "checkpoint.every_steps=1")
    where = "at step 5 (epoch 1, samples from 40 on); tensor 0 of the batch is not finite; went back 2 times before"
    assert_stopped(process, project / "run", where)
    assert "action=rollback" not in process.err, "no advice to do what was done"
    assert "a larger trainer.nonfinite.limit" in process.err
    assert process.out.count("the loss is not finite, back to step 0") == 2
    assert newest(project / "run")["state"]["step"] == 4
