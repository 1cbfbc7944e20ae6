"""What must hold while a model trains, and a planted fault for each of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from lightkit.common.errors import UserError
from lightkit.common.stepping import take_step
from lightkit.device.ranks import Ranks
from lightkit.trainer import Callback, Ema, StepOutput, Supervised
from lightkit.trainer.audit.observations import StepRecord
from lightkit.trainer.audit.watch import Watcher
from lightkit.trainer.guard import SkipGuard
from tests.trainer.parts import CPU, network, same_weights, trainer
from tests.trainer.test_guard import Bad, bad_run, rollback


def watched(every: int = 4, **changes: Any) -> tuple[Any, list[str]]:
    """A trainer of 12 steps, validated after each epoch of 4, and what its watch will tell."""
    lines: list[str] = []
    watch = Watcher(every, tell=lines.append, **changes.pop("options", {}))
    if isinstance(changes.get("optimizer"), type):  # a kind, of which one is made
        changes["model"] = changes.get("model") or network()
        changes["optimizer"] = changes["optimizer"](changes["model"].parameters(), lr=0.01)
    return trainer(watch=watch, **{"timetable": {"epochs": 3}} | changes), lines


def fitted(*args: Any, **changes: Any) -> list[str]:
    run, lines = watched(*args, **changes)
    run.fit()
    return lines


def with_network(act: Callable[[Any], Any]) -> nn.Module:
    """A network after something was done to it."""
    model = network()
    with torch.no_grad():
        act(model)
    return model


def frozen_network() -> nn.Module:
    return with_network(lambda model: model[0].requires_grad_(False))


class Each(Callback):
    """Does something after every step, or after one."""

    def __init__(self, act: Callable[[Any], Any], at: int | None = None) -> None:
        self.act, self.at = act, at

    def on_step(self, trainer: Any) -> None:
        if self.at is None or trainer.state.step == self.at:
            self.act(trainer)


class Evaluating(Supervised):
    """Does something to the model in every evaluation."""

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act = act

    def step(self, model: nn.Module, batch: Any, criterion: Any) -> StepOutput:
        if not model.training:
            self.act(model)
        return super().step(model, batch, criterion)


class Held(nn.Module):
    """Holds its norm layer in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body: Any = network()

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.body[1].eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Spare(nn.Sequential):
    """Has a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__(*network())
        self.spare = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return nn.Sequential(*[*self][:-1])(x)


class Lazy(SGD):
    """Leaves a parameter out."""

    def step(self, closure: Any = None) -> Any:
        kept = self.param_groups[0]["params"][-2].clone()
        super().step(closure)
        self.param_groups[0]["params"][-2].data.copy_(kept)


class Twice(SGD):
    """A step that is taken twice, as by a closure that is called once more."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return super().step(closure)


class TwiceAdam(Adam):
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return super().step(closure)


class Own(SGD):
    """A class of one's own that takes one step, in its base."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def nudge(trainer: Any) -> None:
    trainer.model[0].weight.data[0, 0] += 1e-6


def stale(model: Any) -> None:
    model[0].weight.grad = torch.ones_like(model[0].weight)
    model[0].weight.requires_grad_(False)


def dead(model: Any) -> None:
    model[1].weight.zero_()
    model[1].bias.fill_(-1.0)
    model[2] = nn.ReLU()


def wake(trainer: Any) -> None:
    trainer.model.body[1].train()
    with torch.no_grad():
        trainer.model.body[1](torch.randn(5, 8))
    trainer.model.body[1].eval()


def again(trainer: Any) -> None:
    for parameter in trainer.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()


def backward(model: Any) -> None:
    with torch.enable_grad():
        model(torch.ones(3, 4)).sum().backward()


def count(model: Any) -> None:
    model[1].num_batches_tracked += 1


def only_the_head() -> dict[str, Any]:
    model: Any = network()
    return {"model": model, "optimizer": SGD(model[4].parameters(), lr=0.1)}


FAULTS: list[tuple[Callable[[], dict[str, Any]], int, str]] = [
    (lambda: {"model": frozen_network(), "callbacks": [Each(nudge, at=6)]}, 8, "frozen, but moved: 0.weight"),
    (lambda: {"model": with_network(stale)}, 4, "frozen, but moved: 0.weight"),  # by a gradient of before
    (
        lambda: {"model": Held().train(), "callbacks": [Each(wake)]},
        4,
        "statistics of norm layers in eval mode moved: "
        "body.1.running_mean, body.1.running_var, body.1.num_batches_tracked",
    ),
    (
        lambda: {"model": Spare()},
        4,
        "trains, but no gradient reaches it: spare.weight, spare.bias; if it is not used, freeze it",
    ),
    (only_the_head, 4, "trains, but is not in the optimizer and did not move: 0.weight, 0.bias, 1.weight, 1.bias"),
    (
        lambda: {"lr": 1e-30, "momentum": 0.0},
        4,
        "trains, but did not move, as its steps are too small for its numbers: "
        "0.weight, 0.bias, 1.weight, 4.weight, 4.bias",
    ),
    (
        lambda: {"model": with_network(dead)},
        4,
        "trains, but only gradients of 0 reach it: 0.weight, 0.bias, 1.weight, 1.bias, 4.weight",
    ),
    (lambda: {"optimizer": Lazy}, 4, "trains, but did not move, although gradients reach it: 4.weight"),
    (lambda: {"optimizer": Twice}, 4, "the optimizer took 8 steps for 4 windows of batches"),
    (lambda: {"optimizer": TwiceAdam}, 4, "the optimizer took 8 steps for 4 windows of batches"),
    (lambda: {"optimizer": Twice, "every": 1}, 1, "the optimizer took 2 steps for one window of batches"),
    (
        lambda: {"optimizer": SGD, "callbacks": [Each(again, 2)]},
        4,
        "the optimizer took 5 steps for 4 windows of batches",
    ),
    (
        lambda: {"optimizer": Adam, "callbacks": [Each(again, 2)]},
        4,
        "the optimizer took 5 steps for 4 windows of batches",
    ),
]
EVALUATIONS: list[tuple[Callable[[Any], Any], str]] = [
    (count, "changed 1.num_batches_tracked"),
    (lambda model: model[1].running_mean.data.add_(1e-6), "changed 1.running_mean"),
    (lambda model: model[4].weight.data.neg_(), "changed 4.weight"),
    (backward, "left gradients, which the next step takes: 0.bias, 0.weight, 1.bias, 1.weight, 4.bias and 1 more"),
    (lambda model: model[0].requires_grad_(False), "changed what trains: 0.bias, 0.weight"),
]


@pytest.mark.parametrize(("make", "step", "line"), FAULTS)
def test_a_planted_fault_is_told(make: Any, step: int, line: str) -> None:
    assert fitted(**make()) == [f"watch (after step {step}): {line}"]


@pytest.mark.parametrize(("act", "line"), EVALUATIONS)
def test_an_evaluation_that_changes_something(act: Callable[[Any], Any], line: str) -> None:
    assert fitted(task=Evaluating(act))[0] == f"watch (after step 4): an evaluation {line}"


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("kind", [SGD, Adam])
@pytest.mark.parametrize("changes", [{}, {"timetable": {"epochs": 3, "accumulate": 3}}, {"rows": 31}])
def test_nothing_is_told_of_a_sound_run(every: int, kind: Any, changes: dict[str, Any]) -> None:
    assert fitted(every, model=frozen_network(), optimizer=kind, **changes) == []


def test_what_is_no_fault() -> None:
    model = network()
    assert fitted(1, model=model, average=Ema(model, 0.9)) == []
    assert fitted(lr=0.0) == []
    assert fitted(optimizer=Own) == []
    assert fitted(model=Held().train()) == []


@pytest.mark.parametrize("every", [1, 3])
def test_the_training_is_the_same_to_the_bit(every: int) -> None:
    plain = trainer(network(0.3), timetable={"epochs": 3})
    run, _ = watched(every, model=network(0.3))
    plain.fit()
    run.fit()
    assert same_weights(plain, run)
    assert run.services.logger.series("train/loss_step") == plain.services.logger.series("train/loss_step")


def test_steps_that_are_left_out_or_taken_back_are_no_steps() -> None:
    lines: list[str] = []
    model, options = network(), {"watch": Watcher(4, tell=lines.append), "timetable": {"epochs": 3}}
    run = bad_run(
        Bad(1, 2, 3, 4, 6, 7), SkipGuard(CPU, limit=10), optimizer=Adam(model.parameters()), model=model, **options
    )
    run.fit()
    assert run.state.skipped == 6
    run = bad_run(Bad(7, times=1), watch=Watcher(2, tell=lines.append), timetable={"epochs": 3})
    run.guard = run.stepper._guard = rollback(run)
    run.fit()
    assert run.state.rollbacks == 1
    assert lines == []


def test_a_window_without_a_step() -> None:
    run, lines = watched(optimizer=SGD)
    update = run.stepper.update
    run.stepper.update = lambda **options: update(**options) if run.state.step != 5 else None
    run.fit()
    assert lines == ["watch (after step 8): the optimizer took 3 steps for 4 windows of batches"]


def test_the_first_evaluation_is_looked_at_and_then_those_that_are_due() -> None:
    at: list[int] = []

    class Counting(Watcher):
        def _report(self, seen: Any, faults: Any) -> None:
            at.append(seen.learner.state.step)

    run = trainer(watch=Counting(5), timetable={"epochs": 3, "validate_unit": "step", "validate_every": 2})
    run.fit()
    assert at == [2, 5, 8, 10, 12]  # looks after 5, 10 and 12 steps; evaluations after 2 and 8


def test_a_mode_that_an_evaluation_leaves_behind() -> None:
    run, lines = watched(1)
    with run.watch.evaluation(run.learner):
        run.model[1].eval()
    assert lines == ["watch (after step 0): an evaluation left in another mode: 1"]


def test_each_line_is_told_once_and_may_end_the_run() -> None:
    assert len(fitted(1, callbacks=[Each(lambda trainer: trainer.optimizer.step())])) == 1
    run, lines = watched(2, optimizer=TwiceAdam, options={"action": "stop"})
    message = r"training does not do what it says \(after step 2\)\n +the optimizer took 4 steps for 2 windows"
    with pytest.raises(UserError, match=message) as caught:
        run.fit()
    assert caught.value.exit_code == 6
    assert lines == []
    assert run.state.step == 2


def test_what_trains_may_change_between_two_looks() -> None:
    """Nothing is said then of what moved meanwhile; from there on it counts again."""

    def freeze(trainer: Any) -> None:
        trainer.model[0].requires_grad_(False)

    def move(trainer: Any) -> None:
        trainer.model[0].bias.data += 1

    lines = fitted(callbacks=[Each(freeze, at=6), Each(move, at=10)])
    assert lines == ["watch (after step 12): frozen, but moved: 0.bias"]


class Two(Ranks):
    """Two processes, of which the other holds what it is given."""

    size = 2
    other: list[str] = []

    def unite(self, texts: Any) -> list[str]:
        return list(dict.fromkeys([*texts, *self.other]))


def test_processes_whose_weights_differ() -> None:
    """Real processes are in tests/runner/test_watch.py."""
    run, lines = watched(1)
    run.engine.ranks = ranks = Two()
    for step in range(3):
        run.state.step = step
        ranks.other = ["4.weight\n(1, 2)"] if step == 2 else []
        run.watch.on_step(run.learner)
        run.optimizer.step()
        assert lines == [] or step == 2
    assert lines[0] == "watch (after step 2): not the same in all processes: 4.weight"


@pytest.mark.parametrize(("kind", "each"), [(SGD, 1), (Adam, 1), (Own, 1), (Twice, 2)])
def test_steps_are_counted_whoever_takes_them(kind: Any, each: int) -> None:
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = kind([weight], lr=1.0)
    record = StepRecord(optimizer)
    assert record.steps == 0
    optimizer.step()
    take_step(optimizer)
    kind([weight], lr=1.0).step()
    assert record.steps == 2 * each


def test_gradients_are_kept_of_the_step_that_is_listened_to() -> None:
    used, spare, empty = (nn.Parameter(torch.ones(size)) for size in (2, 2, 0))
    optimizer = SGD([used, spare, empty], lr=1.0)
    record = StepRecord(optimizer)
    used.grad, empty.grad = torch.tensor([1.0, -3.0]), torch.ones(0)
    optimizer.step()
    assert record.gradients is None
    record.listen()
    optimizer.step()
    used.grad = torch.ones(2)
    optimizer.step()
    assert record.gradients is not None
    assert {number: float(value) for number, value in record.gradients.items()} == {id(used): 3.0}
    record.listen()
    assert record.gradients is None
