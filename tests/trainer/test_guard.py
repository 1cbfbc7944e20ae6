"""Losses, gradients and weights that are not finite. Whole runs are in tests/faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.checkpoint import content
from lightkit.checkpoint.files import to_plain
from lightkit.common.errors import UserError
from lightkit.trainer import StepOutput, Supervised
from lightkit.trainer.guard import Guard, Kept, RollbackGuard, SkipGuard, bad_parameter, copied
from tests.trainer.parts import CPU, changed, network, saving, stateful, trainer

NAN, INF = float("nan"), float("inf")


class Bad(Supervised):
    """The training losses of these steps, counted from 1, are not finite; each `times` times."""

    def __init__(self, *steps: int, value: float = NAN, times: int = 10**9) -> None:
        self.steps, self.value, self.left = steps, value, dict.fromkeys(steps, times)
        self.trainer: Any = None

    def step(self, model: nn.Module, batch: Any, criterion: Any) -> StepOutput:
        step = super().step(model, batch, criterion)
        number = self.trainer.state.step + 1
        if model.training and self.left.get(number, 0):
            self.left[number] -= 1
            return StepOutput(step.loss * self.value, step.preds, step.target)
        return step


def bad_run(task: Bad, guard: Guard | None = None, **changes: Any) -> Any:
    run = trainer(task=task, guard=guard, **changes)
    task.trainer = run
    return run


def lazy(guard: Guard) -> Guard:
    """As on a GPU, where losses are added up and looked at now and then."""
    guard._losses = []
    return guard


def rollback(run: Any, **options: Any) -> RollbackGuard:
    return RollbackGuard(
        CPU,
        gather=lambda: content.gather(**stateful(run)),
        apply=lambda saved: content.apply(saved, **stateful(run)),
        purge=lambda: None,
        **{"limit": 3, "every": 2, "factor": 0.5} | options,
    )


def going_back(task: Bad, **options: Any) -> Any:
    run = bad_run(task, **options.pop("changes", {}))
    return changed(run, guard=rollback(run, **options))


def ended(run: Any, text: str) -> UserError:
    with pytest.raises(UserError, match=text) as caught:
        run.fit()
    assert caught.value.exit_code == 3
    return caught.value


def finite(run: Any) -> bool:
    return all(torch.isfinite(tensor).all() for tensor in run.model.state_dict().values())


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_bad_loss_ends_the_run_with_the_weights_of_the_step_before(value: float) -> None:
    run, other = bad_run(Bad(3, value=value)), trainer(timetable={"steps": 2})
    ended(run, r"the loss is no longer finite at step 3 \(epoch 1, samples from 20 on\)")
    other.fit()
    for mine, theirs in zip(run.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def spoilt(run: Any, position: int, tensor: int, by: float = NAN) -> None:
    """Make one tensor of a batch of every epoch bad."""
    batches = run.learner.data.train.epoch

    def epoch(number: int, start: int = 0, **_: Any) -> Iterator[Any]:
        for index, batch in enumerate(batches(number, start)):
            if start + index * run.learner.data.train.batch_size == position:
                batch = tuple(part * (by if place == tensor else 1.0) for place, part in enumerate(batch))
            yield batch

    run.learner.data.train.epoch = epoch


def test_skipped_steps_are_counted_and_leave_no_trace_in_weights_or_buffers() -> None:
    run = trainer(guard=SkipGuard(CPU, limit=5))
    spoilt(run, 10, 0)
    run.fit()
    assert (run.state.skipped, run.state.step) == (2, 8)
    assert finite(run)


def test_a_window_with_one_bad_batch_is_left_out_as_a_whole() -> None:
    run = trainer(guard=SkipGuard(CPU, limit=5), timetable={"accumulate": 2, "epochs": 1})
    spoilt(run, 10, 0)
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    run = changed(run, timetable=trainer(timetable={"accumulate": 2, "steps": 1}).timetable)
    run.fit()
    assert run.state.skipped == run.state.step == 1
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))


def test_skipping_ends_at_its_limit() -> None:
    run = bad_run(Bad(2, 3, 4), SkipGuard(CPU, limit=2))
    ended(run, r"at step 4 [\s\S]*; after 2 skipped steps")
    assert run.state.skipped == 2


def test_going_back_takes_a_state_that_is_old_enough() -> None:
    run, rates = going_back(Bad(6, times=1), every=2), []
    run = changed(run, save=lambda value: rates.append((run.state.step, run.optimizer.param_groups[0]["lr"])))
    run.fit()
    assert (run.state.step, run.state.rollbacks) == (8, 1)
    assert (2, 0.025) in rates, "of the states of steps 2 and 4 the older one, with half the rate"
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    assert finite(run)


def held_steps(kept: Kept) -> list[int]:
    return [state["state"]["step"] for state in kept.states]


def test_states_to_go_back_to_are_plain_and_come_back() -> None:
    run, kept, other = trainer(), Kept(), Kept()
    assert kept.state_dict() == {}
    run = changed(run, guard=rollback(run, kept=kept))
    run.fit()
    assert held_steps(kept) == [6, 8]
    other.load_state_dict(to_plain(kept.state_dict()))
    assert held_steps(other) == [6, 8]
    assert torch.equal(other.states[0]["model"]["0.weight"], kept.states[0]["model"]["0.weight"])
    other.load_state_dict({})
    assert held_steps(other) == []
    tensor = torch.zeros(2)
    made = copied({"a": [tensor, (tensor, 3)], "b": "x"})
    tensor += 1
    assert made["a"][0].tolist() == made["a"][1][0].tolist() == [0, 0]
    assert (made["a"][1][1], made["b"]) == (3, "x")


def test_a_run_that_goes_on_keeps_the_state_it_begins_with_once_and_only_where_it_is_due() -> None:
    for step, there, expected in [(4, [2], [2, 4]), (4, [2, 4], [2, 4]), (3, [2], [2]), (3, [], [3])]:
        run, kept = trainer(), Kept()
        kept.states = [{"state": {"step": number}} for number in there]
        run.state.step = step
        rollback(run, kept=kept).on_step(run.learner)
        assert held_steps(kept) == expected


def test_each_time_the_rates_are_lower_up_to_a_limit() -> None:
    run = going_back(Bad(3, times=2), factor=0.1)
    run.fit()
    assert run.state.rollbacks == 2
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.1**2)
    ended(going_back(Bad(3), limit=2), r"at step 3 [\s\S]*went back 2 times before")


def test_going_back_to_the_same_step_again_and_again_ends_before_the_limit() -> None:
    run = going_back(Bad(3), limit=1000)
    same = "went back 3 times before, 3 times in succession from this very step: lower learning rates do not"
    assert same in str(ended(run, r"at step 3 "))
    assert run.state.rollbacks == 3
    run = going_back(Bad(3, 5, times=2), limit=1000)  # from another step it counts anew
    run.fit()
    assert run.state.rollbacks == 4


def bad_weight(run: Any, step: int) -> Any:
    """Spoil a weight in the optimizer step that leads to `step`."""
    original, done = run.engine.step, []

    def once(optimizer: Any, **options: Any) -> Any:
        norm = original(optimizer, **options)
        if run.state.step + 1 == step and not done:
            done.append(step)
            with torch.no_grad():
                run.model[0].weight[0, 0] = NAN
        return norm

    run.engine.step = once
    return run


@pytest.mark.parametrize("guard", [Guard(CPU), SkipGuard(CPU, limit=3)])
def test_a_bad_weight_is_never_saved(guard: Guard) -> None:
    run, saved = saving(trainer(guard=guard, timetable={"save_steps": 1}))
    ended(bad_weight(run, 3), r"parameter 0\.weight is no longer finite after step 3 \(epoch 1\)")
    assert [step for step, _ in saved] == [1, 2]


def test_going_back_from_a_bad_weight() -> None:
    run = trainer(timetable={"save_steps": 1})
    run = bad_weight(changed(run, guard=rollback(run)), 3)
    run.fit()
    assert (run.state.step, run.state.rollbacks) == (8, 1)
    assert finite(run)
    run = trainer(timetable={"save_epochs": None})  # a state to go back to is never a bad one
    run = bad_weight(changed(run, guard=rollback(run, limit=0, every=2)), 4)
    ended(run, r"parameter 0\.weight is no longer finite after step 4")


@pytest.mark.parametrize("log", [1, 3, 100])
def test_a_late_look_still_keeps_bad_losses_out_of_checkpoints(log: int) -> None:
    run, saved = saving(bad_run(Bad(2), lazy(Guard(CPU)), timetable={"log_steps": log, "save_steps": 3}))
    ended(run, r"no longer finite at step \d \(epoch 1\) or a few steps before")
    assert saved == []


def test_a_late_look_at_a_state_to_keep_is_not_forgotten() -> None:
    run = bad_run(Bad(2, times=1), timetable={"log_steps": 100, "save_epochs": None})
    run.guard = lazy(rollback(run, every=2))
    run.fit()
    assert run.state.rollbacks == 1
    assert finite(run)


def test_an_epoch_that_ends_where_the_run_has_gone_back_to_is_saved_once_more() -> None:
    """As a process does that goes on from the checkpoint of the going back: both leave the same behind."""
    saved: list[tuple[int, int]] = []
    run = going_back(Bad(7, times=1), every=2)
    run = changed(run, save=lambda value: saved.append((run.state.step, run.state.epoch)))
    run.fit()
    assert run.state.rollbacks == 1
    assert saved == [(4, 1), (4, 0), (4, 1), (8, 2)]


class Reciprocal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / (x - x)


class Normed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (1 + x * x) / (1 + x * x)


def test_the_first_bad_tensor_is_named_as_in_the_bare_model() -> None:
    model = network()
    run = trainer(model, **({} if torch.cuda.is_available() else {"network": nn.DataParallel(model)}))
    with torch.no_grad():
        model[4].bias.fill_(INF)  # type: ignore[index]
    ended(run, r"; parameter 4\.bias is not finite")
    run = trainer()
    run.model[2] = Reciprocal()  # type: ignore[index]
    ended(run, r"the output of 2 is the first that is not finite")
    for tensor in (0, 1):
        run = trainer()
        spoilt(run, 10, tensor)
        ended(run, rf"samples from 10 on\); tensor {tensor} of the batch is not finite")
    run = trainer()
    run.model[0] = nn.Sequential(Normed(), run.model[0])  # type: ignore[index]
    spoilt(run, 10, 0, by=1e30)
    assert "data.normalize=standard" in str(ended(run, r"tensor 0 of the batch holds .*e\+30, whose square is beyond"))


def test_bad_parameters_are_found_by_name() -> None:
    model: Any = network()
    with torch.no_grad():
        model[0].weight.fill_(3e38)  # is large, and not bad
    assert bad_parameter(model) is None
    model[4].weight.requires_grad_(False).fill_(INF)
    model.register_buffer("mask", torch.full((2,), -INF))
    assert bad_parameter(model) is None, "what is not trained may hold what it likes"
    with torch.no_grad():
        model[4].bias.fill_(INF)
        model[1].weight[0] = -INF
    assert bad_parameter(model) == "1.weight", "also where infinities cancel out"
    assert bad_parameter(nn.ReLU()) is None


@pytest.mark.parametrize("number", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("at", [None, 0, 0.5, 1])
def test_losses_that_are_looked_at_late_never_overflow_and_hide_nothing(number: int, at: float | None) -> None:
    guard = lazy(Guard(CPU))
    losses = torch.full((number, 1), 60000.0, dtype=torch.float16)
    if at is not None:
        losses[int(at * (number - 1))] = torch.inf if number % 2 else torch.nan
    assert all(guard.passes(loss) for loss in losses)
    assert guard.losses_finite() == (at is None)
    assert guard.losses_finite(), "what was looked at is over"
