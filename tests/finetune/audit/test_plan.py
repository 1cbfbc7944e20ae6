"""What a plan says of a run, and where live objects differ from it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from lightkit.finetune.phases import Phase
from lightkit.finetune.plan import (
    Plan,
    build_plan,
    first_zero_steps,
    live_table,
    phase_steps,
    plain_phases,
    probe_steps,
)
from lightkit.finetune.tables import PhaseTable
from lightkit.optim.annealing import Cosine, Plateau
from lightkit.optim.groups import parameter_groups
from lightkit.optim.schedulers import Schedule
from lightkit.optim.wrapped import rates as previewed

LENGTHS = {"steps_per_epoch": 10, "total_steps": 45}
HEAD = frozenset({"4.weight", "4.bias"})


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))


def everything(model: nn.Module) -> frozenset[str]:
    return frozenset(name for name, _ in model.named_parameters())


def made(kind: type[Schedule] = Cosine, **options: Any) -> tuple[nn.Module, Optimizer, Schedule, list[Phase], Plan]:
    model = network()
    rules = [{"match": "4.*", "name": "head", "lr": 0.01}, {"match": "1.*", "name": "norm", "weight_decay": 0.0}]
    groups = parameter_groups(model, lr=0.001, weight_decay=0.1, rules=rules)
    optimizer = AdamW(groups)
    schedule = kind(optimizer, **LENGTHS, **options)
    listed = [Phase(HEAD, epoch=0, frozen_norms=frozenset({"1"})), Phase(everything(model) - {"1.bias"}, step=15)]
    return model, optimizer, schedule, listed, planned(model, optimizer, schedule, listed)


def planned(model: nn.Module, optimizer: Optimizer, schedule: Schedule, listed: list[Phase]) -> Plan:
    steps = phase_steps(listed, **LENGTHS)
    wanted = sorted({step for moments in steps for step in moments})
    found = previewed(schedule, wanted)
    return build_plan(model, optimizer, listed, steps=steps, rates=None if found is None else dict(zip(wanted, found)))


def enter(model: nn.Module, phase: Phase) -> None:
    model.train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in phase.trainable)
    for path in phase.frozen_norms:
        model.get_submodule(path).eval()


def test_steps_of_phases() -> None:
    listed = [Phase(HEAD, epoch=0), Phase(HEAD, step=15), Phase(HEAD, epoch=3), Phase(HEAD, step=44)]
    assert phase_steps(listed, **LENGTHS) == [(0, 10), (15, 20), (30, 40), (44,)]
    assert phase_steps([Phase(HEAD, epoch=0)], steps_per_epoch=10, total_steps=7) == [(0,)]


def test_rows_of_each_phase() -> None:
    *_, plan = made()
    rows = [
        (t.phase, r.group, r.tensors, r.parameters, r.frozen, r.weight_decay, r.norm)
        for t in plan.phases
        for r in t.rows
    ]
    assert rows == [
        ("epoch 0", "all", 4, 128, True, 0.1, ""),
        ("epoch 0", "norm", 2, 16, True, 0.0, "frozen"),
        ("epoch 0", "head", 2, 27, False, 0.1, ""),
        ("step 15", "all", 4, 128, False, 0.1, ""),
        ("step 15", "norm", 1, 8, False, 0.0, "train"),
        ("step 15", "norm (frozen)", 1, 8, True, 0.0, ""),
        ("step 15", "head", 2, 27, False, 0.1, ""),
    ]
    assert [(table.trainable, table.parameters) for table in plan.phases] == [(27, 171), (163, 171)]
    assert plan.phases[0].rows[2].rules == ("optim", "optim.rules[0]")
    assert plan.phases[0].rows[2].names == ("4.weight", "4.bias")


def test_rates_are_those_of_the_schedule() -> None:
    _, optimizer, schedule, _, plan = made(warmup_steps=5)
    head = plan.find("epoch 0").rows[2], plan.find("step 15").rows[3]
    for step in range(45):
        for table, row in zip(plan.phases, head):
            if step in table.steps:
                assert row.rates[table.steps.index(step)] == optimizer.param_groups[2]["lr"]
        schedule.step()
    assert head[0].rate == 0.01


def test_memory_of_the_optimizer_grows_with_what_has_trained() -> None:
    model, *_, plan = made()
    first, second = (table.state_bytes for table in plan.phases)
    assert first == 2 * (27 * 4) + 2 * 4
    assert second == 2 * (163 * 4) + 7 * 4
    assert [row.state_bytes is None for row in plan.phases[0].rows] == [True, True, False]
    listed = [Phase(HEAD, epoch=0), Phase(everything(model) - HEAD, epoch=1)]
    steps = phase_steps(listed, **LENGTHS)
    again = build_plan(model, SGD(model.parameters(), lr=0.1, momentum=0.9), listed, steps=steps, rates=None)
    assert [table.state_bytes for table in again.phases] == [27 * 4, 171 * 4]
    unknown = build_plan(model, torch.optim.LBFGS(model.parameters()), listed, steps=steps, rates=None)
    assert unknown.phases[0].state_bytes is None
    assert "optimizer state unknown (LBFGS)" in unknown.lines()[0]


def differences(plan: Plan, *live: PhaseTable) -> list[str]:
    planned = {table.phase: table for table in plan.phases}
    return [f"{table.phase}: {line}" for table in live for line in planned[table.phase].differences(table)]


def test_live_objects_are_as_planned() -> None:
    model, optimizer, schedule, listed, plan = made(warmup_steps=3)
    tables = []
    for step in range(45):
        phase = listed[step >= 15]
        if step in (0, 15):
            enter(model, phase)
        tables.append(live_table(model, optimizer, phase=phase.name, step=step))
        optimizer.step()
        schedule.step()
    assert differences(plan, *tables) == []


def test_every_difference_is_named() -> None:
    model, optimizer, _, listed, plan = made()
    enter(model, listed[0])
    model[3].weight.requires_grad_()
    model[1].train()
    optimizer.param_groups[2]["lr"] = 0.02
    optimizer.param_groups[2]["weight_decay"] = 0.2
    optimizer.param_groups[1]["rules"] = ["elsewhere"]
    lines = differences(plan, live_table(model, optimizer, phase="epoch 0", step=0))
    assert lines == [
        "epoch 0: group all (frozen) is not in the plan",
        "epoch 0: group all: without 0.weight, 0.bias, 3.bias",
        "epoch 0: group all: frozen False, planned True",
        "epoch 0: group all: parameters 64, planned 128",
        "epoch 0: group norm: rules ('elsewhere',), planned ('optim', 'optim.rules[1]')",
        "epoch 0: group norm: norm layers stats, planned frozen",
        "epoch 0: group head: weight decay 0.2, planned 0.1",
        "epoch 0: group head: learning rate 0.02 at step 0, planned 0.01",
    ]


def test_other_differences() -> None:
    model, optimizer, _, listed, plan = made()
    enter(model, listed[0])
    live = live_table(model, optimizer, phase="epoch 0", step=0)
    assert differences(plan, replace(live, rows=live.rows[:2])) == ["epoch 0: group head of the plan is not there"]
    assert "also with 4.weight" in "".join(
        replace(plan.phases[0], rows=(replace(plan.phases[0].rows[2], names=("4.bias",)),)).differences(live)
    )
    # Between two epochs nothing is known of the rates, and in eval mode nothing of the norm layers.
    optimizer.param_groups[2]["lr"] = 1.0
    model.eval()
    assert differences(plan, live_table(model, optimizer, phase="epoch 0", step=3)) == []


def test_rates_that_a_validation_decides() -> None:
    model, optimizer, _, listed, plan = made(Plateau, mode="min", factor=0.5)
    assert plan.phases[0].rows[2].rates is None
    assert plan.table()[1][2][5] == "0.01, then as validation tells"
    enter(model, listed[0])
    assert differences(plan, live_table(model, optimizer, phase="epoch 0", step=0)) == []


def test_plain_training_is_one_phase() -> None:
    model = network()
    model[0].requires_grad_(False)
    listed = plain_phases(model)
    optimizer = SGD(parameter_groups(model, lr=0.1), lr=0.1)
    plan = planned(model, optimizer, Cosine(optimizer, **LENGTHS), list(listed))
    assert [(row.group, row.tensors, row.frozen) for row in plan.phases[0].rows] == [
        ("all", 6, False),
        ("never trained", 2, True),
    ]
    assert plan.lines() == ["from epoch 0: 115 of 171 parameters train (67 %), optimizer state 0 B (SGD)"]


def test_norm_modes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    listed = [
        Phase(frozenset({"4.weight"}), epoch=0, frozen_norms=frozenset({"1"})),
        Phase(frozenset({"3.weight", "3.bias"}), epoch=1, frozen_norms=frozenset({"1"})),
    ]
    optimizer = SGD(model.parameters(), lr=0.1)
    plan = build_plan(model, optimizer, listed, steps=phase_steps(listed, **LENGTHS), rates=None)
    assert [(row.group, row.norm) for table in plan.phases for row in table.rows] == [
        ("group 0", ""),
        ("group 0 (frozen)", "frozen+stats"),
        ("group 0", "train"),
        ("group 0 (frozen)", "frozen"),
    ]
    for phase, table in zip(listed, plan.phases):
        enter(model, phase)
        assert table.differences(live_table(model, optimizer, phase=phase.name, step=0)) == []


def test_table_for_people() -> None:
    *_, plan = made()
    titles, rows = plan.table()
    assert titles[:4] == ["phase", "group", "tensors", "parameters"]
    assert rows[0] == ["epoch 0", "all", "4", "128", "no", "", "", "", "optim", "0.*, 3.*"]
    assert rows[1][0] == ""
    assert rows[2] == ["", "head", "2", "27", "yes", "0.01 -> 8.83e-3", "0.1", "", "optim, optim.rules[0]", "4.*"]
    assert rows[3][0] == "step 15"
    assert {len(row) for row in rows} == {len(titles)}


def test_as_plain_values() -> None:
    *_, plan = made()
    values = plan.to_json()
    assert json.loads(json.dumps(values)) == values
    assert values["optimizer"] == "AdamW"
    group = values["phases"][1]["groups"][0]
    assert group["names"] == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert len(group["rates"]) == len(values["phases"][1]["steps"]) == 4


def test_steps_in_each_phase() -> None:
    assert probe_steps([(0, 4, 8), (12,)], 14) == {*range(12), 12, 13}
    found = probe_steps([(0,)], 1600)
    assert found == set(range(0, 1600, 100))


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 0),
        ([0.1, 0.1, 0.0, 0.0, 0.0, 0.0], 2),
        ([0.1, 0.1, 0.1, 0.0, 0.0, 0.0], 4),
        ([0.0, 0.1, 0.0, 0.1, 0.0, 0.1], None),  # with cycles of an epoch
        ([0.1, 0.1, 0.1, 0.1, 0.1, 0.0], None),
    ],
)
def test_the_step_from_which_on_a_rate_is_0(rates: list[float], expected: int | None) -> None:
    known = {step: [rate, 1.0] for step, rate in enumerate(rates)} | {6: [1.0, 1.0]}
    assert first_zero_steps(known, (0, 2, 4), 6) == ({} if expected is None else {0: expected})


def test_nothing_is_told_of_rates_that_are_not_known() -> None:
    assert first_zero_steps({}, (0, 2, 4), 6) == {}
