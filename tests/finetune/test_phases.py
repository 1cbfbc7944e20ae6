"""What trains when: schedules, gradual unfreezing, and what rests with a frozen part."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from torch import nn

from lightkit.common.errors import UserError
from lightkit.finetune.names import NetworkNames
from lightkit.finetune.phases import Change, Phase, gradual_changes, phase_starts, scheduled_changes

LENGTHS = {"steps_per_epoch": 10, "total_steps": 100}
DEPTHS = {"a.w": 0, "b.w": 1, "b.b": 1, "c.w": 2, "d.w": 3}


def network() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5)),
            body=nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2, affine=False), nn.LayerNorm(2)),
            head=nn.Linear(2, 2),
        )
    )


def names_of(model: nn.Module) -> NetworkNames:
    return NetworkNames(model, head="head")


def phases(*changes: Change, start: tuple[str, ...] = ("h",)) -> list[tuple[dict[str, int], frozenset[str]]]:
    return phase_starts(start, changes, **LENGTHS)


def test_without_changes_there_is_one_phase() -> None:
    assert phases() == [({"epoch": 0}, frozenset("h"))]


def test_changes_come_in_the_order_of_time_whatever_their_unit() -> None:
    found = phases(
        Change("k", unfreeze=("c",), epoch=5),
        Change("k", unfreeze=("b",), step=25),
        Change("k", freeze=("b",), epoch=3),
    )
    assert found == [
        ({"epoch": 0}, frozenset("h")),
        ({"step": 25}, frozenset("hb")),
        ({"epoch": 3}, frozenset("h")),
        ({"epoch": 5}, frozenset("hc")),
    ]


def test_changes_of_one_moment_make_one_phase() -> None:
    found = phases(Change("k", unfreeze=("b",), epoch=2), Change("k", unfreeze=("c",), step=20))
    assert found[1:] == [({"epoch": 2}, frozenset("hbc"))]


def test_a_change_at_the_start_is_no_phase_of_its_own() -> None:
    assert phases(Change("k", unfreeze=("b",), step=0)) == [({"epoch": 0}, frozenset("hb"))]


def test_a_change_that_changes_nothing_is_no_phase() -> None:
    assert len(phases(Change("k", unfreeze=("h",), epoch=3))) == 1


@pytest.mark.parametrize("moment", [{"epoch": 10}, {"step": 100}, {"epoch": 99}])
def test_after_the_end_is_refused(moment: dict[str, int]) -> None:
    with pytest.raises(UserError, match="after the end of the run") as caught:
        phases(Change("finetune.schedule[0]", unfreeze=("b",), **moment))
    assert "finetune.schedule[0]" in str(caught.value)
    assert "trainer.epochs" in str(caught.value)


def test_freezing_everything_is_refused() -> None:
    with pytest.raises(UserError, match="everything is frozen from epoch 4 on"):
        phases(Change("k", freeze=("h",), epoch=4))
    with pytest.raises(UserError, match="everything is frozen"):
        phases(start=())


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
    assert phase.name == name
    assert phase.first_step(10) == first


def test_scheduled_changes_name_parameters() -> None:
    names = names_of(network())
    found = scheduled_changes(
        [{"epoch": 2, "unfreeze": ["body"]}, {"step": 7, "freeze": ["@head"], "unfreeze": []}], names, total_steps=100
    )
    assert found[0].unfreeze == ("body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias")
    assert (found[0].epoch, found[0].step, found[1].step) == (2, None, 7)
    assert found[1].freeze == ("head.weight", "head.bias")


def test_a_schedule_that_matches_nothing_or_contradicts_itself_is_refused() -> None:
    names = names_of(network())
    with pytest.raises(UserError, match=r"^schedule\[0\]\.unfreeze: "):
        scheduled_changes([{"epoch": 2, "unfreeze": ["bodi"]}], names, total_steps=100)
    with pytest.raises(UserError, match="frozen and unfrozen at once"):
        scheduled_changes([{"epoch": 2, "unfreeze": ["body"], "freeze": ["body.0"]}], names, total_steps=100)


@pytest.mark.parametrize(
    ("options", "moments"),
    [
        ({"every_epochs": 1}, [{"epoch": 1}, {"epoch": 2}, {"epoch": 3}]),
        ({"every_epochs": 2, "first": 1}, [{"epoch": 1}, {"epoch": 3}, {"epoch": 5}]),
        ({"every_steps": 5}, [{"step": 5}, {"step": 10}, {"step": 15}]),
        ({"every_steps": 5, "first": 0}, [{"step": 0}, {"step": 5}, {"step": 10}]),
        ({"share": 0.6}, [{"step": 20}, {"step": 40}, {"step": 60}]),
        ({"every_epochs": 1, "layers": 2}, [{"epoch": 1}, {"epoch": 2}]),
        ({"every_epochs": 1, "layers": 9}, [{"epoch": 1}]),
    ],
)
def test_gradual_unfreezing_goes_from_the_head_down(options: dict[str, Any], moments: list[dict[str, int]]) -> None:
    found = gradual_changes(options, ["a.w", "b.w", "b.b", "c.w"], DEPTHS, **LENGTHS)
    assert [{"epoch": c.epoch} if c.epoch is not None else {"step": c.step} for c in found] == moments
    order = [name for change in found for name in change.unfreeze]
    assert sorted(order) == ["a.w", "b.b", "b.w", "c.w"]
    assert [DEPTHS[change.unfreeze[-1]] for change in found] == sorted(DEPTHS[c.unfreeze[-1]] for c in found)[::-1]


def test_nothing_says_when_so_nothing_is_unfrozen() -> None:
    assert gradual_changes({"every_epochs": None, "every_steps": None, "share": None}, ["a.w"], DEPTHS, **LENGTHS) == []


def test_gradual_unfreezing_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="nothing is frozen"):
        gradual_changes({"every_epochs": 1}, [], DEPTHS, **LENGTHS)


@pytest.mark.parametrize(("share", "step"), [(0.0, 0), (0.25, 25), (1.0, 99)])
def test_a_share_of_the_run_is_a_step(share: float, step: int) -> None:
    found = scheduled_changes([{"share": share, "unfreeze": ["body"]}], names_of(network()), total_steps=100)
    assert found[0].step == step
