"""Steps that a loss scale leaves out: counted on the device, logged, saved, and the same after a resume."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.assembly.parts import check_hooks
from lightkit.checkpoint import content
from lightkit.device import Engine
from lightkit.trainer import Trainer
from lightkit.trainer.callbacks import Callback
from lightkit.trainer.report import result
from tests.trainer import parts
from tests.trainer.parts import changed, same_weights, saving, stateful


class Steep(nn.Module):
    """A finite loss whose gradient is not, for the calls that are named."""

    def __init__(self, *calls: int) -> None:
        super().__init__()
        self.calls, self.count = calls, 0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(output, target)
        if not torch.is_grad_enabled():
            return loss
        self.count += 1
        return loss + (output.sum() * 0.0).sqrt() if self.count in self.calls else loss


class Reads(Callback):
    """Counts how often the loop waits for the number of skipped steps."""

    def __init__(self) -> None:
        self.at: list[int] = []

    def on_fit_start(self, trainer: Trainer) -> None:
        original = trainer.engine.precision.skipped
        trainer.engine.precision.skipped = lambda: self.at.append(trainer.state.step) or original()


def trainer(*calls: int, **changes: Any) -> Trainer:
    options: dict[str, Any] = {"criterion": Steep(*calls), "engine": Engine("cpu", precision="fp16", clip_norm=1.0)}
    made = parts.trainer(**{"timetable": {"epochs": 2, "log_steps": 2}} | options | changes)
    made.engine.precision.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    return changed(made, network=made.engine.wrap(made.model))


def test_skipped_steps_are_counted_and_logged_with_the_scale():
    run = trainer(1, 4)
    state = run.fit()
    assert state.step == 8, "a step that is left out counts as one"
    assert state.scaler_skipped == 2
    assert state.skipped == 0, "which are those whose loss was not finite"
    assert run.logger.series("amp/skipped_steps") == [(2, 1.0), (4, 2.0), (6, 2.0), (8, 2.0)]
    assert run.logger.series("amp/scale") == [(2, 4.0), (4, 2.0), (6, 2.0), (8, 2.0)]
    assert run.logger.series("grad/norm")[1] == (4, pytest.approx(float("nan"), nan_ok=True))
    shown = result(state, status="finished", monitor="val/loss", mode="min")
    assert shown["scaler_skipped_steps"] == 2
    assert shown["metrics"]["amp/skipped_steps"] == 2.0


def test_nothing_of_it_is_logged_in_other_precisions():
    run = parts.trainer()
    assert run.fit().scaler_skipped == 0
    assert not [name for _, values in run.logger.rows for name in values if name.startswith("amp/")]


def test_the_device_is_waited_for_only_when_logging_and_saving():
    reads = Reads()
    check_hooks(reads, key="trainer.callbacks.reads")
    run, saved = saving(trainer(3, callbacks=[reads]))
    run.fit()
    assert {step for step, _ in saved} <= {*reads.at} == {2, 4, 6, 8}


@pytest.mark.parametrize("at", [3, 5])
def test_a_resumed_run_goes_on_counting(at):
    calls = (1, 4, 7)
    whole, first, resumed = (trainer(*calls) for _ in range(3))
    expected = whole.fit()
    taken: dict[str, Any] = {}

    class Take(Callback):
        def on_step(self, trainer: Trainer) -> None:
            if trainer.state.step == at:
                taken.update(copy.deepcopy(content.gather(**stateful(trainer))))

    first._hooks["on_step"] = [Take()]
    first.fit()
    content.apply(taken, **stateful(resumed))
    resumed.learner.criterion.count = at
    state = resumed.fit()
    assert state.state_dict() == expected.state_dict() | {"last": state.last}
    for name in expected.last:
        if name.startswith(("amp/", "train/", "val/")):
            assert state.last[name] == expected.last[name]
    assert resumed.engine.precision.state_dict() == whole.engine.precision.state_dict()
    assert same_weights(whole, resumed)
