"""What a plan says of a run, in rows, in words and as plain values, and where live objects differ from it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from lightkit.common.text import format_bytes
from lightkit.finetune.phases import Phase
from lightkit.finetune.plan import (
    FinetunePlan,
    build_plan,
    contents,
    few_patterns,
    first_zero_steps,
    live_table,
    phase_cells,
    phase_steps,
    plain_phases,
    probe_steps,
)
from lightkit.finetune.tables import (
    GroupRow,
    PhaseTable,
    format_names,
    format_percent,
    format_rate,
    format_rates,
    state_sizes,
)
from lightkit.models import ResNet, TransformerClassifier
from lightkit.optim import Lbfgs, Sam
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


def made(
    kind: type[Schedule] = Cosine, **options: Any
) -> tuple[nn.Module, Optimizer, Schedule, list[Phase], FinetunePlan]:
    model = network()
    rules = [{"match": "4.*", "name": "head", "lr": 0.01}, {"match": "1.*", "name": "norm", "weight_decay": 0.0}]
    groups = parameter_groups(model, lr=0.001, weight_decay=0.1, rules=rules)
    optimizer = AdamW(groups)
    schedule = kind(optimizer, **LENGTHS, **options)
    listed = [Phase(HEAD, epoch=0, frozen_norms=frozenset({"1"})), Phase(everything(model) - {"1.bias"}, step=15)]
    return model, optimizer, schedule, listed, planned(model, optimizer, schedule, listed)


def planned(model: nn.Module, optimizer: Optimizer, schedule: Schedule, listed: list[Phase]) -> FinetunePlan:
    steps = phase_steps(listed, **LENGTHS)
    wanted = sorted({step for moments in steps for step in moments})
    rates = previewed(schedule, wanted)
    return build_plan(model, optimizer, listed, steps=steps, rates=None if rates is None else dict(zip(wanted, rates)))


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


def differences(plan: FinetunePlan, *live: PhaseTable) -> list[str]:
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
    assert rows[0] == ["epoch 0", "all", "4", "128", "no", "", "", "", "optim", "0.*, 3.*"]
    assert rows[2] == ["", "head", "2", "27", "yes", "0.01 -> 8.83e-3", "0.1", "", "optim, optim.rules[0]", "4.*"]
    assert rows[3][0] == "step 15"
    assert {len(row) for row in rows} == {len(titles)}
    values = plan.to_json()
    assert json.loads(json.dumps(values)) == values
    group = values["phases"][1]["groups"][0]
    assert (values["optimizer"], group["names"]) == ("AdamW", ["0.weight", "0.bias", "3.weight", "3.bias"])
    assert len(group["rates"]) == len(values["phases"][1]["steps"]) == 4


def test_steps_in_each_phase() -> None:
    assert probe_steps([(0, 4, 8), (12,)], 14) == {*range(12), 12, 13}
    assert probe_steps([(0,)], 1600) == set(range(0, 1600, 100))


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
    assert first_zero_steps({}, (0, 2, 4), 6) == {}


def test_what_trains_without_a_group_is_shown() -> None:
    model = network()
    listed = [Phase(everything(model), epoch=0)]
    plan = build_plan(
        model, SGD(model[0].parameters(), lr=0.1), listed, steps=phase_steps(listed, **LENGTHS), rates=None
    )
    assert [(row.group, row.tensors, row.frozen, row.rate, row.norm) for row in plan.phases[0].rows] == [
        ("group 0", 2, False, 0.1, ""),
        ("no group", 6, False, None, "train"),
    ]
    assert plan.table()[1][1][4:7] == ["yes", "", ""]


def test_norm_without_weights_belongs_to_what_is_around_it() -> None:
    inner = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3, affine=False)))
    model = nn.Sequential(nn.Linear(3, 3), inner, nn.Linear(3, 1))
    listed = [Phase(frozenset({"1.0.weight", "1.0.bias"}), epoch=0)]
    plan = build_plan(model, SGD(model.parameters(), lr=0.1), listed, steps=phase_steps(listed, **LENGTHS), rates=None)
    assert [(row.tensors, row.norm) for row in plan.phases[0].rows] == [(2, "train"), (4, "")]


def test_a_rate_of_0_that_is_meant_is_not_named() -> None:
    def row(group: str, rate: float, zero_from: int | None) -> GroupRow:
        return GroupRow(group, ("w",), 1, False, rate, None, None, "", (), zero_from=zero_from)

    rows = (row("meant", 0.0, 3), row("idle", 0.1, 3), row("late", 0.1, 6), row("fine", 0.1, None))
    table = PhaseTable("epoch 1", (3, 6), rows)
    assert [line.partition(":")[0] for line in table.groups_without_rate()] == ["group idle"]
    assert table.groups_that_stop() == ["group late: its learning rate is 0 from step 6 on, by the schedule"]


# For people: in later phases what changes, and in few patterns what each group holds


def gradual(*, rate_of_c: float = 0.1) -> list[PhaseTable]:
    """Four groups that begin to train one after the other, from the last."""
    tables = []
    for phase, first in enumerate((3, 2, 1, 0)):
        groups = []
        for index, name in enumerate("abcd"):
            rate, norm = rate_of_c if name == "c" else 0.1, "train" if index >= first else "frozen"
            rule = "finetune.head" if name == "d" else "optim"
            groups.append(GroupRow(name, (f"{name}.weight",), 10, index < first, rate, (rate,), 0.01, norm, (rule,)))
        tables.append(PhaseTable(f"epoch {phase}", (phase,), tuple(groups)))
    return tables


def test_later_phases_show_what_changes() -> None:
    rows = phase_cells(gradual())
    assert [line[:2] for line in rows] == [
        *[["epoch 0", "a"], ["", "b"], ["", "c"], ["", "d"]],
        *[["epoch 1", "2 groups as before"], ["", "c"], ["", "d"]],
        *[["epoch 2", "a"], ["", "b"], ["", "2 groups as before"]],
        *[["epoch 3", "a"], ["", "3 groups as before"]],
    ]
    assert [line[-1] for line in rows[:4]] == ["a.weight", "b.weight", "c.weight", "d.weight"]
    assert rows[4] == ["epoch 1", "2 groups as before", "2", "20", "no", "", "", "frozen", "optim", ""]
    assert rows[-1] == ["", "3 groups as before", "3", "30", "yes", "0.1", "0.01", "train", "optim, finetune.head", ""]
    assert [line[1] for line in phase_cells(gradual(rate_of_c=0.5))][-3:] == ["a", "2 groups as before", "c"]
    assert [line[1] for line in phase_cells(gradual(), long=True)] == [*"abcd"] * 4


EVERY = [name for name, _ in ResNet((3, 8, 8), 3, width=4).named_parameters()]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (lambda name: True, ["*"]),
        (lambda name: name.startswith(("layer3.1.", "layer4.")), ["layer3.1.*", "layer4.*"]),
        (lambda name: name.endswith(".bias"), ["*.bias"]),
        (lambda name: name == "layer1.0.conv1.weight", ["layer1.0.conv1.weight"]),
        (
            lambda name: name.endswith(".bias") or name.startswith("fc."),
            ["bn1.bias", "layer1.*.bias", "layer2.*.bias", "layer3.*.bias", "layer4.*.bias", "fc.*"],
        ),
        (lambda name: False, []),
    ],
)
def test_patterns_mean_the_names(chosen: Any, expected: list[str]) -> None:
    own = [name for name in EVERY if chosen(name)]
    assert few_patterns(own, EVERY) == expected
    assert [name for name in EVERY if any(fnmatchcase(name, pattern) for pattern in expected)] == own


@pytest.mark.parametrize("seed", range(3))
def test_any_choice_is_named_exactly(seed: int) -> None:
    every = [name for name, _ in TransformerClassifier((1, 8, 8), 3, dim=8, depth=3, heads=2).named_parameters()]
    own = [name for name in every if random.Random(f"{seed}{name}").random() < 0.2 + 0.3 * seed]
    patterns = few_patterns(own, every)
    assert [name for name in every if any(fnmatchcase(name, pattern) for pattern in patterns)] == own


def test_weights_and_biases_of_a_layer_are_named_once() -> None:
    groups = {
        "layer_0": ("a.0.weight", "a.1.weight"),
        "layer_0.no_decay": ("a.0.bias", "a.1.bias"),
        "decay": ("b.weight",),
        "no_decay": ("b.bias", "c.bias"),
        "head (frozen)": ("head.weight",),
        "head": ("head.bias",),
    }
    rows = [GroupRow(group, names, 1, False, 0.1, (0.1,), 0.0, "", ()) for group, names in groups.items()]
    assert contents(rows) == [["a.*"], ["a.*"], ["b.*"], ["b.*", "c.bias"], ["head.weight"], ["head.bias"]]


def test_numbers_and_names_for_people() -> None:
    rates = {0.001: "1e-3", 0.05: "0.05", 2.5e-5: "2.5e-5", 1.0: "1", 0.0: "0", 300.0: "300", 0.0123456: "0.0123"}
    assert {value: format_rate(value) for value in rates} == rates
    assert format_rates([1e-4, 1e-3, 1e-5]) == "1e-4 -> 1e-3 -> 1e-5"
    assert format_rates([1e-3, 1e-3]) == "1e-3"
    assert format_rates([1e-3, 5e-4]) == "1e-3 -> 5e-4"
    sizes = {0: "0 B", 1023: "1023 B", 2048: "2.0 KiB", 3 << 20: "3.0 MiB", 5 << 30: "5.0 GiB"}
    assert {count: format_bytes(count) for count in sizes} == sizes
    shares = {(1, 1000): "0.1 %", (87, 100): "87 %", (0, 0): "0 %", (9998, 10_000): "99.98 %", (999, 1000): "99.9 %"}
    shares |= {(994, 1000): "99 %", (10**12 - 1, 10**12): "99.9999999999 %", (7, 7): "100 %"}
    assert {share: format_percent(*share) for share in shares} == shares
    assert format_names("abcdefg") == "a, b, c, d, e and 2 more"


# Memory of optimizers


def layers(kind: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(40, 30)).to(kind)


def held(optimizer: Optimizer, model: nn.Module) -> dict[str, int]:
    """What an optimizer really keeps after a step."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {
        name: sum(v.numel() * v.element_size() for v in optimizer.state[p].values() if isinstance(v, torch.Tensor))
        for name, p in model.named_parameters()
    }


@pytest.mark.parametrize(
    ("kind", "options", "number"),
    [
        (SGD, {}, torch.float32),
        (SGD, {"momentum": 0.9}, torch.bfloat16),
        (torch.optim.Adam, {"amsgrad": True, "foreach": True}, torch.float64),
        (torch.optim.Adam, {"lr": torch.tensor(0.1), "foreach": False}, torch.float32),
        (torch.optim.RMSprop, {"centered": True, "momentum": 0.1}, torch.bfloat16),
        (torch.optim.Adafactor, {}, torch.float32),
        (torch.optim.Adagrad, {}, torch.float32),
        (torch.optim.NAdam, {}, torch.float32),
    ],
)
def test_what_is_measured_is_what_is_kept(kind: type[Optimizer], options: dict[str, Any], number: torch.dtype) -> None:
    model, seen = layers(number), list[Any]()
    optimizer = kind(model.parameters(), **{"lr": 0.1} | options)
    optimizer.register_step_post_hook(lambda *args: seen.append(1))
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    filled = len(optimizer.state)

    def step(stand_in: Optimizer) -> None:
        assert stand_in is not optimizer
        stand_in.step()

    measured = state_sizes(optimizer, dict(model.named_parameters()), step=step)
    assert (len(optimizer.state), seen) == (filled, [])
    assert {name: value for name, value in optimizer.param_groups[0].items() if name != "params"} == before
    assert measured == held(optimizer, model)
    assert state_sizes(optimizer, dict(model.named_parameters())) == measured


def test_steps_that_ask_for_the_loss_again_are_measured_too() -> None:
    model = layers()
    parameters = dict(model.named_parameters())
    groups = [{"params": [*parameters.values()]}]
    sam = Sam(groups, base=partial(SGD, momentum=0.9), lr=0.1)
    before = [each.detach().clone() for each in parameters.values()]
    assert state_sizes(sam, parameters) == {name: 4 * each.numel() for name, each in parameters.items()}
    lbfgs = Lbfgs([{"params": [*parameters.values()]}], history_size=2, max_iter=4)
    assert all(torch.equal(*pair) for pair in zip(before, parameters.values(), strict=True))
    expected = sum((state_sizes(lbfgs, parameters) or {}).values())

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = torch.stack([(each - 3).pow(4).sum() for each in parameters.values()]).sum()
        loss.backward()
        return loss

    for _ in range(4):
        lbfgs.step(closure)
    (state,) = lbfgs.state.values()
    kept = [*state["old_dirs"], *state["old_stps"], state["d"], state["prev_flat_grad"]]
    assert sum(4 * each.numel() for each in kept) == expected


def test_each_group_by_its_own_settings() -> None:
    model: Any = layers()
    groups = [{"params": [model[0].weight], "momentum": 0.9}, {"params": [model[2].weight]}]
    sizes = state_sizes(SGD(groups, lr=0.1), {"conv": model[0].weight, "linear": model[2].weight})
    assert sizes == {"conv": 4 * model[0].weight.numel(), "linear": 0}
