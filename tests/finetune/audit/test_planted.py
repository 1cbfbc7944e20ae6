"""Real runs: what trains is what was planned in every step, and a fault ends the run with status 6 and the names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.assembly import build
from lightkit.assembly.phases import build_plan_of
from lightkit.config import compose
from lightkit.runner import Runner
from tests.conftest import ROOT, Outcome
from tests.finetune.spies import Taken, Watch, mischief, watching
from tests.finetune.whole import MODELS, PRESETS, SHORT, complaints, notes, options, run

pytestmark = pytest.mark.usefixtures("hasty")

Cli = Callable[..., Outcome]
SCHEDULE = "finetune.schedule=[{epoch: 1, unfreeze: [stages.1]}]"
PAUSE = "finetune.schedule=[{step: 1, unfreeze: [stages]}, {epoch: 1, freeze: [stages]}]"
OWN = ["model=custom", "data=wine", *SHORT]
SPIES = "tests.finetune.spies"
PLATEAU = ["scheduler=plateau", "scheduler.patience=9", "metrics.monitor=val/loss"]
ZERO = "_target_: torch.optim.lr_scheduler.ConstantLR, _partial_: true, factor: 0.0, total_iters: 1000"

FAULTS = {
    "norm layers wake up": (
        [mischief("train_mode", step=1)],
        "epoch 0, after step 2",
        "should be in eval mode but is in train mode: stages.0.norm0, stages.1.norm0",
    ),
    "an optimizer over other tensors": (
        ["optim=custom", f"optim._target_={SPIES}.Copies", "+optim.lr=0.1"],
        "epoch 0, before step 0",
        "in the optimizer but not in the network (was the optimizer built before the network was changed?): "
        "head.weight, head.bias",
    ),
    "a rate of 0 later": (
        ["scheduler=constant", SCHEDULE, mischief("rate_of_zero", step=1)],
        "epoch 1, before step 3",
        "group head: learning rate 0 at step 3, planned 0.01",
    ),
    "a phase that begins too late": (
        [SCHEDULE, "trainer.epochs=3", mischief("begin_late", step=1)],
        "epoch 1, before step 5",
        "the phase begins with epoch 1, but this is epoch 1, step 5: too late",
    ),
    "other options later": (
        [mischief("other_betas", step=1)],
        "epoch 0, after step 3",
        "group head: betas (0.5, 0.9), (0.9, 0.999) when the phase began",
    ),
    "another rate in the last epoch": (
        ["scheduler=constant", mischief("double_rate", step=4)],
        "epoch 0, until step 6",
        "group head: learning rate 0.02, the schedule has set 0.01",
    ),
    "another rate than a schedule sets that waits for validations": (
        [*PLATEAU, mischief("double_rate", step=1)],
        "epoch 0, after step 3",
        "group head: learning rate 0.02, the schedule has set 0.01",
    ),
    "a schedule that is 0 throughout": (
        ["scheduler=torch", "~scheduler.scheduler.gamma", f"scheduler.scheduler={{{ZERO}}}"],
        "before the first step",
        "epoch 0: group head: its learning rate is 0 in every step, by the schedule; if that is meant, freeze it",
    ),
}


@pytest.fixture
def train(cli: Cli, bases: dict[str, Path]) -> Cli:
    def start(*overrides: str) -> Outcome:
        base = f"finetune.weights.path={bases['cnn']}"
        return cli("train", *options("cnn", "head", base, "hydra.run.dir=run", *overrides))

    return start


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_ends_the_run_with_the_names(train: Cli, project: Path, name: str) -> None:
    overrides, when, text = FAULTS[name]
    done = train(*overrides)
    assert done.code == 6, done.err
    assert f"not what was to be trained ({when})" in done.err
    assert text in done.err
    assert "finetune.audit=warn" in done.err
    assert done.err.count("error:") == 1
    assert "Traceback" not in done.err
    result = json.loads((project / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert text in result["reason"]


def test_the_audit_may_warn_and_go_on(train: Cli, project: Path) -> None:
    overrides, when, text = FAULTS["norm layers wake up"]
    done = train(*overrides, "finetune.audit=warn")
    assert done.code == 0, done.err
    (line,) = [line for line in complaints(project / "run") if text in line]
    assert f"audit ({when}): " in line
    assert {row["phase"] for row in notes(project / "run")["audit"]} == {"epoch 0"}


def test_what_was_seen_before_the_fault_is_kept(train: Cli, project: Path) -> None:
    done = train(PAUSE, mischief("stale_gradient", step=4))
    assert done.code == 6
    assert "(epoch 1, after step 5)" in done.err
    assert "should rest but moved: stages.0.conv0.weight" in done.err
    rows = notes(project / "run")["audit"]
    assert {row["phase"]: row["to_step"] for row in rows} == {"epoch 0": 1, "step 1": 3}
    assert sum(row["moved"] for row in rows) == 2 + 8


def test_a_schedule_that_comes_to_a_halt_is_noted(train: Cli, project: Path) -> None:
    halt = "_target_: torch.optim.lr_scheduler.PolynomialLR, _partial_: true, total_iters: 2"
    chosen = ["scheduler=torch", "~scheduler.scheduler.gamma", f"scheduler.scheduler={{{halt}}}"]
    done = train(*chosen, "scheduler.interval=step", "trainer.epochs=3")
    assert done.code == 0, done.err
    first, second = complaints(project / "run")
    assert "group head: its learning rate is 0 from step 3 on" in first
    assert "group head.no_decay: its learning rate is 0 from st" in second


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["full", "lora"])
def test_a_network_may_hold_its_norm_layers_itself(cli: Cli, project: Path, preset: str) -> None:
    more = {"lora": "finetune.lora.rank=2", "full": "finetune.slices=[1.0]"}[preset]
    own = [*OWN, f"model._target_={SPIES}.HoldsNorms", f"finetune={preset}", more, watching(), "hydra.run.dir=run"]
    done = cli("train", *own)
    assert done.code == 0, done.err
    assert complaints(project / "run") == []
    assert not any(any(taken.norms.values()) for taken in Watch.seen[-1].taken)
    log = (project / "run" / "run.log").read_text()
    noted = "the network itself holds norm layers in eval mode: blocks.0.1, blocks.1.1, norm" in log
    assert noted == (preset != "lora")
    plan = notes(project / "run")["plan"]
    assert {row["norm"] for table in plan["phases"] for row in table["groups"]} == {"", "frozen"}


def test_what_layers_keep_rests_until_they_train(cli: Cli, project: Path) -> None:
    later = "finetune.schedule=[{epoch: 1, unfreeze: [first, second, centred]}]"
    done = cli("train", *OWN, f"model._target_={SPIES}.Stateful", "finetune=head", watching(prints=True), later)
    assert done.code == 0, done.err
    half = len(Watch.seen[-1].taken) // 2
    steps = {name: Watch.seen[-1].moved(name) for name, kind in Watch.seen[-1].kinds.items() if kind == "buffer"}
    assert steps.pop("centred.centre") == list(range(half, 2 * half))
    assert len(steps) == 4
    assert all(own and min(own) == half for own in steps.values()), steps


def test_nothing_of_this_is_said_of_plain_training(cli: Cli, project: Path) -> None:
    """Without a fine-tuning nobody asked for phases: a callback may do as it likes."""
    done = cli("train", *SHORT, *MODELS["cnn"], mischief("double_rate"), "hydra.run.dir=run")
    assert done.code == 0, done.err
    assert not (project / "run" / "finetune.json").exists()


# The plan of a run is what the live objects do in every step of it

SCHEDULES = {
    "linear": ("gradual", "scheduler.interval=epoch", "scheduler.floor=0.1"),
    "constant": ("norm", "scheduler.warmup_steps=2"),
    "cosine": ("none", "scheduler.warmup_epochs=0.5", "scheduler.cycles=2"),
    "step": ("full", "scheduler.every_epochs=1"),
    "one_cycle": ("discriminative",),
    "torch": ("probe", "scheduler.scheduler.gamma=0.5"),
    "plateau": ("lora", "scheduler.patience=0", "metrics.monitor=val/loss", "scheduler.threshold=100"),
    "wsd": ("full", "scheduler.decay_share=0.5"),
    "inverse_sqrt": ("norm", "scheduler.warmup_epochs=1"),
}


def test_every_shipped_schedule_and_preset_is_here() -> None:
    shipped = {path.stem for path in (ROOT / "conf" / "scheduler").glob("[!_]*.yaml")}
    assert shipped - {"custom"} == set(SCHEDULES)
    assert {path.stem for path in (ROOT / "conf" / "finetune").glob("[!_]*.yaml")} == set(PRESETS)


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_plan_is_what_every_step_does(tmp_path: Path, bases: dict[str, Path], schedule: str) -> None:
    preset, *more = SCHEDULES[schedule]
    path = "null" if preset == "none" else bases["cnn"]
    given = [watching(), f"finetune.weights.path={path}", "trainer.epochs=4", *more, f"scheduler={schedule}"]
    args = options("cnn", preset, *given)
    cfg, folder = compose(args).cfg, tmp_path / "run"
    Runner(cfg, folder, overrides=args).run()
    assert complaints(folder) == []
    own = planned(cfg, tmp_path)
    check(own, Watch.seen[-1].taken, predictable=schedule != "plateau")
    assert preset == "none" or notes(folder)["plan"] == own


def planned(cfg: Any, place: Path) -> dict[str, Any]:
    """What is planned before anything trains, as JSON gives it back."""
    parts = build(cfg, place / "never")
    parts.data.close()
    assert not (place / "never").exists()
    values: dict[str, Any] = json.loads(json.dumps(build_plan_of(parts).to_json()))
    return values


def check(plan: dict[str, Any], taken: list[Taken], *, predictable: bool) -> None:
    """Compare a plan with what was seen in the optimizer steps of its run."""
    begins = [table["steps"][0] for table in plan["phases"]]
    assert [step.step for step in taken] == list(range(len(taken)))
    shown = [step for table in plan["phases"] for step in table["steps"]]
    assert shown == sorted({*begins, *(step.step for step in taken if step.step % 3 == 0)})
    for step in taken:
        table = plan["phases"][sum(begin <= step.step for begin in begins) - 1]
        check_members(table, step)
        modes = {"train": True, "stats": True, "frozen": False}
        for row in table["groups"]:  # norm layers are in the mode that the row with their weight says
            live = {training for path, training in step.norms.items() if f"{path}.weight" in row["names"]}
            assert live == ({modes[mode] for mode in row["norm"].split("+")} if row["norm"] else set())
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
    assert live[4:] == pytest.approx([0.001 * min(share, 1.0) for share in (0.25, 0.5, 0.75, 1, 1, 1, 1, 1)])
    late = [
        (step, rate)
        for table in plan["phases"]
        for row in table["groups"]
        if "late" in row["group"]
        for step, rate in zip(table["steps"], row["rates"])
    ]
    assert late
    assert all(rate == pytest.approx(live[step]) for step, rate in late)


def test_the_command_prints_the_plan_of_the_run(cli: Cli, tmp_path: Path, bases: dict[str, Path]) -> None:
    args = options("cnn", "gradual", f"finetune.weights.path={bases['cnn']}")
    done = cli("plan", *args, "--json")
    assert done.code == 0, done.err
    printed = json.loads(done.out)
    assert len(printed.pop("weights")["loaded"]) >= 11
    assert printed.pop("notes") == ["data.normalize=image is fitted on all 48 training rows"]
    patterns, head = printed.pop("patterns"), printed.pop("head")
    noted = notes(run(tmp_path / "run", *args))
    assert (printed, patterns) == (noted["plan"], noted["patterns"])
    assert head == noted["head"] | {"new": False}  # built so, not replaced
