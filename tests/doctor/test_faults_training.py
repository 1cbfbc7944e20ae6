"""Faults of model, loss and training, planted one at a time: each is found, by the check that is for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lightkit.config import compose
from lightkit.doctor import checks
from lightkit.doctor.checks import examined
from lightkit.doctor.finding import Finding
from lightkit.doctor.training.saving import disk

OWN = ("data=digits", "trust=[tests]", "model=custom")


def model(name: str) -> tuple[str, ...]:
    return (*OWN, f"model._target_=tests.doctor.faulty.{name}")


def loss(name: str) -> tuple[str, ...]:
    return ("data=digits", "trust=[tests]", "loss=custom", f"loss._target_=tests.doctor.faulty.{name}")


def bounded(last: str) -> tuple[str, ...]:
    data = ("data=custom", "data.dataset._target_=tests.doctor.faulty.Columns", "loss=mse", "metrics=regression")
    return (*data, *model("Bounded")[1:], f"model.last={last}")


class Fault(NamedTuple):
    """A mistake, and what finds it."""

    overrides: tuple[str, ...]
    check: str
    finding: str
    says: str


SHORT_TEXTS = ("data=text", "data.dataset.texts={_target_: experiments.report.stamp.made_up_texts}")
FAULTS = {
    "output layer too large": Fault(model("LoudHead"), "initial loss", "initial loss", "outputs begin too large"),
    "softmax twice": Fault(model("Softmaxed"), "initial loss", "outputs", "softmax"),
    "sigmoid twice": Fault(
        ("data=digits_multilabel", *model("Sigmoided")[1:]), "initial loss", "outputs", "no prediction can come below"
    ),
    "sigmoid and softmax": Fault(model("Sigmoided"), "initial loss", "outputs", "logits"),
    "not a number": Fault(model("NotANumber"), "initial loss", "initial loss", "nan"),
    "detached": Fault(model("CutOff"), "gradients", "gradients", "hidden.weight"),
    "unused layer": Fault(model("Forgotten"), "gradients", "gradients", "second.weight"),
    "layers in a list": Fault(model("Listed"), "structure", "unregistered layers", "nn.ModuleList"),
    "targets in a column": Fault(
        (*bounded("abs"), "data.dataset.column=true"), "loss of rows", "outputs", "every output with"
    ),
    "sigmoid before a regression": Fault(bounded("sigmoid"), "initial loss", "outputs", "between 0 and 1"),
    "ReLU before a regression": Fault(bounded("relu"), "initial loss", "outputs", "are 0 or more"),
    "dropout of nearly all": Fault(("data=wine", "model.dropout=0.95"), "activations", "dropout", "95 %"),
    "vanishing": Fault(model("Vanishing"), "gradients", "gradients", "vanish"),
    "dead ReLUs": Fault(model("Dead"), "activations", "ReLUs", "off for all"),
    "exploding": Fault(model("Exploding"), "activations", "activations", "drown"),
    "looks ahead": Fault(
        (*SHORT_TEXTS, "trust=[tests]", "model=custom", "model._target_=tests.doctor.faulty.Peeking"),
        "causality",
        "causality",
        "reads the answer",
    ),
    "dropout in evaluation": Fault(model("AlwaysDropping"), "evaluation", "evaluation", "differ"),
    "random inputs in evaluation": Fault(
        ("data=custom", "data.dataset._target_=tests.doctor.faulty.Denying", "trust=[tests]", "model.hidden=[8]"),
        "evaluation",
        "evaluation",
        "data.augment",
    ),
    "buffer in evaluation": Fault(model("Counting"), "evaluation", "evaluation changes", "seen"),
    "neighbours": Fault(model("AmongNeighbours"), "evaluation", "batch size", "neighbours"),
    "metric over batches": Fault(
        ("data=digits", "trust=[tests]", "metrics.val.own={_target_: tests.doctor.faulty.MeanOfBatches}"),
        "evaluation",
        "batch size",
        "val/own",
    ),
    "state not saved": Fault(model("Forgetful"), "checkpoint", "checkpoint", "register_buffer"),
    "input changed": Fault(
        model("Overwriting"), "loss of rows", "input changed in place", "Overwriting changes its input"
    ),
    "targets changed": Fault(loss("TargetChanging"), "loss of rows", "input changed in place", "the targets"),
    "loss of all calls": Fault(loss("AddingUp"), "loss of rows", "loss", "`loss.total`"),
    "sum over rows": Fault(loss("Summed"), "loss of rows", "loss", ".mean() in place of .sum()"),
    "layer made in forward": Fault(model("MadeInForward"), "structure", "unregistered layers", "a LayerNorm"),
    "one memory": Fault(model("Twins"), "structure", "shared memory of weights", "`middle.weight` and `other.weight`"),
    "no buffer": Fault(model("Constant"), "structure", "tensors without a buffer", 'register_buffer("scale", scale)'),
    "norm that never trains": Fault(model("FrozenNorm"), "structure", "norm layers", "`norm` (LayerNorm) is frozen"),
    "optimizer holds one": Fault(
        (
            "data=digits",
            "trust=[tests]",
            "model.hidden=[8]",
            "optim=custom",
            "optim._target_=tests.doctor.faulty.HalfHeld",
        ),
        "structure",
        "optimizer",
        "the optimizer holds 1 of the 6 tensors",
    ),
    "graph kept": Fault(model("Remembering"), "training step", "kept graph", "self.mean = self.mean.detach()"),
    "fails in validation": Fault(model("FailingInEvaluation"), "training step", "training step", "no such mode"),
    "rate too large": Fault(("optim=sgd", "optim.lr=1000"), "one batch", "one batch", "optim.lr=100 or less"),
    "rate too small": Fault(("optim.lr=1e-9",), "one batch", "one batch", "lightkit find lr"),
    "uphill": Fault(("optim.maximize=true", "optim.lr=0.01"), "one batch", "one batch", "optim.maximize=false"),
    "clipped to nothing": Fault(
        ("optim=sgd", "optim.lr=0.1", "trainer.clip_norm=1e-6"), "one batch", "one batch", "trainer.clip_norm"
    ),
    "slow data": Fault(
        (
            "data=custom",
            "data.dataset._target_=tests.doctor.faulty.Slow",
            "trust=[tests]",
            "model.hidden=[8]",
            "trainer.epochs=1000",
        ),
        "speed",
        "speed",
        "input-bound",
    ),
}


def findings(check: str, *overrides: str) -> list[Finding]:
    with examined(compose([*overrides]).cfg, 60) as run:
        return [*checks.import_path(dict(checks.CHECKS)[check])(run)]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(project: Path, name: str) -> None:
    fault = FAULTS[name]
    found = findings(fault.check, *fault.overrides)
    bad = [each for each in found if each.check == fault.finding and (each.is_bad or name == "slow data")]

    assert bad, found
    assert bad[0].why
    assert fault.says in " ".join([bad[0].measured, bad[0].why, bad[0].key, bad[0].fix])


@pytest.mark.parametrize(
    ("name", "says"),
    [("Choosing", "argmax"), ("AddingInPlace", "x = x + y"), ("Normed", "data.drop_last=true")],
)
def test_a_step_that_fails_is_told_once(project: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str) -> None:
    first = ("training step", "initial loss", "gradients", "activations")
    monkeypatch.setattr(checks, "CHECKS", tuple(each for each in checks.CHECKS if each[0] in first))
    with examined(compose([*model(name), "data.batch_size=1"]).cfg, 60) as run:
        found = [*checks.examine(run)]

    (bad,) = [each for each in found if each.is_bad]
    assert (bad.check, bad.status) == ("training step", "error")
    assert says in bad.fix
    assert {each.measured for each in found if each.status == "skipped"} <= {"a training step fails"}


def test_what_fails_in_a_check_alone_is_no_fault_of_the_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHECKS", (("broken", "tests.doctor.test_faults_training:findings"),))
    with examined(compose(["data=wine", "model.hidden=[8]"]).cfg, 60) as run:
        (found,) = checks.examine(run)

    assert (found.status, found.measured[:24]) == ("note", "the check itself failed:")


@pytest.mark.parametrize("name", ["Tied", "Buffered", "Frozen", "Normed"])
def test_what_looks_alike_and_is_right_is_not_accused(project: Path, name: str) -> None:
    found = [each for check in ("training step", "structure", "loss of rows") for each in findings(check, *model(name))]

    assert [each for each in found if each.is_bad] == []
    assert {"training step", "optimizer", "loss"} <= {each.check for each in found}


@pytest.mark.parametrize(("late", "code"), [(True, 1), (False, 0)])
def test_a_run_of_which_nothing_was_looked_at_is_no_sound_one(
    project: Path, cli: Any, monkeypatch: pytest.MonkeyPatch, late: bool, code: int
) -> None:
    few = ("machine", "training step", "splits", "features", "scale")
    monkeypatch.setattr(checks, "CHECKS", tuple(each for each in checks.CHECKS if each[0] in few))
    outcome = cli("doctor", "data=wine", "model.hidden=[8]", f"--seconds={1e-3 if late else 600}", "--json")
    told = {each["check"]: each["status"] for each in json.loads(outcome.out)["findings"]}

    assert outcome.code == code
    assert told["training step"] == "ok"
    assert told.get("time") == ("error" if late else None)


def test_before_the_data_are_blamed_other_rates_are_tried(project: Path) -> None:
    slow = ("data=wine", "model.hidden=[16]", "optim.lr=1e-5")
    (found,) = findings("baselines", *slow)

    assert (found.status, found.key) == ("warning", "optim.lr")
    assert "a larger optim.lr" in found.why


def test_frozen_weights_are_counted(project: Path) -> None:
    (found,) = findings("gradients", *model("Frozen"))

    assert found.status == "ok"
    assert "each of the 2 tensors that train gets one; 2 other tensors frozen" in found.measured


def test_a_short_run_needs_no_workers(project: Path) -> None:
    (found,) = findings("speed", *FAULTS["slow data"].overrides[:-1], "trainer.epochs=2")

    assert found.status == "ok"


def test_room_for_the_checkpoints_to_come_is_counted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(project)
    with examined(compose(["data=wine", "model.hidden=[64]"]).cfg, 60) as run:
        timetable = run.learner().timetable
        found = []
        for free in (300_000, 700_000, 10**12):
            monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
            found.append(disk(run, timetable, 100_000))

    assert [each.status for each in found] == ["error", "warning", "ok"]
    assert {each.numbers["needed_bytes"] for each in found} == {400_000}
    assert found[0].key == "checkpoint.keep_last"
