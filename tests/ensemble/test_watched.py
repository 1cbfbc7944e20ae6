"""Members of a stack are watched as a model alone is: no false alarm, a planted fault for each rule, the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.assembly import Learner
from lightkit.ensemble.stack import Stack, StackMember
from lightkit.ensemble.vectorized import StackFingerprints, VectorTrainer, WatchedStack
from lightkit.ensemble.vmapped import StackedTask
from lightkit.trainer.audit.watch import Watcher
from lightkit.trainer.services import Services
from tests.ensemble.test_vectorized import KINDS, WINE, goal, maker

SGD = [*WINE, "optim=sgd", "optim.lr=0.05", "optim.momentum=0", "optim.nesterov=false", "optim.weight_decay=0"]
FIRST = "layers.linear0.weight"


class Faulty(VectorTrainer):
    """Does something after each step, before the watch looks."""

    act: Callable[[Any], None] = staticmethod(lambda trainer: None)

    def _check_step(self) -> None:
        if self.state.step:
            self.act(self)
        super()._check_step()


def watched(
    *overrides: str,
    members: int = 3,
    every: int | None = 4,
    action: str = "warn",
    act: Callable[[Any], None] = lambda trainer: None,
    change: Callable[[nn.Module], Any] = lambda model: None,
) -> tuple[Stack, list[str]]:
    """Train members; returns them and what the watch has told.

    Args:
        overrides: Of the configuration.
        members: How many.
        every: Steps between two looks; None does not watch.
        action: What to do about a fault.
        act: Called after each step.
        change: Called with the model of each member.
    """
    make, told = maker(*(overrides or SGD)), list[str]()

    def changed(seed: int) -> Learner:
        learner = make(seed)
        change(learner.model)
        return learner

    stack = Stack([StackMember(f"{seed:02d}", changed(seed)) for seed in range(members)])
    watch = None
    if every is not None:
        watch = Watcher(every, action=action, tell=told.append, see=lambda learner: WatchedStack(stack))
    trainer = Faulty(stack, Services(), watch=watch, **goal(stack.members[0].learner))
    trainer.act = act  # type: ignore[method-assign]
    trainer.fit()
    return stack, told


def freeze(model: nn.Module) -> None:
    model.get_parameter(FIRST).requires_grad_(False)


def row(trainer: Any, name: str, place: int) -> torch.Tensor:
    found: torch.Tensor = trainer.stack.model.weights[name].data[place]
    return found


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", ["mlp with dropout", "clip, average, accumulation", "norms and limits of values"])
def test_sound_members_train_with_the_same_bits_and_nothing_is_told(kind: str, every: int) -> None:
    plain, _ = watched(*KINDS[kind], every=None)
    stack, told = watched(*KINDS[kind], every=every)
    assert told == []
    for one, other in zip(plain.members, stack.members):
        assert one.last is not None
        assert other.last is not None
        assert all(tensor.equal(other.last["model"][name]) for name, tensor in one.last["model"].items())
        assert one.state.logged.hex() == other.state.logged.hex()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "adversarial" in kind or "with" in kind])
def test_nothing_is_told_of_sound_members_of_other_kinds(kind: str) -> None:
    assert watched(*KINDS[kind], every=2)[1] == []


def test_members_that_leave_are_no_longer_looked_at() -> None:
    early = [*WINE, "trainer.epochs=12", "optim.lr=0.05", "trainer.early_stopping.patience=2"]

    nudged = list[str]()

    def nudge(trainer: Any) -> None:
        if len(trainer.stack.active) < 4 and not nudged:
            row(trainer, FIRST, -1)[0, 0] += 1e-3
            nudged.append(trainer.stack.active[-1].name)

    stack, told = watched(*early, members=4, act=nudge, change=freeze)
    assert len({member.state.epoch for member in stack.members}) > 1
    assert [line.partition(": ")[2] for line in told] == [f"member {nudged[0]}: frozen, but moved: {FIRST}"]


def test_a_frozen_weight_of_one_member_that_moves() -> None:
    def nudge(trainer: Any) -> None:
        if trainer.state.step == 6:
            row(trainer, FIRST, 1)[0, 0] += 1e-6

    assert watched(act=nudge, change=freeze)[1] == [f"watch (after step 8): member 01: frozen, but moved: {FIRST}"]


def test_something_of_two_members_that_trains_and_rests() -> None:
    kept: dict[int, torch.Tensor] = {}

    def hold(trainer: Any) -> None:
        for place in (0, 2):
            own = row(trainer, FIRST, place)
            own.copy_(kept.setdefault(place, own.clone()))

    line = f"watch (after step 8): members 00, 02: trains, but did not move, although gradients reach it: {FIRST}"
    assert watched(act=hold)[1] == [line]


def test_gradients_of_zero_in_one_member() -> None:
    def stop(trainer: Any) -> None:
        weight = trainer.stack.model.weights[FIRST]
        if not weight._backward_hooks:
            weight.register_hook(lambda gradient: gradient * (torch.arange(3) != 1)[:, None, None])

    line = f"watch (after step 8): member 01: trains, but only gradients of 0 reach it: {FIRST}"
    assert watched(act=stop)[1] == [line]


def test_statistics_of_a_norm_layer_in_eval_mode_that_move_in_one_member() -> None:
    def nudge(trainer: Any) -> None:
        trainer.stack.model.template.layers.norm0.eval()
        if trainer.state.step == 6:
            trainer.stack.model.states["layers.norm0.running_mean"][2] += 1

    line = "watch (after step 8): member 02: statistics of norm layers in eval mode moved: layers.norm0.running_mean"
    # Each epoch puts the layer into training mode again: what rests is looked at within one.
    assert line in watched(*SGD, "model.norm=batch", "trainer.validate_every=2", act=nudge)[1]


@pytest.mark.parametrize(("name", "place"), [(FIRST, 1), ("layers.norm0.running_mean", 2)])
def test_an_evaluation_that_changes_one_member(name: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step = StackedTask.step

    def changing(self: Any, model: Any, batch: Any, criterion: Any) -> Any:
        model.tensors[name].data[place] += 1e-3
        return step(self, model, batch, criterion)

    monkeypatch.setattr(StackedTask, "step", changing)
    _, told = watched(*SGD, "model.norm=batch")
    assert f": member 0{place}: an evaluation changed {name}" in told[0]


def test_a_member_that_is_lost_is_no_fault() -> None:
    def spoil(trainer: Any) -> None:
        if trainer.state.step == 2:
            for weight in trainer.stack.model.weights.values():
                weight.data[1] = float("nan")

    stack, told = watched("trainer.validate_unit=step", "trainer.validate_every=100", *SGD, every=1, act=spoil)
    assert stack.members[1].lost is not None
    assert told == []


def prints(members: Sequence[str], *tensors: torch.Tensor) -> StackFingerprints:
    return StackFingerprints(members, {str(place): tensor for place, tensor in enumerate(tensors)})


def test_a_changed_bit_is_found_by_member_and_tensor_when_others_have_left() -> None:
    one, two = torch.randn(3, 4, 2), torch.arange(3)
    before = prints("abc", one, two)
    other = one.clone()
    other[2, 1, 1] = torch.nextafter(other[2, 1, 1], torch.tensor(9.0))
    assert before.changed(prints("abc", other, two)) == {"a": set(), "b": set(), "c": {"0"}}
    assert before.changed(prints("ac", other[[0, 2]], torch.tensor([0, 3]))) == {"a": set(), "c": {"0", "1"}}
    assert prints("ab").changed(prints("ab")) == {"a": set(), "b": set()}
