"""What trains when, what rests with a frozen part, and phases in a plain training loop."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.finetune.names import NetworkNames
from lightkit.finetune.phases import Change, Phase, gradual_changes, phase_starts, scheduled_changes
from lightkit.finetune.tuning import (
    NoTuning,
    Tuning,
    frozen_modules,
    frozen_norms,
    frozen_stateful_modules,
    has_state,
    norm_parameters,
    norms_held_by_model,
    with_norms_held_by_model,
)
from tests.finetune.spies import Centred, CentredAnyhow, HoldsNorms

LENGTHS = {"steps_per_epoch": 10, "total_steps": 100}


def network() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5))
    body = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2, affine=False), nn.LayerNorm(2))
    return nn.Sequential(OrderedDict(stem=stem, body=body, head=nn.Linear(2, 2)))


def change(*, unfreeze: str = "", freeze: str = "", **moment: int) -> Change:
    return Change("finetune.schedule[0]", unfreeze=tuple(unfreeze), freeze=tuple(freeze), **moment)


H = ({"epoch": 0}, frozenset("h"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], [H]),
        (
            [change(unfreeze="c", epoch=5), change(unfreeze="b", step=25), change(freeze="b", epoch=3)],
            [H, ({"step": 25}, frozenset("hb")), ({"epoch": 3}, frozenset("h")), ({"epoch": 5}, frozenset("hc"))],
        ),
        ([change(unfreeze="b", epoch=2), change(unfreeze="c", step=20)], [H, ({"epoch": 2}, frozenset("hbc"))]),
        ([change(unfreeze="b", step=0)], [({"epoch": 0}, frozenset("hb"))]),
        ([change(unfreeze="h", epoch=3)], [H]),
    ],
    ids=["none", "in the order of time", "of one moment", "at the start", "that changes nothing"],
)
def test_changes_make_phases(changes: list[Change], expected: Any) -> None:
    assert phase_starts("h", changes, **LENGTHS) == expected


def test_changes_that_cannot_be() -> None:
    for moment in ({"epoch": 10}, {"step": 100}, {"epoch": 99}):
        with pytest.raises(
            UserError, match=r"(?s)finetune.schedule\[0\]: this comes after the end of the.*trainer.epochs"
        ):
            phase_starts("h", [change(unfreeze="b", **moment)], **LENGTHS)
    with pytest.raises(UserError, match="everything is frozen from epoch 4 on"):
        phase_starts("h", [change(freeze="h", epoch=4)], **LENGTHS)
    with pytest.raises(UserError, match="everything is frozen"):
        phase_starts("", [], **LENGTHS)


@pytest.mark.parametrize(
    ("phase", "reached", "name", "first"),
    [
        (Phase(frozenset("a"), epoch=3), [(3, 30), (4, 0)], "epoch 3", 30),
        (Phase(frozenset("a"), step=25), [(2, 25), (0, 26)], "step 25", 25),
    ],
)
def test_a_phase_begins_with_its_moment(phase: Phase, reached: Any, name: str, first: int) -> None:
    assert all(phase.has_begun(*moment) for moment in reached)
    assert not phase.has_begun(2, 24)
    assert (phase.name, phase.first_step(10)) == (name, first)


def test_scheduled_changes_name_parameters() -> None:
    names = NetworkNames(network(), head="head")
    schedule = [{"epoch": 2, "unfreeze": ["body"]}, {"step": 7, "freeze": ["@head"], "unfreeze": []}]
    first, second = scheduled_changes(schedule, names, total_steps=100)
    assert first.unfreeze == ("body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias")
    assert (first.epoch, first.step, second.step) == (2, None, 7)
    assert second.freeze == ("head.weight", "head.bias")
    for share, step in ((0.0, 0), (0.25, 25), (1.0, 99)):
        (only,) = scheduled_changes([{"share": share, "unfreeze": ["body"]}], names, total_steps=100)
        assert only.step == step
    with pytest.raises(UserError, match="frozen and unfrozen at once"):
        scheduled_changes([{"epoch": 2, "unfreeze": ["body"], "freeze": ["body.0"]}], names, total_steps=100)


@pytest.mark.parametrize(
    ("options", "unit", "moments"),
    [
        ({"every_epochs": 1}, "epoch", [1, 2, 3]),
        ({"every_epochs": 2, "first": 1}, "epoch", [1, 3, 5]),
        ({"every_steps": 5}, "step", [5, 10, 15]),
        ({"every_steps": 5, "first": 0}, "step", [0, 5, 10]),
        ({"share": 0.6}, "step", [20, 40, 60]),
        ({"every_epochs": 1, "layers": 2}, "epoch", [1, 2]),
        ({"every_epochs": 1, "layers": 9}, "epoch", [1]),
        ({"every_epochs": None, "every_steps": None, "share": None}, "epoch", []),
    ],
)
def test_gradual_unfreezing_goes_from_the_head_down(options: dict[str, Any], unit: str, moments: list[int]) -> None:
    depths = {"a.w": 0, "b.w": 1, "b.b": 1, "c.w": 2, "d.w": 3}
    changes = gradual_changes(options, ["a.w", "b.w", "b.b", "c.w"], depths, total_steps=100)
    assert [getattr(change, unit) for change in changes] == moments
    order = [depths[name] for change in changes for name in sorted(change.unfreeze, key=depths.__getitem__)[::-1]]
    assert order == ([2, 1, 1, 0] if moments else [])


def test_gradual_unfreezing_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="nothing is frozen"):
        gradual_changes({"every_epochs": 1}, [], {}, total_steps=100)


# What rests beside the parameters of frozen parts


class Counted(nn.Module):
    """Buffers that no mode of a module changes, or that are no numbers to compute with."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.count += self.training
        return x


class OwnNorm(nn.Module):
    """A norm layer that leaves its statistics to a function."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, training=self.training)


def spectral() -> Any:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))


def test_layers_that_keep_numbers_in_train_mode() -> None:
    old = nn.utils.spectral_norm(nn.Linear(3, 3))
    assert all(has_state(module) for module in (Centred(3), OwnNorm(3), old, spectral().parametrizations.weight[0]))
    attention = nn.MultiheadAttention(4, 2, dropout=0.5)
    without = (spectral(), CentredAnyhow(3), Counted(), nn.Linear(3, 3), nn.Dropout(0.5), attention)
    assert not any(has_state(module) for module in without)


def stateful() -> nn.Module:
    stem = nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 3)), spectral(), Counted())
    body = nn.Sequential(OwnNorm(3), nn.BatchNorm1d(3))
    return nn.Sequential(OrderedDict(stem=stem, body=body, head=nn.Linear(3, 2)))


STATES = {"stem.0", "stem.1.parametrizations.weight.0", "body.0"}


@pytest.mark.parametrize(
    ("trained", "bn", "expected"),
    [
        (["head.weight", "head.bias"], "frozen", STATES),
        (["head.weight"], "stats", set()),
        (["stem.0.bias", "stem.1.bias", "body.0.bias"], "frozen", STATES),
        (["body.0.weight"], "frozen", STATES - {"body.0"}),
        (["stem.0.weight_orig"], "frozen", STATES - {"stem.0"}),
        (["stem.1.parametrizations.weight.original"], "frozen", {"stem.0", "body.0"}),
    ],
)
def test_states_of_frozen_layers_rest(trained: list[str], bn: str, expected: set[str]) -> None:
    model = stateful()
    names = NetworkNames(model, head="head")
    assert frozen_stateful_modules(model, trained, names, trainable=frozenset(trained), bn=bn) == expected


def test_norm_layers_that_a_network_holds() -> None:
    model = HoldsNorms(3, 2)
    model.eval()
    assert norms_held_by_model(model) == {"norm", "blocks.0.1", "blocks.1.1"}
    assert not any(module.training for module in model.modules())
    assert norms_held_by_model(stateful()) == frozenset()

    class Holds(nn.Sequential):
        def train(self, mode: bool = True) -> Holds:
            super().train(mode)
            self[1].training = mode and self[0].weight.requires_grad
            return self

    other = Holds(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    everything = frozenset(name for name, _ in other.named_parameters())
    phases = [Phase(everything, epoch=0), Phase(everything - {"0.weight"}, epoch=1, frozen_norms=frozenset("2"))]
    assert [with_norms_held_by_model(other, phase).frozen_norms for phase in phases] == [frozenset(), frozenset("12")]


@pytest.mark.parametrize(
    ("trained", "bn", "expected"),
    [
        (["@head"], "frozen", {"stem.1", "body.1"}),
        (["@head"], "stats", set()),
        (["@head", "body"], "frozen", {"stem.1"}),
        (["stem.0.bias", "stem.1.bias"], "frozen", {"stem.1", "body.1"}),
        (["stem.1.weight"], "frozen", {"body.1"}),
        # One weight that trains makes the part around it alive, and a norm without weights is what its part is.
        (["body.0.bias"], "frozen", {"stem.1"}),
        (["*"], "frozen", set()),
    ],
)
def test_norms_of_frozen_parts_rest(trained: list[str], bn: str, expected: set[str]) -> None:
    model = network()
    names = NetworkNames(model, head="head")
    assert frozen_norms(model, names.find_parameters(trained, argument="k"), names, bn=bn) == expected


def test_modules_without_parameters_are_what_the_part_around_them_is() -> None:
    model = network()
    names = NetworkNames(model, head="head")
    frozen = frozen_modules(model, names.find_parameters(["body", "@head"], argument="k"), names)
    assert frozen == {"stem", "stem.0", "stem.1", "stem.2"}
    assert "" in frozen_modules(model, [], names)
    assert norm_parameters(model, set(names.aliases), names) == {"stem.1.weight", "stem.1.bias"}


# A plain training loop


def small() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


HEAD = frozenset({"3.weight", "3.bias"})
ALL = HEAD | {"0.weight", "0.bias", "1.weight", "1.bias"}
PHASES = [
    Phase(HEAD, epoch=0, frozen_norms=frozenset("1"), eval_modules=frozenset("2")),
    Phase(ALL, epoch=2),
    Phase(HEAD, step=9, frozen_norms=frozenset("1")),
]


class Log:
    """Writes down what is reported."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, phase: Phase, *, epoch: int, step: int) -> None:
        self.lines.append(f"begin {phase.name} at {epoch}, {step}")

    def after_steps(self, step: int) -> None:
        self.lines.append(f"after {step}")

    def end(self, step: int) -> None:
        self.lines.append(f"end at {step}")


def train(model: nn.Module, tuning: NoTuning) -> dict[str, list[int]]:
    """Twelve steps of SGD with momentum and weight decay, three an epoch; when each tensor moved after the first."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    states = []
    for step in range(12):
        if step % 3 == 0:
            tuning.train(model)
        tuning.before_step(step // 3, step)
        torch.manual_seed(step)
        model(torch.randn(8, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        states.append(copy.deepcopy(model.state_dict()))
    tuning.finish(12)
    return {
        name: [step for step in range(1, 12) if not torch.equal(states[step][name], states[step - 1][name])]
        for name in states[0]
    }


def test_each_phase_moves_what_it_says_and_nothing_else() -> None:
    moved = train(small(), NoTuning())
    assert all(moved[name] == list(range(1, 12)) for name in ALL)
    model, log = small(), Log()
    moved = train(model, Tuning(model, PHASES, auditor=log))  # type: ignore[arg-type]
    # Momentum and weight decay would go on moving what is frozen at step 9.
    assert moved["0.weight"] == moved["1.weight"] == moved["1.running_mean"] == [6, 7, 8]
    assert moved["3.weight"] == list(range(1, 12))
    early = ["after 1", "after 7", "after 10"]  # the first of each phase; there is one after every step
    assert [line for line in log.lines if line[:5] != "after" or line in early] == [
        *["begin epoch 0 at 0, 0", "after 1", "end at 6"],
        *["begin epoch 2 at 2, 6", "after 7", "end at 9"],
        *["begin step 9 at 3, 9", "after 10", "end at 12"],
    ]


@pytest.mark.parametrize("wrap", [nn.Sequential, lambda model: model])
def test_modes_are_applied_again_after_every_train(wrap: Any) -> None:
    model = small()
    tuning, outer = Tuning(model, PHASES), wrap(model)
    tuning.train(outer)
    tuning.before_step(0, 0)
    for _ in range(2):
        assert (outer.training, model[1].training, model[2].training) == (True, False, False)
        model.train()
        tuning.train(outer)
    tuning.before_step(2, 6)
    assert all(module.training for module in model.modules())


def test_a_run_that_begins_in_the_middle_is_in_the_right_phase() -> None:
    model = small()
    model(torch.randn(8, 3)).sum().backward()
    tuning = Tuning(model, PHASES)
    tuning.train(model)
    for moment, trainable in (((2, 7), ALL), ((3, 9), HEAD), ((0, 1), HEAD)):  # the last as after a rollback
        tuning.before_step(*moment)
        assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == trainable
        assert model[1].training == (trainable == ALL)
    assert model[0].weight.grad is None  # optimizers move what has one
    assert model[3].weight.grad is not None
