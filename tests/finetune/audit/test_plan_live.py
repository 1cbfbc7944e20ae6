"""The plan of a run is what the live objects do in every step of it: presets under schedules."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.assembly import build
from lightkit.assembly.phases import build_plan_of
from lightkit.config import compose
from lightkit.finetune.tables import PhaseTable
from lightkit.runner import Runner
from tests.conftest import ROOT, Outcome
from tests.finetune.spies import Taken, Watch, watching
from tests.finetune.whole import PRESETS, complaints, notes, options, run

pytestmark = pytest.mark.usefixtures("hasty")

SCHEDULES = {
    "constant": ("scheduler.warmup_steps=2",),
    "cosine": ("scheduler.warmup_epochs=0.5", "scheduler.cycles=2"),
    "linear": ("scheduler.interval=epoch", "scheduler.floor=0.1"),
    "step": ("scheduler.every_epochs=1",),
    "one_cycle": (),
    "torch": ("scheduler.scheduler.gamma=0.5",),
    "plateau": ("scheduler.patience=0", "metrics.monitor=val/loss", "scheduler.threshold=100"),
}
CHANGING = ("none", "full", "gradual", "discriminative", "probe", "lora")
"""Presets that meet every schedule: groups that begin late, have rates of their own, or are all there is.

The others train a few groups from the first step on, as `lora` does; each meets two schedules.
"""


def cells() -> list[Any]:
    found = []
    for place, preset in enumerate(PRESETS):
        for number, schedule in enumerate(SCHEDULES):
            turn = (number - place) % len(SCHEDULES)
            if turn not in (0, 3) and preset not in CHANGING:
                continue
            marks = [] if turn == 0 else [pytest.mark.slow]
            if preset == "peft":
                missing = importlib.util.find_spec("peft") is None
                marks += [pytest.mark.skipif(missing, reason="needs peft"), pytest.mark.filterwarnings("ignore")]
            found.append(pytest.param(preset, schedule, marks=marks, id=f"{preset}-{schedule}"))
    return found


def test_every_shipped_schedule_and_preset_is_here() -> None:
    shipped = {path.stem for path in (ROOT / "conf" / "scheduler").glob("[!_]*.yaml")}
    assert shipped - {"custom"} == set(SCHEDULES)
    assert {path.stem for path in (ROOT / "conf" / "finetune").glob("[!_]*.yaml")} == set(PRESETS)


@pytest.mark.thorough
@pytest.mark.parametrize(("preset", "schedule"), cells())
def test_a_plan_is_what_every_step_does(
    tmp_path: Path, bases: dict[str, Path], monkeypatch: pytest.MonkeyPatch, preset: str, schedule: str
) -> None:
    model = "transformer" if preset == "prefix" else "cnn"
    path = "null" if preset == "none" else bases[model]
    more = [watching(), f"finetune.weights.path={path}", "trainer.epochs=4", *SCHEDULES[schedule]]
    args = options(model, preset, *more, f"scheduler={schedule}")
    compared = comparisons(monkeypatch)
    cfg, folder = compose(args).cfg, tmp_path / "run"
    Runner(cfg, folder, overrides=args).run()
    assert complaints(folder) == []
    own = planned(cfg, tmp_path)
    check(own, Watch.seen[-1].taken, predictable=schedule != "plateau")
    if preset != "none":
        assert notes(folder)["plan"] == own
        assert list(dict.fromkeys(when for when, _ in compared)) == [table["phase"] for table in own["phases"]]
        epochs = sum(len(table["steps"]) for table in own["phases"])
        assert len(compared) == epochs + len(own["phases"])  # as each of these begins, and at the end of each phase
        assert not any(lines for _, lines in compared)


def comparisons(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """The phases that a table of live objects is compared with from here on, and what was found to differ."""
    found: list[tuple[str, list[str]]] = []
    whole = PhaseTable.differences

    def differences(self: PhaseTable, live: PhaseTable, **more: Any) -> list[str]:
        assert live.rows
        lines = whole(self, live, **more)
        found.append((self.phase, lines))
        return lines

    monkeypatch.setattr(PhaseTable, "differences", differences)
    return found


def planned(cfg: Any, place: Path) -> dict[str, Any]:
    """What is planned before anything trains, as JSON gives it back."""
    parts = build(cfg, place / "never")
    parts.data.close()
    assert not (place / "never").exists()
    values: dict[str, Any] = json.loads(json.dumps(build_plan_of(parts).to_json()))
    return values


def check(plan: dict[str, Any], taken: list[Taken], *, predictable: bool = True) -> None:
    """Compare a plan with what was seen in the optimizer steps of its run."""
    begins = [table["steps"][0] for table in plan["phases"]]
    assert [step.step for step in taken] == list(range(len(taken)))
    shown = [step for table in plan["phases"] for step in table["steps"]]
    assert shown == sorted({*begins, *(step.step for step in taken if step.step % 3 == 0)})
    for step in taken:
        table = plan["phases"][sum(begin <= step.step for begin in begins) - 1]
        check_members(table, step)
        check_norms(table, step)
        check_rates(table, step, predictable=predictable)


def check_members(table: dict[str, Any], step: Taken) -> None:
    """Which parameters train, and which group they are in."""
    training = {name for row in table["groups"] if not row["frozen"] for name in row["names"]}
    assert step.trainable == step.gradients == training
    groups: dict[str, set[str]] = {}
    for row in table["groups"]:
        if row["rate"] is not None:
            groups.setdefault(row["group"].removesuffix(" (frozen)"), set()).update(row["names"])
    assert groups == {name: set(names) for name, names in step.groups.items()}
    every = [name for row in table["groups"] for name in row["names"]]
    assert len(every) == len(set(every))
    assert table["trainable"] == sum(row["parameters"] for row in table["groups"] if not row["frozen"])


def check_norms(table: dict[str, Any], step: Taken) -> None:
    """Norm layers with statistics are in the mode that the row with their weight says."""
    modes = {"train": True, "stats": True, "frozen": False}
    for row in table["groups"]:
        live = {training for path, training in step.norms.items() if f"{path}.weight" in row["names"]}
        assert live == ({modes[mode] for mode in row["norm"].split("+")} if row["norm"] else set())


def check_rates(table: dict[str, Any], step: Taken, *, predictable: bool) -> None:
    """Rates and weight decays of this step; all groups are at the same share of their own rate."""
    rows = {row["group"]: row for row in table["groups"] if row["group"] in step.rates}
    for name, row in rows.items():
        assert row["weight_decay"] == step.decays[name]
        assert (row["rates"] is not None) == predictable
        if predictable and step.step in table["steps"]:
            assert step.rates[name] == pytest.approx(row["rates"][table["steps"].index(step.step)], rel=1e-12, abs=0)
    shares = [step.rates[name] / row["rate"] for name, row in rows.items()]
    assert shares == pytest.approx([shares[0]] * len(shares), rel=1e-9)


def test_a_warm_up_of_a_late_group_is_planned(tmp_path: Path, bases: dict[str, Path]) -> None:
    rule = "finetune.rules=[{match: stages.1, name: late, lr_scale: 0.1, warmup_steps: 3}]"
    more = ["finetune.schedule=[{step: 4, unfreeze: [stages.1]}]", "trainer.epochs=4", "scheduler=constant"]
    args = options("cnn", "head", watching(), f"finetune.weights.path={bases['cnn']}", rule, *more)
    run(tmp_path / "run", *args)
    plan, taken = planned(compose(args).cfg, tmp_path), Watch.seen[-1].taken
    live = [max(rate for name, rate in step.rates.items() if "late" in name) for step in taken]
    assert live[4:8] == pytest.approx([0.001 * share for share in (0.25, 0.5, 0.75, 1.0)])
    assert live[8:] == pytest.approx([0.001] * 4)
    late = [
        (step, rate)
        for table in plan["phases"]
        for row in table["groups"]
        if "late" in row["group"]
        for step, rate in zip(table["steps"], row["rates"])
    ]
    assert late
    assert all(rate == pytest.approx(live[step]) for step, rate in late)


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["gradual", "discriminative", "lora", "probe"])
def test_the_command_prints_the_plan_of_the_run(
    cli: Callable[..., Outcome], tmp_path: Path, bases: dict[str, Path], preset: str
) -> None:
    args = options("cnn", preset, f"finetune.weights.path={bases['cnn']}")
    done = cli("plan", *args, "--json")
    assert done.code == 0, done.err
    printed = json.loads(done.out)
    assert len(printed.pop("weights")["loaded"]) >= 11
    assert printed.pop("notes") == ["data.normalize=image is fitted on all 48 training rows"]
    patterns, head = printed.pop("patterns"), printed.pop("head")
    noted = notes(run(tmp_path / "run", *args))
    assert (printed, patterns) == (noted["plan"], noted["patterns"])
    assert head == noted["head"] | {"new": False}  # built so, not replaced
