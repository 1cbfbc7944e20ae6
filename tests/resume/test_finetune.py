"""A fine-tuning that is killed around any boundary of its schedule ends with the bits of one that was never stopped."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from lightkit.runner.trace import Moment
from tests.resume.harness import BASE, Case, configured, foreign_draws, forked

SMALL = [
    *(option for option in BASE if not option.startswith(("checkpoint.", "trainer.epochs", "data.batch_size"))),
    "data=wine",
    "model.hidden=[8,8]",
    "model.norm=batch",
    "data.batch_size=32",
    "checkpoint.every_steps=1",
    "checkpoint.keep_last=3",
]
HEAD = ["finetune.freeze=['*']", "finetune.train=[@head]", "trainer.epochs=4"]
MOMENTUM = ["optim=sgd", "optim.lr=0.01", "optim.momentum=0.9", "optim.weight_decay=0.01"]
LORA = ["finetune=lora", "finetune.lora.rank=2", "finetune.lora.match=[layers.linear*]", "finetune.lora.dropout=0.1"]

# Overrides, and the steps at which something begins or stops to train; an epoch has 4 steps.
CASES: dict[str, tuple[list[str], list[int]]] = {
    "gradual, epochs, momentum": (
        ["finetune=gradual", "finetune.gradual={every_epochs: 1, first: 1, share: null}", *HEAD, *MOMENTUM], [4, 8],
    ),
    "gradual, steps, adamw": (
        ["finetune=gradual", "finetune.gradual={every_steps: 3, first: 2, share: null}", *HEAD, "model.dropout=0.2"],
        [2, 5],
    ),
    "gradual, share, adamw, statistics that go on": (
        ["finetune=gradual", *HEAD, "finetune.bn=stats", "finetune.dropout=off", "model.dropout=0.2"], [4, 8],
    ),
    "frozen and thawed again, momentum": (
        ["finetune=full", "finetune.schedule=[{step: 3, freeze: [layers.linear0, layers.norm0]}, {epoch: 1, freeze: "
         "[layers]}, {step: 7, unfreeze: [layers.linear0]}, {epoch: 3, unfreeze: [layers]}]", "trainer.epochs=4",
         *MOMENTUM],
        [3, 4, 7, 12],
    ),
    "lora, adamw, average": (
        [*LORA, "finetune.lora.lr_ratio=4",
         "finetune.schedule=[{epoch: 1, unfreeze: [layers.norm1]}, {step: 6, freeze: [@tuned]}]",
         "finetune.rules=[{match: layers.norm1, lr_scale: 0.5, warmup_steps: 3}]", "trainer.epochs=3",
         "trainer.ema.decay=0.9", "trainer.accumulate=2", "data.batch_size=16"],
        [4, 6],
    ),
    "lora beside the layers, momentum, bf16": (
        [*LORA, *MOMENTUM, "finetune.lora.impl=wrap", "device.precision=bf16",
         "finetune.schedule=[{step: 5, unfreeze: [layers.linear1], freeze: [head]}]", "trainer.epochs=3"],
        [5],
    ),
    "gradual, with a teacher": (
        ["finetune=gradual", "finetune.gradual={every_steps: 5, first: 3, share: null}", *HEAD,
         "finetune.distill={teacher: {base}, weight: 0.7}", "model.dropout=0.2"],
        [3, 8],
    ),
    "adapters, plateau": (
        ["finetune=adapter", "finetune.adapter={match: [layers.linear*], reduction: 2, dropout: 0.1}",
         "finetune.schedule=[{epoch: 1, unfreeze: ['*']}]", "scheduler=plateau", "scheduler.patience=0",
         "metrics.monitor=val/loss", "scheduler.threshold=100", "trainer.epochs=3"],
        [4],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("finetune"))


class Cases(dict[str, Case]):
    """Uninterrupted runs on top of one base, each made once."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self.place = place
        base = configured("trainer.epochs=1", base=SMALL)
        from lightkit.runner import Runner

        forked(lambda: Runner(base, place / "base").run(), place / "base.log")

    def __missing__(self, name: str) -> Case:
        base = str(self.place / "base")
        overrides = [text.replace("{base}", base) for text in CASES[name][0]]
        cfg = configured(f"finetune.weights.path={base}", *overrides, base=SMALL)
        self[name] = Case(cfg, self.place / name.replace(", ", "-"))
        return self[name]


OFFSETS = {"before": 0, "at": 1, "after": 2}
WHOLE = "gradual, steps, adamw"
"""The case that is killed in all of these ways; the others are where something begins."""
KILLS = [
    (name, boundary, kind)
    for name in sorted(CASES, key=lambda name: name != WHOLE)
    for boundary in CASES[name][1]
    for kind in (OFFSETS if name == WHOLE else ["at"])
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "boundary", "kind"), KILLS)
def test_a_kill_around_a_boundary_changes_nothing(cases: Cases, name: str, boundary: int, kind: str) -> None:
    case = cases[name]
    # After n steps the newest checkpoint is that of step n - 1, and its run goes on from there.
    place = case.kill(Moment("step", boundary + OFFSETS[kind], 0), f"{kind}-{boundary}")
    case.resume(place, before=foreign_draws)
    assert case.differences(place) == []
    check_notes(case.whole, place, boundary - 1 + OFFSETS[kind])


def check_notes(whole: Path, place: Path, resumed: int) -> None:
    """The plan is the same, and the audit knows of all that ended before the kill, and of all after it."""
    expected, found = (json.loads((folder / "finetune.json").read_text()) for folder in (whole, place))
    assert found["plan"] == expected["plan"]
    assert len(found["audit"]) == len(expected["audit"])
    for row, other in zip(expected["audit"], found["audit"]):
        assert other["from_step"] == (resumed if row["from_step"] < resumed < row["to_step"] else row["from_step"])
        if other["from_step"] == row["from_step"]:
            assert other == row


@pytest.mark.thorough
@pytest.mark.parametrize("name", [WHOLE, *CASES])
def test_boundaries_are_where_they_are_said_to_be(cases: Cases, name: str) -> None:
    plan = json.loads((cases[name].whole / "finetune.json").read_text())["plan"]
    assert [table["steps"][0] for table in plan["phases"]] == [0, *CASES[name][1]]


@pytest.mark.thorough
def test_other_moments_of_a_boundary(cases: Cases) -> None:
    """In the save before a phase, and by a signal that lets the run save first."""
    name = "gradual, epochs, momentum"
    case = cases[name]
    for boundary, phase, sign in zip(CASES[name][1], ("save", "step"), (signal.SIGKILL, signal.SIGTERM)):
        place = case.kill(Moment(phase, boundary, 0), f"{phase}-{boundary}", sign=sign)
        case.resume(place, before=foreign_draws)
        assert case.differences(place) == []
