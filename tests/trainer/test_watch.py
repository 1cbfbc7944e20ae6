"""What must hold while a model trains, and a planted fault for each of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from lightkit.common.errors import UserError
from lightkit.device.ranks import Ranks
from lightkit.trainer import Callback, Ema, StepOutput, Supervised
from lightkit.trainer.audit.watch import Watcher
from lightkit.trainer.guard import SkipGuard
from tests.trainer.parts import CPU, network, trainer
from tests.trainer.test_guard import Bad, bad_run, rollback

Made = Callable[..., Optimizer]


def watched(every: int = 4, **changes: Any) -> tuple[Any, list[str]]:
    """A trainer of 12 steps, validated after each epoch of 4, and what its watch will tell."""
    told: list[str] = []
    watch = Watcher(every, tell=told.append, **changes.pop("options", {}))
    return trainer(watch=watch, **{"timetable": {"epochs": 3}} | changes), told


def frozen_network() -> nn.Module:
    model = network()
    for parameter in model[0].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    return model


class Each(Callback):
    """Does something after every step."""

    def __init__(self, act: Callable[[Any], None], at: int | None = None) -> None:
        self.act, self.at = act, at

    def on_step(self, trainer: Any) -> None:
        if self.at is None or trainer.state.step == self.at:
            self.act(trainer)


@pytest.mark.parametrize("every", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("kind", [SGD, Adam])
@pytest.mark.parametrize("changes", [{}, {"timetable": {"epochs": 3, "accumulate": 3}}, {"rows": 31}])
def test_nothing_is_told_of_a_sound_run(every: int, kind: Made, changes: dict[str, Any]) -> None:
    model = frozen_network()
    run, told = watched(every, model=model, optimizer=kind(model.parameters(), lr=0.01), **changes)
    run.fit()
    assert told == []


@pytest.mark.parametrize("every", [1, 3])
def test_the_training_is_the_same_to_the_bit(every: int) -> None:
    plain = trainer(network(0.3), timetable={"epochs": 3})
    run, _ = watched(every, model=network(0.3))
    plain.fit()
    run.fit()
    states = run.model.state_dict()
    assert all(torch.equal(tensor, states[name]) for name, tensor in plain.model.state_dict().items())
    assert run.services.logger.series("train/loss_step") == plain.services.logger.series("train/loss_step")


def test_something_frozen_that_moves() -> None:
    def nudge(trainer: Any) -> None:
        trainer.model[0].weight.data[0, 0] += 1e-6

    run, told = watched(model=frozen_network(), callbacks=[Each(nudge, at=6)])
    run.fit()
    assert told == ["watch (after step 8): frozen, but moved: 0.weight"]


def test_an_optimizer_that_moves_what_is_frozen() -> None:
    """A gradient of before freezing is enough."""
    model = network()
    model[0].weight.grad = torch.ones_like(model[0].weight)  # type: ignore[index]
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    run, told = watched(model=model)
    run.fit()
    assert told == ["watch (after step 4): frozen, but moved: 0.weight"]


def test_statistics_of_a_norm_layer_that_is_held_in_eval_mode() -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            self.body[1].eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    def wake(trainer: Any) -> None:
        trainer.model.body[1].train()
        with torch.no_grad():
            trainer.model.body[1](torch.randn(5, 8))
        trainer.model.body[1].eval()

    quiet, silent = watched(model=Held().train())
    run, told = watched(model=Held().train(), callbacks=[Each(wake)])
    quiet.fit()
    run.fit()
    assert silent == []
    assert told == [
        "watch (after step 4): statistics of norm layers in eval mode moved: "
        "body.1.running_mean, body.1.running_var, body.1.num_batches_tracked"
    ]


def test_something_that_trains_and_rests() -> None:
    class Spare(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(*network())
            self.spare = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return nn.Sequential(*[*self][:-1])(x)

    run, told = watched(model=Spare())
    run.fit()
    assert told == [
        "watch (after step 4): trains, but no gradient reaches it: spare.weight, spare.bias; "
        "if it is not used, freeze it"
    ]


def test_something_that_trains_and_is_not_in_the_optimizer() -> None:
    model = network()
    run, told = watched(model=model, optimizer=SGD(model[4].parameters(), lr=0.1))  # type: ignore[index]
    run.fit()
    assert told == [
        "watch (after step 4): trains, but is not in the optimizer and did not move: 0.weight, 0.bias, 1.weight, 1.bias"
    ]


def test_steps_that_are_too_small_for_their_numbers() -> None:
    run, told = watched(lr=1e-30, momentum=0.0)
    run.fit()
    assert told == [
        "watch (after step 4): trains, but did not move, as its steps are too small for its numbers: "
        "0.weight, 0.bias, 1.weight, 4.weight, 4.bias"
    ]


def test_something_that_only_gradients_of_zero_reach() -> None:
    model = network()
    with torch.no_grad():
        model[1].weight.zero_()  # type: ignore[index]
        model[1].bias.fill_(-1.0)  # type: ignore[index]
    model[2] = nn.ReLU()  # type: ignore[index]
    run, told = watched(model=model)
    run.fit()
    assert told == [
        "watch (after step 4): trains, but only gradients of 0 reach it: 0.weight, 0.bias, 1.weight, 1.bias, 4.weight"
    ]


def test_an_optimizer_that_leaves_something_out() -> None:
    class Lazy(SGD):
        def step(self, closure: Any = None) -> Any:
            kept = self.param_groups[0]["params"][-2].clone()
            super().step(closure)
            self.param_groups[0]["params"][-2].data.copy_(kept)

    model = network()
    run, told = watched(model=model, optimizer=Lazy(model.parameters(), lr=0.1))
    run.fit()
    assert told == ["watch (after step 4): trains, but did not move, although gradients reach it: 4.weight"]


def test_a_rate_of_zero_is_no_fault() -> None:
    run, told = watched(lr=0.0)
    run.fit()
    assert told == []


def test_steps_that_are_left_out_are_no_steps() -> None:
    told: list[str] = []
    steps = Bad(1, 2, 3, 4, 6, 7)
    model = network()
    run = bad_run(
        steps,
        SkipGuard(CPU, limit=10),
        watch=Watcher(4, tell=told.append),
        optimizer=Adam(model.parameters()),
        model=model,
        timetable={"epochs": 3},
    )
    run.fit()
    assert run.state.skipped == 6
    assert told == []


def test_a_run_that_goes_back() -> None:
    told: list[str] = []
    run = bad_run(Bad(7, times=1), watch=Watcher(2, tell=told.append), timetable={"epochs": 3})
    run.guard = rollback(run)
    run.stepper._guard = run.guard
    run.fit()
    assert run.state.rollbacks == 1
    assert told == []


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


@pytest.mark.parametrize("every", [1, 4])
def test_an_optimizer_that_steps_twice(every: int) -> None:
    model = network()
    run, told = watched(every, model=model, optimizer=Twice(model.parameters(), lr=0.01, momentum=0.9))
    run.fit()
    windows = "one window" if every == 1 else "4 windows"
    assert told == [f"watch (after step {every}): the optimizer took {2 * every} steps for {windows} of batches"]


def test_an_optimizer_that_steps_twice_and_counts() -> None:
    model = network()
    run, told = watched(model=model, optimizer=TwiceAdam(model.parameters()))
    run.fit()
    assert told == ["watch (after step 4): the optimizer took 8 steps for 4 windows of batches"]


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_a_callback_that_steps_once_more_between_two_looks(kind: Made) -> None:
    def again(trainer: Any) -> None:
        for parameter in trainer.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    model = network()
    run, told = watched(model=model, optimizer=kind(model.parameters()), callbacks=[Each(again, at=2)])
    run.fit()
    assert told == ["watch (after step 4): the optimizer took 5 steps for 4 windows of batches"]


def test_a_window_without_a_step() -> None:
    model = network()
    run, told = watched(model=model, optimizer=SGD(model.parameters(), lr=0.1))
    update = run.stepper.update
    run.stepper.update = lambda **options: update(**options) if run.state.step != 5 else None
    run.fit()
    assert told == ["watch (after step 8): the optimizer took 3 steps for 4 windows of batches"]


def test_an_optimizer_of_ones_own_that_calls_its_base() -> None:
    model = network()
    run, told = watched(model=model, optimizer=Own(model.parameters(), lr=0.01))
    run.fit()
    assert told == []


class Evaluating(Supervised):
    """Does something to the model in every evaluation."""

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act = act

    def step(self, model: nn.Module, batch: Any, criterion: Any) -> StepOutput:
        if not model.training:
            self.act(model)
        return super().step(model, batch, criterion)


def backward(model: Any) -> None:
    with torch.enable_grad():
        model(torch.ones(3, 4)).sum().backward()


def count(model: Any) -> None:
    model[1].num_batches_tracked += 1


@pytest.mark.parametrize(
    ("act", "line"),
    [
        (count, "an evaluation changed 1.num_batches_tracked"),
        (lambda model: model[1].running_mean.data.add_(1e-6), "an evaluation changed 1.running_mean"),
        (lambda model: model[4].weight.data.neg_(), "an evaluation changed 4.weight"),
        (
            backward,
            "an evaluation left gradients, which the next step takes: 0.bias, 0.weight, 1.bias, 1.weight, 4.bias and 1 "
            "more",
        ),
        (lambda model: model[0].requires_grad_(False), "an evaluation changed what trains: 0.bias, 0.weight"),
    ],
    ids=["counter", "statistics", "weight", "gradients", "freezing"],
)
def test_an_evaluation_that_changes_something(act: Callable[[Any], Any], line: str) -> None:
    run, told = watched(task=Evaluating(act))
    run.fit()
    assert told[0] == f"watch (after step 4): {line}"


def test_an_evaluation_under_the_average_of_the_weights_changes_nothing() -> None:
    model = network()
    run, told = watched(1, model=model, average=Ema(model, 0.9))
    run.fit()
    assert told == []


def test_the_first_evaluation_is_looked_at_and_then_those_that_are_due() -> None:
    at: list[int] = []

    class Counting(Watcher):
        def _report(self, seen: Any, faults: Any) -> None:
            at.append(seen.learner.state.step)

    run = trainer(watch=Counting(5), timetable={"epochs": 3, "validate_unit": "step", "validate_every": 2})
    run.fit()
    assert at == [2, 5, 8, 10, 12]  # looks after 5, 10 and 12 steps; evaluations after 2 and 8


def test_a_mode_that_an_evaluation_leaves_behind() -> None:
    told: list[str] = []
    run = trainer()
    watch = Watcher(1, tell=told.append)
    with watch.evaluation(run.learner):
        run.model[1].eval()
    assert told == ["watch (after step 0): an evaluation left in another mode: 1"]


def test_each_line_is_told_once() -> None:
    run, told = watched(1, callbacks=[Each(lambda trainer: trainer.optimizer.step())])
    run.fit()
    assert len(told) == 1


def test_it_can_end_the_run() -> None:
    model = network()
    optimizer = TwiceAdam(model.parameters())
    run, told = watched(2, model=model, optimizer=optimizer, options={"action": "stop"})
    message = r"training does not do what it says \(after step 2\)\n +the optimizer took 4 steps for 2 windows"
    with pytest.raises(UserError, match=message) as caught:
        run.fit()
    assert caught.value.exit_code == 6
    assert told == []
    assert run.state.step == 2


def test_what_trains_may_change_between_two_looks() -> None:
    """Nothing is said then of what moved meanwhile; from there on it counts again."""

    def freeze(trainer: Any) -> None:
        trainer.model[0].requires_grad_(False)

    def nudge(trainer: Any) -> None:
        trainer.model[0].bias.data += 1

    run, told = watched(callbacks=[Each(freeze, at=6), Each(nudge, at=10)])
    run.fit()
    assert told == ["watch (after step 12): frozen, but moved: 0.bias"]


class Two(Ranks):
    """Two processes, of which the other holds what it is given."""

    size = 2

    def __init__(self) -> None:
        self.other: list[str] = []

    def unite(self, texts: Any) -> list[str]:
        return list(dict.fromkeys([*texts, *self.other]))


def test_processes_whose_weights_differ() -> None:
    """Real processes are in tests/runner/test_watch.py."""
    told: list[str] = []
    run = trainer()
    run.engine.ranks = ranks = Two()
    watch = Watcher(1, tell=told.append)
    for step in range(3):
        run.state.step = step
        ranks.other = ["4.weight\n(1, 2)"] if step == 2 else []
        watch.on_step(run.learner)
        run.optimizer.step()
        assert told == [] or step == 2
    assert told[0] == "watch (after step 2): not the same in all processes: 4.weight"
