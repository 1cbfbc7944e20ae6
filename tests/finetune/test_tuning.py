"""The phases of a fine-tuning, held in a plain training loop."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightkit.finetune.phases import Phase
from lightkit.finetune.tuning import NoTuning, Tuning


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


HEAD, ALL = (
    frozenset({"3.weight", "3.bias"}),
    frozenset({"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}),
)
PHASES = [
    Phase(HEAD, epoch=0, frozen_norms=frozenset({"1"}), eval_modules=frozenset({"2"})),
    Phase(ALL, epoch=2),
    Phase(HEAD, step=9, frozen_norms=frozenset({"1"})),
]


class Log:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, phase: Phase, *, epoch: int, step: int) -> None:
        self.lines.append(f"begin {phase.name} at {epoch}, {step}")

    def after_steps(self, step: int) -> None:
        self.lines.append(f"after {step}")

    def end(self, step: int) -> None:
        self.lines.append(f"end at {step}")


def train(model: nn.Module, tuning: NoTuning, *, first: int = 0, last: int = 12) -> list[dict[str, torch.Tensor]]:
    """Twelve steps of SGD with momentum and weight decay, three an epoch; the state after each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    states = []
    for step in range(first, last):
        if step % 3 == 0 or step == first:
            tuning.train(model)
        tuning.before_step(step // 3, step)
        torch.manual_seed(step)
        model(torch.randn(8, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        states.append(copy.deepcopy(model.state_dict()))
    tuning.finish(last)
    return states


def moved(states: list[dict[str, torch.Tensor]], name: str) -> list[int]:
    return [step for step in range(1, len(states)) if not torch.equal(states[step][name], states[step - 1][name])]


def test_without_tuning_everything_trains() -> None:
    states = train(network(), NoTuning())
    assert all(moved(states, name) == list(range(1, 12)) for name in ALL)


def test_each_phase_moves_what_it_says_and_nothing_else() -> None:
    model = network()
    states = train(model, Tuning(model, PHASES))
    # Momentum and weight decay would go on moving what is frozen at step 9.
    assert moved(states, "0.weight") == [6, 7, 8]
    assert moved(states, "1.weight") == [6, 7, 8]
    assert moved(states, "1.running_mean") == [6, 7, 8]
    assert moved(states, "3.weight") == list(range(1, 12))


def test_modes_are_applied_again_after_every_train() -> None:
    model = network()
    tuning = Tuning(model, PHASES)
    tuning.train(model)
    tuning.before_step(0, 0)
    for _ in range(2):
        assert (model.training, model[1].training, model[2].training) == (True, False, False)
        model.train()
        tuning.train(model)
    tuning.before_step(2, 6)
    assert all(module.training for module in model.modules())


def test_a_run_that_begins_in_the_middle_is_in_the_right_phase() -> None:
    model = network()
    tuning = Tuning(model, PHASES)
    tuning.train(model)
    tuning.before_step(2, 7)
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == ALL
    tuning.before_step(3, 9)
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == HEAD
    tuning.before_step(0, 1)  # a run that goes back after a loss that was not finite
    assert not model[1].training


def test_what_is_frozen_loses_its_gradient() -> None:
    model = network()
    model(torch.randn(8, 3)).sum().backward()
    Tuning(model, PHASES).before_step(0, 0)
    assert model[0].weight.grad is None
    assert model[3].weight.grad is not None


def test_who_looks_on_is_told_of_every_phase() -> None:
    model, log = network(), Log()
    train(model, Tuning(model, PHASES, auditor=log))
    early = ["after 1", "after 7", "after 10"]  # the first of each phase; there is one after every step
    assert [line for line in log.lines if line[:5] != "after" or line in early] == [
        "begin epoch 0 at 0, 0",
        "after 1",
        "end at 6",
        "begin epoch 2 at 2, 6",
        "after 7",
        "end at 9",
        "begin step 9 at 3, 9",
        "after 10",
        "end at 12",
    ]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_wrapped_network_is_held_all_the_same(wrapped: bool) -> None:
    model = network()
    tuning = Tuning(model, PHASES)
    outer = nn.Sequential(model) if wrapped else model
    tuning.before_step(0, 0)
    tuning.train(outer)
    assert outer.training
    assert not model[1].training
