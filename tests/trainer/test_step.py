"""One optimizer step, and whatever else takes its place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.device import Engine
from lightkit.optim import Lbfgs, Sam
from lightkit.trainer.guard import SkipGuard
from lightkit.trainer.step import ClosureStepper, PlainStepper, check_closure, trial_stepper
from tests.trainer.parts import CPU, changed, network, trainer, weights


def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(rows, 4), torch.zeros(rows)


def test_batches_of_a_window_count_by_their_samples() -> None:
    one, two = trainer(timetable={"steps": 1}), trainer(timetable={"steps": 1})
    for run in (one, two):
        run.model.eval()  # batch norm would see the parts of the window one by one
    assert one.stepper.micro(batch(6), position=0, size=6, window=6, more=False)
    for position, rows in ((0, 4), (4, 2)):
        assert two.stepper.micro(batch(rows), position=position, size=rows, window=6, more=position == 0)
    for mine, others in zip(one.model.parameters(), two.model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, others.grad)
    norms = [run.stepper.update(usable=True, want_norm=True) for run in (one, two)]
    torch.testing.assert_close(norms[0], norms[1])


def test_gradients_that_may_not_be_used_are_thrown_away() -> None:
    run = trainer()
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    assert run.stepper.micro(batch(4), position=0, size=4, window=4, more=False)
    norm = run.stepper.update(usable=False, want_norm=True)
    assert norm is not None
    assert torch.isnan(norm)
    assert all(torch.equal(old, new) for old, new in zip(before, run.model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in run.model.parameters())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_loop_asks_whatever_stepper_it_is_given(accumulate: int) -> None:
    class Counting(PlainStepper):
        def __init__(self, run: Any) -> None:
            super().__init__(run.learner, run.guard, run.services.spans)
            self.calls: list[str] = []

        def micro(self, given: Any, **place: Any) -> bool:
            self.calls.append(f"batch at {place['position']} of {place['window']}{' …' if place['more'] else ''}")
            return super().micro(given, **place)

        def update(self, **options: Any) -> torch.Tensor | None:
            self.calls.append("step")
            return super().update(**options)

    run = trainer(timetable={"accumulate": accumulate, "epochs": 1})
    counting = Counting(run)
    changed(run, stepper=counting).fit()
    each = [["batch at 0 of 10", "step"], ["batch at 0 of 20 …", "batch at 10 of 20", "step"]][accumulate - 1]
    assert counting.calls[: len(each)] == each
    assert counting.calls.count("step") == 4 // accumulate
    assert counting.loss.device == CPU


def sharp(model: nn.Module, rho: float = 0.05) -> Sam:
    return Sam([{"params": list(model.parameters()), "lr": 0.05}], torch.optim.SGD, rho=rho)


def by_lbfgs(model: nn.Module) -> Lbfgs:
    return Lbfgs([{"params": list(model.parameters()), "lr": 1.0}], max_iter=5)


@pytest.mark.parametrize("made", [sharp, by_lbfgs])
def test_an_optimizer_with_a_closure_gets_the_loss_of_the_whole_window_again(made: Any) -> None:
    found = []
    for accumulate in (1, 2):
        model = network()
        for each in model:
            each.eval()
            each.train = lambda *_, own=each: own  # batch norm would see the parts of the window one by one
        run = trainer(
            model, optimizer=made(model), timetable={"steps": 4, "accumulate": accumulate}, batch_size=20 // accumulate
        )
        assert isinstance(run.stepper, ClosureStepper)
        run.fit()
        found.append(weights(model))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, atol=1e-3, rtol=1e-3)


def test_the_second_pass_has_the_same_dropout_and_leaves_the_running_averages() -> None:
    model = network(dropout=0.5)
    run = trainer(model, optimizer=sharp(model, rho=0.0), timetable={"steps": 3})
    plain_model = network(dropout=0.5)
    plain = trainer(plain_model, momentum=0.0, timetable={"steps": 3})
    run.fit()
    plain.fit()
    assert all(torch.equal(one, two) for one, two in zip(weights(model), weights(plain_model), strict=True))
    assert run.logger.series("train/loss_step") == plain.logger.series("train/loss_step")


def test_gradients_are_clipped_each_time_and_logged_as_they_were() -> None:
    model = network()
    run = trainer(model, optimizer=sharp(model), clip_norm=0.01, timetable={"steps": 2})
    before = weights(model)
    run.fit()
    moved = torch.stack([(new - old).norm() for new, old in zip(weights(model)[:2], before[:2])]).norm()
    assert 0 < moved <= 2 * 0.05 * 0.01 * 1.01


@pytest.mark.parametrize("guard", [None, SkipGuard(CPU, limit=1)])
def test_a_loss_that_is_not_finite_at_the_edge_of_the_ball_is_the_guards(guard: Any) -> None:
    class Steep(nn.Module):
        calls = 0

        def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            loss = (output - target).square().mean()
            return loss * torch.nan if self.calls in (2, 4) else loss

    model = network()
    run = trainer(model, optimizer=sharp(model), criterion=Steep(), guard=guard, timetable={"steps": 4})
    with pytest.raises(UserError, match=f"no longer finite at step {2 if guard else 1}"):
        run.fit()
    assert run.state.skipped == (1 if guard else 0)
    assert all(torch.isfinite(each).all() for each in model.parameters())


def test_what_does_not_go_with_a_closure_is_told_before_the_run() -> None:
    model = network()
    for optimizer, options, words in (
        (sharp(model), {"precision": "fp16"}, "device.precision: Sam asks for gradients at several places"),
        (by_lbfgs(model), {"clip_norm": 1.0}, "trainer.clip_norm: Lbfgs compares gradients with losses"),
        (by_lbfgs(model), {"clip_value": 1.0}, "trainer.clip_value: Lbfgs"),
    ):
        with pytest.raises(UserError, match=words):
            check_closure(optimizer, Engine("cpu", **options))
    check_closure(sharp(model), Engine("cpu", clip_norm=1.0))
    check_closure(torch.optim.SGD(model.parameters()), Engine("cpu", precision="fp16", clip_norm=1.0))


def test_a_trial_changes_weights_alone() -> None:
    run = trainer(network())
    stepper = trial_stepper(run.learner, sharp(run.model))
    before = weights(run.model)
    assert stepper.micro(batch(4), position=0, size=4, window=4, more=False)
    stepper.update(usable=True, want_norm=False)
    assert not all(map(torch.equal, before, weights(run.model)))
    assert not run.learner.optimizer.state
    assert run.learner.metrics["train"].state_dict() == trainer(network()).learner.metrics["train"].state_dict()
