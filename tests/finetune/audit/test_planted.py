"""Faults in real runs: what trains otherwise than it was to ends the run with status 6 and the names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.finetune.spies import Watch, mischief, watching
from tests.finetune.whole import MODELS, SHORT, complaints, moved, notes, options, weights

pytestmark = pytest.mark.usefixtures("hasty")

Cli = Callable[..., Outcome]
SCHEDULE = "finetune.schedule=[{epoch: 1, unfreeze: [stages.1]}]"
LATER = "finetune.schedule=[{epoch: 1, unfreeze: [stages]}]"
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
    "statistics drift in the right mode": (
        [mischief("drift", step=3)],
        "epoch 0, until step 6",
        "statistics of norm layers should rest but moved: stages.0.norm0.running_var",
    ),
    "a stale gradient": (
        [LATER, mischief("stale_gradient", step=1)],
        "epoch 0, after step 2",
        "should rest but moved: stages.0.conv0.weight",
    ),
    "a stale gradient in a later phase": (
        [PAUSE, mischief("stale_gradient", step=4)],
        "epoch 1, after step 5",
        "should rest but moved: stages.0.conv0.weight",
    ),
    "a layer that is replaced behind the optimizer": (
        [mischief("new_head")],
        "epoch 0, before step 0",
        "trains but is not in the optimizer (was the optimizer built before the network was changed?): "
        "head.weight, head.bias",
    ),
    "an optimizer over other tensors": (
        ["optim=custom", f"optim._target_={SPIES}.Copies", "+optim.lr=0.1"],
        "epoch 0, before step 0",
        "in the optimizer but not in the network (was the optimizer built before the network was changed?): "
        "head.weight, head.bias",
    ),
    "a rate of 0 from the start": (
        [mischief("rate_of_zero")],
        "epoch 0, before step 0",
        "group head: learning rate 0 at step 0, planned 0.01",
    ),
    "a rate of 0 later": (
        ["scheduler=constant", SCHEDULE, mischief("rate_of_zero", step=1)],
        "epoch 1, before step 3",
        "group head: learning rate 0 at step 3, planned 0.01",
    ),
    "a rate of 0 in the only phase": (
        ["scheduler=constant", mischief("rate_of_zero", again=True), "finetune.audit=fail"],
        "epoch 0, before step 0",
        "learning rate 0 at step 0, planned 0.01",
    ),
    "a head that is frozen": (
        ["finetune=norm", mischief("freeze_head", step=1)],
        "epoch 0, after step 2",
        "should train but is frozen: head.weight, head.bias",
    ),
    "a body that trains": (
        [mischief("thaw_body", step=1)],
        "epoch 0, after step 2",
        "should rest but trains: stages.0.conv0.weight",
    ),
    "a phase that begins too early": (
        [SCHEDULE, mischief("begin_early", step=1)],
        "epoch 1, before step 1",
        "the phase begins with epoch 1, but this is epoch 0, step 1: too early",
    ),
    "a phase that begins too late": (
        [SCHEDULE, "trainer.epochs=3", mischief("begin_late", step=1)],
        "epoch 1, before step 5",
        "the phase begins with epoch 1, but this is epoch 1, step 5: too late",
    ),
    "another rate than planned": (
        [mischief("double_rate")],
        "epoch 0, before step 0",
        "group head: learning rate 0.02 at step 0, planned 0.01",
    ),
    "another rate at the start of a phase": (
        ["scheduler=constant", SCHEDULE, mischief("double_rate", step=2)],
        "epoch 1, before step 3",
        "learning rate 0.02 at step 3, planned 0.01",
    ),
    "another weight decay than planned": (
        [mischief("more_decay")],
        "epoch 0, before step 0",
        "group head: weight decay 0.5, planned 0.01",
    ),
    "a parameter in another group": (
        [mischief("other_group")],
        "epoch 0, before step 0",
        "group head.no_decay: also with head.weight",
    ),
    "a parameter in another group later": (
        [mischief("other_group", step=1)],
        "epoch 0, after step 3",
        "group head.no_decay: also with head.weight",
    ),
    "another weight decay later": (
        [mischief("more_decay", step=1)],
        "epoch 0, after step 3",
        "group head: weight decay 0.5, planned 0.01",
    ),
    "another weight decay in the last epoch": (
        [mischief("more_decay", step=4)],
        "epoch 0, until step 6",
        "group head: weight decay 0.5, planned 0.01",
    ),
    "other options later": (
        [mischief("other_betas", step=1)],
        "epoch 0, after step 3",
        "group head: betas (0.5, 0.9), (0.9, 0.999) when the phase began",
    ),
    "another rate later": (
        ["scheduler=constant", mischief("double_rate", step=1)],
        "epoch 0, after step 3",
        "group head: learning rate 0.02 at step 3, planned 0.01",
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
    "another rate than a schedule of PyTorch's sets": (
        ["scheduler=torch", mischief("double_rate", step=1)],
        "epoch 0, after step 3",
        "group head: learning rate 0.019 at step 3, planned 9.5e-3",
    ),
    "a schedule that is 0 throughout": (
        ["scheduler=torch", "~scheduler.scheduler.gamma", f"scheduler.scheduler={{{ZERO}}}"],
        "before the first step",
        "epoch 0: group head: its learning rate is 0 in every step, by the schedule; if that is meant, freeze it",
    ),
    "one of several parameters that is put back": (
        ["finetune=full", "optim.no_decay=false", mischief("hold_bias", again=True)],
        "epoch 0, until step 6",
        "should move but did not, although gradients reached them: head.bias",
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


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["norm layers wake up", "a rate of 0 later", "a phase that begins too late"])
def test_the_audit_may_warn_and_go_on(train: Cli, project: Path, name: str) -> None:
    overrides, when, text = FAULTS[name]
    done = train(*overrides, "finetune.audit=warn")
    assert done.code == 0, done.err
    (line,) = [line for line in complaints(project / "run") if text in line]
    assert f"audit ({when}): " in line
    assert {row["phase"] for row in notes(project / "run")["audit"]} >= {"epoch 0"}


def test_the_audit_may_be_off(train: Cli, project: Path) -> None:
    done = train(LATER, mischief("stale_gradient", step=1), "finetune.audit=none")
    assert done.code == 0, done.err
    assert complaints(project / "run") == []
    assert notes(project / "run")["audit"] == []


def test_what_was_found_before_the_fault_is_kept(train: Cli, project: Path) -> None:
    done = train(PAUSE, mischief("stale_gradient", step=4))
    assert done.code == 6
    rows = notes(project / "run")["audit"]
    assert {row["phase"]: row["to_step"] for row in rows} == {"epoch 0": 1, "step 1": 3}
    assert sum(row["moved"] for row in rows) == 2 + 8


def test_parameters_in_the_same_memory(cli: Cli, project: Path) -> None:
    done = cli("train", *OWN, f"model._target_={SPIES}.SameMemory", "finetune=freeze", "finetune.freeze=[first]")
    assert done.code == 6, done.err
    assert "second.weight trains and first.weight rests, but they are the same memory" in done.err


def test_tied_weights_that_are_frozen_and_trained(cli: Cli, project: Path) -> None:
    (project / "text.txt").write_text("the quick brown fox jumps over the lazy dog " * 30)
    text = ["data=text", "data.dataset.path=text.txt", "data.dataset.pattern=*.txt", "data.dataset.context_length=8"]
    model = ["model=transformer_lm", "model.dim=8", "model.depth=1", "model.heads=2", *SHORT]
    done = cli("train", *text, *model, "finetune=head", "finetune.freeze=[embed]", "finetune.train=[head]")
    assert done.code == 2, done.err
    assert "embed.values.weight and head.weight are one tensor" in done.err
    assert not (project / "outputs").exists()
    done = cli("train", *text, *model, "finetune=head", "finetune.freeze=[blocks]", "finetune.train=[]")
    assert done.code == 0, done.err


def test_a_layer_that_no_gradient_reaches(cli: Cli, project: Path) -> None:
    whole = [f"model._target_={SPIES}.Cut", "finetune=full", "finetune.slices=[0.1, 1.0, 1.0]"]
    done = cli("train", *OWN, *whole)
    assert done.code == 6, done.err
    assert "no gradient reached it, and it did not move: first.weight" in done.err
    assert "second.weight" not in done.err


def test_half_of_what_trains_is_cut_off(cli: Cli, project: Path) -> None:
    done = cli("train", *OWN, f"model._target_={SPIES}.Cut", "finetune=full", "finetune.slices=[1.0]")
    assert done.code == 6, done.err
    assert "no gradient reached first.weight; if it is not meant to be used, freeze it: finetune.freeze" in done.err
    assert "second.weight" not in done.err
    done = cli("train", *OWN, f"model._target_={SPIES}.Cut", "finetune=freeze", "finetune.freeze=[first]")
    assert done.code == 0, done.err


def test_a_schedule_that_comes_to_a_halt_is_told(train: Cli, project: Path) -> None:
    halt = "_target_: torch.optim.lr_scheduler.PolynomialLR, _partial_: true, total_iters: 2"
    chosen = ["scheduler=torch", "~scheduler.scheduler.gamma", f"scheduler.scheduler={{{halt}}}"]
    done = train(*chosen, "scheduler.interval=step", "trainer.epochs=3")
    assert done.code == 0, done.err
    halted = (
        "group head: its learning rate is 0 from step 3 on",
        "group head.no_decay: its learning rate is 0 from st",
    )
    lines = complaints(project / "run")
    assert len(lines) == len(halted)
    assert all(text in line for text, line in zip(halted, lines))


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["full", "norm", "gradual", "probe", "lora"])
def test_a_network_may_hold_its_norm_layers_itself(cli: Cli, project: Path, preset: str) -> None:
    more = {"lora": "finetune.lora.rank=2", "full": "finetune.slices=[1.0]"}.get(preset, "finetune.dropout=keep")
    own = [*OWN, f"model._target_={SPIES}.HoldsNorms", f"finetune={preset}", more, "trainer.epochs=3"]
    done = cli("train", *own, watching(), "hydra.run.dir=run")
    assert done.code == 0, done.err
    assert complaints(project / "run") == []
    assert not any(any(taken.norms.values()) for taken in Watch.seen[-1].taken)
    log = (project / "run" / "run.log").read_text()
    told = "the network itself holds norm layers in eval mode: blocks.0.1, blocks.1.1, norm" in log
    assert told == (preset != "lora")
    plan = notes(project / "run")["plan"]
    assert {row["norm"] for table in plan["phases"] for row in table["groups"]} == {"", "frozen"}


STATES = {"first.weight_u", "first.weight_v", "second.parametrizations.weight.0._u"}
STATES |= {"second.parametrizations.weight.0._v", "centred.centre"}


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["head", "bitfit"])
def test_what_frozen_layers_keep_stays_still(cli: Cli, project: Path, preset: str) -> None:
    own = [*OWN, f"model._target_={SPIES}.Stateful", f"finetune={preset}", watching(), "hydra.run.dir=run"]
    done = cli("train", *own)
    assert done.code == 0, done.err
    assert complaints(project / "run") == []
    before, after = Watch.seen[-1].start, weights(project / "run")
    assert set(before) >= STATES
    assert not moved(before, after) & STATES


def test_what_layers_keep_goes_on_when_they_train(cli: Cli, project: Path) -> None:
    later = "finetune.schedule=[{epoch: 1, unfreeze: [first, second, centred]}]"
    done = cli("train", *OWN, f"model._target_={SPIES}.Stateful", "finetune=head", watching(prints=True), later)
    assert done.code == 0, done.err
    half = len(Watch.seen[-1].taken) // 2
    steps = {name: Watch.seen[-1].moved(name) for name in STATES}
    assert steps.pop("centred.centre") == list(range(half, 2 * half))
    assert all(found and min(found) == half for found in steps.values()), steps


@pytest.mark.thorough
def test_statistics_that_cannot_be_held_are_named(cli: Cli, project: Path) -> None:
    own = [*OWN, f"model._target_={SPIES}.Stateful", "+model.anyhow=true", "hydra.run.dir=run"]
    done = cli("train", *own, "finetune=head")
    assert done.code == 0, done.err
    (line,) = complaints(project / "run")
    assert line.endswith(
        "buffers of frozen modules changed: centred.centre; finetune.dropout=off would hold these in eval mode"
    )
    done = cli("train", *own[:-1], "hydra.run.dir=second", "finetune=full", "finetune.slices=[1.0]")
    assert done.code == 0, done.err
    assert complaints(project / "second") == []


def test_a_head_that_would_never_train(cli: Cli, bases: dict[str, Path], project: Path) -> None:
    args = options("cnn", "freeze", f"finetune.weights.path={bases['cnn']}", 'finetune.freeze=["*"]')
    done = cli("train", *args, "finetune.train=[stages.1]")
    assert done.code == 2, done.err
    assert "parameters without pretrained weights never train" in done.err
    assert "head.bias, head.weight" in done.err
    assert not (project / "outputs").exists()


def test_a_pattern_without_a_match(cli: Cli, bases: dict[str, Path], project: Path) -> None:
    done = cli("train", *options("cnn", "freeze", "finetune.freeze=[stage.0]"))
    assert done.code == 2
    assert "finetune.freeze: the pattern matches no parameter" in done.err
    assert "nearest: stages.0" in done.err
    assert not (project / "outputs").exists()


def test_nothing_of_this_is_said_of_plain_training(cli: Cli, project: Path) -> None:
    """Without a fine-tuning nobody asked for phases: a callback may do as it likes."""
    done = cli("train", *SHORT, *MODELS["cnn"], mischief("double_rate"), "hydra.run.dir=run")
    assert done.code == 0, done.err
    assert not (project / "run" / "finetune.json").exists()
