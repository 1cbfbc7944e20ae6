"""The proof of a resume: what is compared, which moments there are, and what is said about a difference."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lightkit.runner.verify as module
from lightkit.common.errors import UserError
from lightkit.runner.verify import TracedJob, VerifyResult, choose_moment, run_job, shortened, verify
from tests.resume.harness import forked

SETS = "tests.resume.sets"
PLAIN = ["data=wine", "model.hidden=[8]", "data.batch_size=16", "device=cpu", "metrics.figures=[]"]
OWN = ["data=custom", "data.batch_size=10", "device=cpu", "metrics.figures=[]"]
DRAWING = [*OWN, "model.hidden=[8]", f"data.dataset._target_={SETS}.Drawing"]


@pytest.fixture
def proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., VerifyResult]:
    """`verify` with forked children in place of new processes, which take seconds to start."""

    def finished(file: Path, *, want: int = 0) -> None:
        forked(lambda: run_job(file), file.with_suffix(".log"), want=want)

    monkeypatch.setattr(module, "run_in_process", finished)

    def run(*overrides: str, at: int | None = 9, phase: str | None = "step", **options: Any) -> VerifyResult:
        job = TracedJob(folder=str(tmp_path / "work"), trace="", overrides=overrides, at=at, **options)
        return verify(job, phase=phase, draw=random.Random(1))

    return run


@pytest.mark.thorough
@pytest.mark.parametrize("phase", ["micro", "step", "save", None])
def test_a_run_that_can_be_resumed(proved: Callable[..., VerifyResult], phase: str | None) -> None:
    result = proved(*PLAIN, "model.dropout=0.2", phase=phase)
    assert result.same
    assert [item for item in result.compared if item.different] == []
    sizes = {item.name: item.size for item in result.compared}
    assert min(sizes[name] for name in ("model", "optimizer", "metrics.jsonl", "TensorBoard", "result.json")) > 5
    assert result.moment.step == 9
    assert 0 < result.resumed_at <= 9
    assert result.steps == 24


@pytest.mark.thorough
def test_moments_of_evaluations(proved: Callable[..., VerifyResult]) -> None:
    result = proved(*PLAIN, "trainer.validate_unit=step", "trainer.validate_every=3", at=None, phase="validation")
    assert result.same
    assert result.moment.phase == "validation"
    assert result.moment.step % 3 == 0 or result.moment.step == 24


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (
            [*OWN, "model.hidden=[8]", f"data.dataset._target_={SETS}.DrawsItself"],
            r"the batch of step \d+ differs after the resume\. The data set or a transform draws from a generator of "
            r"its own whose state is in no checkpoint",
        ),
        (
            [*OWN, "model.hidden=[8]", f"data.dataset._target_={SETS}.DrawsItself", "data.dataset.seed=null"],
            r"the batch of step 1 differs even between two runs that nobody interrupted[\s\S]*without a seed",
        ),
        (
            [*PLAIN, "model=custom", f"model._target_={SETS}.Forgetful"],
            r"the loss of step \d+ differs after the resume\. Batch and weights are the same",
        ),
        (
            [*PLAIN, "model=custom", f"model._target_={SETS}.PythonDice"],
            r"the loss of step \d+ differs after the resume[\s\S]*not torch's global one",
        ),
        (
            [*PLAIN, f"+trainer.callbacks.nudge._target_={SETS}.Nudge"],
            r"the weights after step \d+ differs? after the resume[\s\S]*a callback keeps state outside",
        ),
        (
            [*PLAIN, f"+trainer.callbacks.rates._target_={SETS}.Rates"],
            r"the learning rates after step \d+ differs? after the resume\. The scheduler or a callback keeps state",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_resumed_is_named(
    proved: Callable[..., VerifyResult], overrides: list[str], reason: str
) -> None:
    kept = [text for text in overrides if not text.startswith("model.hidden") or "model=custom" not in overrides]
    result = proved(*kept)
    assert not result.same
    assert result.reason is not None
    assert re.match(reason, result.reason), result.reason
    assert any(item.different for item in result.compared)


@pytest.mark.thorough
def test_a_configuration_that_fails_says_so(tmp_path: Path) -> None:
    job = TracedJob(
        folder=str(tmp_path), trace="", overrides=(*PLAIN, "optim=sgd", "optim.lr=1e30", "data.normalize=none")
    )
    with pytest.raises(UserError, match=r"the run ended with status 3:\n[\s\S]*no longer finite") as caught:
        verify(job)
    assert caught.value.exit_code == 3


@pytest.mark.thorough
def test_the_rows_of_a_shortened_run_are_the_same_in_all_of_its_processes(proved: Callable[..., VerifyResult]) -> None:
    result = proved(*PLAIN, "data.batch_size=4", "data.eval_batch_size=2", at=None, phase=None, steps=24)
    assert result.same, result.reason
    assert set(result.rows) == {"train", "val", "test"}
    assert result.steps == 24
    assert result.resumed_at % 8, "the checkpoint lies in mid-epoch"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Cached", "Listed"])
def test_state_that_shows_only_across_epochs_or_blocks_makes_the_bits_differ(
    proved: Callable[..., VerifyResult], name: str
) -> None:
    with_data = [*OWN, "model.hidden=[8]", f"data.dataset._target_={SETS}.Cached"]
    with_metric = [*PLAIN, f"+metrics.train.mine._target_={SETS}.Listed"]
    result = proved(*(with_data if name == "Cached" else with_metric), at=None, phase="micro")
    assert not result.same
    assert result.reason is not None
    assert {"Cached": "keeps what it has drawn", "Listed": "a metric"}[name] in result.reason.lower()


def test_the_run_is_made_short(tmp_path: Path) -> None:
    def found(*overrides: str, **options: Any) -> dict[str, str]:
        job = shortened(TracedJob(str(tmp_path), "", overrides=(*PLAIN, *overrides), **options))
        return dict(text.split("=") for text in job.settings) | {name: str(rows) for name, rows in job.rows.items()}

    plain = found()
    assert plain["trainer.steps"] == "24"
    assert plain["checkpoint.every_steps"] == "4"
    assert not {"train", "val", "test", "trainer.validate_every"} & plain.keys()
    assert found(epochs=1)["trainer.steps"] == "8"
    assert found("trainer.steps=7")["trainer.steps"] == "7"
    assert found(at=10, steps=100, epochs=9)["checkpoint.every_steps"] == "2"
    assert found(at=12, steps=100, epochs=9)["checkpoint.every_steps"] == "4"
    assert found(at=13, steps=100, epochs=9)["checkpoint.every_steps"] == "1"
    assert found("logger.every_steps=1")["logger.every_steps"] == "1"


def test_long_epochs_and_rare_validations_are_shortened_to_cross_several(tmp_path: Path) -> None:
    def found(*overrides: str, **options: Any) -> tuple[dict[str, str], dict[str, int]]:
        job = shortened(TracedJob(str(tmp_path), "", overrides=(*PLAIN, *overrides), **options))
        return dict(text.split("=") for text in job.settings), job.rows

    settings, rows = found("data.batch_size=2", steps=30)
    assert rows["train"] == rows["test"] == 20
    assert rows.get("val", 18) <= 20
    assert settings["trainer.steps"] == "30", "three epochs of ten steps"
    settings, rows = found("data.batch_size=2", "trainer.accumulate=2", "data.drop_last=true", steps=15)
    assert rows["train"] // 4 in (4, 5)
    assert found("trainer.validate_every=5")[0]["trainer.validate_every"] == "1"
    assert found("trainer.validate_unit=step", "trainer.validate_every=100")[0]["trainer.validate_every"] == "12"
    assert "trainer.validate_every" not in found("trainer.validate_unit=step", "trainer.validate_every=5")[0]
    assert found("scheduler.warmup_steps=100", "trainer.epochs=50")[0]["scheduler.warmup_steps"] == "6"
    assert found("data.split.limit=40")[0]["trainer.steps"] == "9", "a length of one's own holds"


TRACE = [
    {"phase": phase, "step": step, "number": number}
    for step in range(1, 10)
    for phase, count in (("micro", 2), ("step", 1), ("save", 3 if step % 2 == 0 else 0), ("validation", step == 8))
    for number in range(count)
]


def test_a_moment_is_drawn_after_two_saves() -> None:
    draws = [choose_moment(TRACE, at=None, phase=None, draw=random.Random(seed)) for seed in range(60)]
    assert {moment.phase for moment in draws} == {"micro", "step", "save", "validation"}
    assert min(moment.step for moment in draws) > 4
    assert choose_moment(TRACE, at=8, phase="save", draw=random.Random(0)) == choose_moment(
        TRACE, at=8, phase="save", draw=random.Random(5)
    )
    assert choose_moment(TRACE, at=None, phase="validation", draw=random.Random(0)).step == 8


@pytest.mark.parametrize(
    ("at", "phase", "message"),
    [
        (7, "save", r"--at: the shortened run has no save there[\s\S]*choices: +6, 8"),
        (50, None, r"no moment there"),
        (None, "test", r"--phase: the run has no test after its first checkpoint"),
    ],
)
def test_there_is_no_such_moment(at: int | None, phase: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose_moment(TRACE, at=at, phase=phase, draw=random.Random(0))


def test_a_run_that_hardly_saves() -> None:
    with pytest.raises(UserError, match="too short to save three times"):
        choose_moment(TRACE[:8], at=None, phase=None, draw=random.Random(0))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ensemble", "member"),
    [
        (("bagging", "ensemble.size=2"), "01"),
        (("gradient_boosting", "ensemble.size=4", "ensemble.patience=null"), "02-round"),
        (("stacking", "ensemble.size=1", "ensemble.folds=2", "ensemble.solver=gradient"), "03-meta"),
    ],
    ids=["bagging", "boosting", "stacking"],
)
def test_an_ensemble_is_killed_in_one_of_its_members(
    ensemble: tuple[str, ...], member: str, proved: Callable[..., VerifyResult]
) -> None:
    method, *settings = ensemble
    result = proved(*PLAIN, f"ensemble={method}", *settings, at=None, phase=None, member=member)
    assert result.same
    assert result.moment.member == member
    assert f"of member {member}" in result.moment.describe()
    assert {"members: model", "members: oof.safetensors", "ensemble.safetensors"} <= {x.name for x in result.compared}
