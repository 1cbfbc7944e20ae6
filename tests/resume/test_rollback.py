"""Runs that go back to an earlier step, killed and resumed: the states they go back to are part of a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lightkit.checkpoint.store import CheckpointStore
from lightkit.runner.trace import Moment
from lightkit.runs.reading import read_jsonl
from lightkit.trainer.guard import KEPT
from tests.resume.harness import Case, configured, foreign_draws

OPTIONS = (
    "data=wine",
    "model.dropout=0.2",
    "model.norm=batch",
    "trainer.ema.decay=0.9",
    "trainer.early_stopping.patience=90",
    "trainer.validate_unit=step",
    "trainer.validate_every=4",
    "scheduler=plateau",
    "scheduler.patience=0",
    "metrics.monitor=val/loss",
    "metrics.mode=min",
    "trainer.nonfinite.action=rollback",
    "checkpoint.every_steps=3",
)
SPOILS = "+trainer.callbacks.spoils._target_=tests.resume.sets.Spoils"
WITHIN, AT_THE_EDGES = (5, (13, 18)), (4, (17, 22))
"""Steps between two states, and steps after which a weight is not finite: back to 5 and 10; to 12, which has a
validation, and 16, the end of an epoch."""


def configuration(every: int, at: tuple[int, ...]) -> Any:
    spoilt = ",".join(map(str, at))
    return configured(*OPTIONS, f"trainer.nonfinite.every={every}", SPOILS, f"+trainer.callbacks.spoils.at=[{spoilt}]")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[int, tuple[int, ...]]], Case]:
    place = tmp_path_factory.mktemp("rollback")

    @cache
    def case(kind: tuple[int, tuple[int, ...]]) -> Case:
        return Case(configuration(*kind), place / f"every-{kind[0]}")

    return case


def went_back(place: Path) -> list[str]:
    lines = (place / "run.log").read_text().splitlines()
    return [line.partition("finite, ")[2] for line in lines if "is not finite, back to step" in line]


def newest(place: Path) -> dict[str, Any]:
    found = CheckpointStore(place / "checkpoints").load_newest()
    assert found is not None
    return found[1]


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "steps"), [(WITHIN, (5, 10)), (AT_THE_EDGES, (12, 16))])
def test_the_run_goes_back_and_forgets_what_came_later(cases: Any, kind: Any, steps: tuple[int, int]) -> None:
    place = cases(kind).whole
    lines = [f"back to step {step}, learning rates times {rate}" for step, rate in zip(steps, (0.5, 0.25))]
    assert went_back(place) == lines
    assert newest(place)["state"]["rollbacks"] == 2
    held = [state["state"]["step"] for state in newest(place)["callbacks"][KEPT]["states"]]
    assert held == list(range(0, 25, kind[0]))[-2:]
    listed = {entry.file for entry in CheckpointStore(place / "checkpoints").entries()}
    assert {path.name for path in (place / "checkpoints").iterdir()} == listed | {"manifest.json"}
    logged = [row["step"] for row in read_jsonl(place / "metrics.jsonl") if "train/loss_step" in row]
    assert logged == sorted(set(logged))


MOMENTS = {
    "between a state and the end": (WITHIN, Moment("micro", 12, 0)),
    "in the save after going back": (WITHIN, Moment("save", 5, 3)),
    "after going back": (WITHIN, Moment("step", 8, 1)),
    "after the second time": (WITHIN, Moment("micro", 13, 2)),
    "in a validation of a step with a state": (AT_THE_EDGES, Moment("validation", 12, 1)),
    "at the end of an epoch": (AT_THE_EDGES, Moment("save", 16, 2)),
    "after going back to the end of an epoch": (AT_THE_EDGES, Moment("micro", 18, 2)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MOMENTS)
def test_killed_between_a_state_and_the_loss_that_is_not_finite(cases: Any, name: str) -> None:
    kind, moment = MOMENTS[name]
    case = cases(kind)
    place = case.kill(moment, name.replace(" ", "-"))
    case.resume(place, before=foreign_draws)
    assert case.differences(place) == []


@pytest.mark.thorough
def test_told_to_end_in_the_validation_of_a_step_with_a_state(cases: Any) -> None:
    case = cases(AT_THE_EDGES)
    place = case.kill(Moment("validation", 12, 1), "ended", sign=signal.SIGTERM)
    case.resume(place)
    assert case.differences(place) == []


@pytest.mark.thorough
def test_states_of_another_configuration_are_given_up(cases: Any) -> None:
    case = cases(WITHIN)
    place = case.kill(Moment("micro", 13, 0), "changed")
    case.resume(place, "optim.weight_decay=0.5", "resume.override=[optim.weight_decay]")
    assert "a rollback goes back to here at most, as optim.weight_decay has changed" in (place / "run.log").read_text()
    assert went_back(place)[0].startswith("back to step 12, ")


@pytest.mark.thorough
def test_states_that_nobody_needs_any_more_are_not_kept(cases: Any) -> None:
    case = cases(WITHIN)
    place = case.kill(Moment("micro", 22, 0), "stops")
    case.resume(place, "trainer.nonfinite.action=stop")
    assert KEPT not in newest(place)["callbacks"]
    assert "is gone" not in (place / "run.log").read_text().replace("callback verify_resume is gone", "")
