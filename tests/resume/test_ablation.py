"""Each saved part left out in turn: the comparison has to notice, or it would prove nothing."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from lightkit.checkpoint.content import VERSION
from lightkit.checkpoint.reading import LABEL
from lightkit.checkpoint.store import CheckpointStore
from lightkit.runner.trace import Moment
from lightkit.trainer import State
from tests.resume.harness import Case, configured

SETS = "tests.resume.sets"
CONFIGURATION = (
    "data=wine model.norm=batch model.dropout=0.2 trainer.accumulate=2 data.batch_size=8 trainer.ema.decay=0.5 "
    "trainer.early_stopping.patience=4 trainer.validate_unit=step trainer.validate_every=2 scheduler=plateau "
    "scheduler.patience=1 scheduler.factor=0.9 logger.every_steps=5 optim=sgd optim.lr=2 "
    "checkpoint.every_steps=2 metrics.monitor=val/loss metrics.mode=min loss=custom "
    f"loss._target_={SETS}.Explodes trainer.nonfinite.action=skip trainer.nonfinite.limit=100 "
    f"+trainer.callbacks.counts._target_={SETS}.Counts checkpoint.asynchronous=false"
).split()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(configured(*CONFIGURATION), tmp_path_factory.mktemp("ablation"))


@pytest.fixture(scope="module")
def content(case: Case) -> dict[str, Any]:
    """What the run has saved after a step in mid-epoch, with something in every part."""
    place = case.kill(Moment("micro", 13, 0), "source")
    found = CheckpointStore(place / "checkpoints").load_newest()
    assert found is not None
    return found[1]


def _beginning(case: Case) -> dict[str, Any]:
    """What the parts are when a run begins."""
    from lightkit.assembly import build
    from lightkit.checkpoint.content import gather
    from lightkit.runner.restore import stateful

    return copy.deepcopy(gather(**stateful(build(case.cfg, case.place / "none"))))


@pytest.mark.thorough
@pytest.mark.parametrize("part", ["optimizer", "model", "scheduler", "ema", "callbacks", "metrics", "state"])
def test_a_part_that_is_not_saved_is_noticed(case: Case, content: dict[str, Any], part: str) -> None:
    assert noticed(case, {**content, part: _beginning(case)[part]}, part)


def _nested(name: str, key: str) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    def replaced(content: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
        return {**content, name: {**content[name], key: fresh[name][key]}}

    return replaced


PIECES = {
    "buffers": lambda content, fresh: (
        content | {"model": {k: fresh["model"][k] if "running" in k else v for k, v in content["model"].items()}}
    ),
    "one parameter": lambda content, fresh: (
        content | {"model": content["model"] | dict([next(iter(fresh["model"].items()))])}
    ),
    "momentum": lambda content, fresh: {**content, "optimizer": {**content["optimizer"], "state": {}}},
    "early stopping": _nested("callbacks", "early_stopping"),
    "a callback of one's own": _nested("callbacks", "counts"),
    "metrics of the epoch under way": _nested("metrics", "train"),
    "steps of the average": _nested("ema", "steps"),
    "averaged weights": _nested("ema", "weights"),
    **{f"scheduler {key}": _nested("scheduler", key) for key in ("count", "scale", "best", "waited")},
}


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize("piece", PIECES)
def test_a_piece_that_is_not_saved_is_noticed(case: Case, content: dict[str, Any], piece: str) -> None:
    changed = PIECES[piece](content, _beginning(case))
    assert noticed(case, changed, piece.replace(" ", "-").replace("'", ""))


SCALED = ["data=wine", "device.precision=fp16", "loss=custom", f"loss._target_={SETS}.Overflows", "trainer.steps=20"]


@pytest.mark.thorough
def test_a_loss_scale_that_is_not_saved_is_noticed(tmp_path: Path) -> None:
    case = Case(configured(*SCALED), tmp_path)
    saved = CheckpointStore(case.kill(Moment("micro", 13, 0), "source") / "checkpoints").load_newest()
    assert saved is not None
    for piece in ("scale", "skipped"):  # the next overflow sets the growth tracker back
        begun = _beginning(case)["precision"][piece]
        assert saved[1]["precision"][piece] != begun, "this moment proves nothing about it"
        assert noticed(case, {**saved[1], "precision": {**saved[1]["precision"], piece: begun}}, piece)


# What these hold at this moment is what they begin with, or makes no difference before the end; `scaler_skipped` only
# repeats what the precision has counted, `logged` serves to notice what somebody did to the rows, `owed` is empty
# but in a save between a step and its log.
OTHERWISE = {"rollbacks", "closed_step", "stop_reason", "scaler_skipped", "logged", "owed"}


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize("name", [entry.name for entry in fields(State) if entry.name not in OTHERWISE])
def test_a_counter_that_is_not_saved_is_noticed(case: Case, content: dict[str, Any], name: str) -> None:
    begun = State().state_dict()[name]
    assert content["state"][name] != begun, "this moment proves nothing about it"
    assert noticed(case, {**content, "state": {**content["state"], name: begun}}, f"state-{name}")


@pytest.mark.thorough
def test_the_end_is_saved(case: Case) -> None:
    """A run that ended early, resumed with its `stop_reason` or `closed_step` left out, does something once more."""
    found = CheckpointStore(case.whole / "checkpoints").load_newest()
    assert found is not None
    content = found[1]
    assert content["state"]["stop_reason"], "the run was meant to end early"
    for name in ("stop_reason", "closed_step"):
        changed = {**content, "state": {**content["state"], name: State().state_dict()[name]}}
        assert noticed(case, changed, f"end-{name}", source=case.whole)
    assert not noticed(case, content, "end-whole", source=case.whole)


def test_what_is_whole_is_the_same(case: Case, content: dict[str, Any]) -> None:
    assert not noticed(case, content, "nothing")
    assert content["version"] == VERSION
    assert content["precision"] == {}, "what has a state needs a case above"


def noticed(case: Case, content: dict[str, Any], name: str, *, source: Path | None = None) -> bool:
    """Resume from a changed checkpoint; whether the run refuses it or ends with something else."""
    place = case.place / f"ablated-{name}"
    shutil.copytree(source or case.place / "source", place)
    step = content["state"]["step"] or 12
    CheckpointStore(place / "checkpoints", mode="min", keep_last=2).save(
        {key: value for key, value in content.items() if key != LABEL}, step=max(step, 12)
    )
    try:
        case.resume(place)
    except AssertionError:
        return True
    return bool(case.differences(place))
