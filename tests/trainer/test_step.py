"""One optimizer step, and whatever else takes its place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.trainer.step import PlainStepper
from tests.trainer.parts import CPU, changed, trainer


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
