"""A network cut into the groups of its optimizer, and what has none."""

from __future__ import annotations

from torch import nn
from torch.optim import SGD

from lightkit.finetune.phases import Phase
from lightkit.finetune.plan import (
    build_plan,
    phase_steps,
)

LENGTHS = {"steps_per_epoch": 10, "total_steps": 45}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))


def everything(model: nn.Module) -> frozenset[str]:
    return frozenset(name for name, _ in model.named_parameters())


def test_what_trains_without_a_group_is_shown() -> None:
    model = network()
    listed = [Phase(everything(model), epoch=0)]
    optimizer = SGD(model[0].parameters(), lr=0.1)
    plan = build_plan(model, optimizer, listed, steps=phase_steps(listed, **LENGTHS), rates=None)
    assert [(row.group, row.tensors, row.frozen, row.rate, row.norm) for row in plan.phases[0].rows] == [
        ("group 0", 2, False, 0.1, ""),
        ("no group", 6, False, None, "train"),
    ]
    assert plan.table()[1][1][4:7] == ["yes", "", ""]


def test_norm_without_weights_belongs_to_what_is_around_it() -> None:
    model = nn.Sequential(
        nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3, affine=False))), nn.Linear(3, 1)
    )
    listed = [Phase(frozenset({"1.0.weight", "1.0.bias"}), epoch=0)]
    optimizer = SGD(model.parameters(), lr=0.1)
    plan = build_plan(model, optimizer, listed, steps=phase_steps(listed, **LENGTHS), rates=None)
    assert [(row.tensors, row.norm) for row in plan.phases[0].rows] == [(2, "train"), (4, "")]
