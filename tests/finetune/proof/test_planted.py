"""Faults in real runs: what trains otherwise than it was to ends the run with status 6 and the names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.finetune.spies import mischief
from tests.finetune.whole import MODELS, SHORT, complaints, notes, options

pytestmark = pytest.mark.usefixtures("hasty")

Cli = Callable[..., Outcome]
SCHEDULE = "finetune.schedule=[{epoch: 1, unfreeze: [stages.1]}]"
LATER = "finetune.schedule=[{epoch: 1, unfreeze: [stages]}]"
PAUSE = "finetune.schedule=[{step: 1, unfreeze: [stages]}, {epoch: 1, freeze: [stages]}]"
OWN = ["model=custom", "data=wine", *SHORT]
SPIES = "tests.finetune.spies"

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
}


@pytest.fixture
def train(cli: Cli, bases: dict[str, Path]) -> Cli:
    def start(*overrides: str) -> Outcome:
        base = f"finetune.weights.path={bases['cnn']}"
        return cli("train", *options("cnn", "head", base, "hydra.run.dir=run", *overrides))

    return start


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
