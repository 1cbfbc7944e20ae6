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
MODEL = [*(text for text in PLAIN if not text.startswith("model.")), "model=custom"]
OWN = ["data=custom", "data.batch_size=10", "device=cpu", "metrics.figures=[]"]


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
@pytest.mark.parametrize("phase", ["micro", "save", "validation", None])
def test_a_run_that_can_be_resumed(proved: Callable[..., VerifyResult], phase: str | None) -> None:
    validated = ("trainer.validate_unit=step", "trainer.validate_every=9") if phase == "validation" else ()
    result = proved(*PLAIN, "model.dropout=0.2", *validated, phase=phase)
    assert result.same
    assert [item for item in result.compared if item.different] == []
    sizes = {item.name: item.size for item in result.compared}
    assert min(sizes[name] for name in ("model", "optimizer", "metrics.jsonl", "TensorBoard", "result.json")) > 5
    assert result.moment.step == 9
    assert phase in (None, result.moment.phase)
    assert 0 < result.resumed_at <= 9
    assert result.steps == 24


DRAWS = ["model.hidden=[8]", f"data.dataset._target_={SETS}.DrawsItself"]
AFTER = r"differs? after the resume"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ([*PLAIN, f"+trainer.callbacks.nudge._target_={SETS}.Nudge"],
         rf"the weights after step \d+ {AFTER}[\s\S]*a callback keeps state outside"),
        ([*OWN, *DRAWS], rf"the batch of step \d+ {AFTER}\. The data set or a transform draws from a generator of its "
         "own whose state is in no checkpoint"),
        ([*OWN, *DRAWS, "data.dataset.seed=null"],
         r"the batch of step 1 differs even between two runs that nobody interrupted[\s\S]*without a seed"),
        ([*MODEL, f"model._target_={SETS}.Forgetful"], rf"the loss of step \d+ {AFTER}\. Batch and weights are the"),
        ([*MODEL, f"model._target_={SETS}.PythonDice"],
         rf"the loss of step \d+ {AFTER}[\s\S]*not torch's global one"),
        ([*PLAIN, f"+trainer.callbacks.rates._target_={SETS}.Rates"],
         rf"the learning rates after step \d+ {AFTER}\. The scheduler or a callback keeps state"),
        ([*OWN, "model.hidden=[8]", f"data.dataset._target_={SETS}.Cached"], r"[\s\S]*keeps what it has drawn"),
        ([*PLAIN, f"+metrics.train.mine._target_={SETS}.Listed"], r"[\s\S]*(?i:a metric)"),
    ],
)  # fmt: skip
def test_what_cannot_be_resumed_is_named(
    proved: Callable[..., VerifyResult], overrides: list[str], reason: str
) -> None:
    late = {"at": None, "phase": "micro"} if "Cached" in overrides[-1] or "Listed" in overrides[-1] else {}
    result = proved(*overrides, **late)
    assert not result.same
    assert result.reason is not None
    assert re.match(reason, result.reason), result.reason
    assert any(item.different for item in result.compared)


@pytest.mark.thorough
def test_a_configuration_that_fails_says_so(tmp_path: Path) -> None:
    explodes = (*PLAIN, "optim=sgd", "optim.lr=1e30", "data.normalize=none")
    job = TracedJob(folder=str(tmp_path), trace="", overrides=explodes)
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


@pytest.mark.parametrize(
    ("typed", "options", "wanted"),
    [
        ("", {}, "trainer.steps=24 checkpoint.every_steps=4"),
        ("", {"epochs": 1}, "trainer.steps=8"),
        ("trainer.steps=7", {}, "trainer.steps=7"),
        ("", {"at": 10, "steps": 100, "epochs": 9}, "checkpoint.every_steps=2"),
        ("", {"at": 12, "steps": 100, "epochs": 9}, "checkpoint.every_steps=4"),
        ("", {"at": 13, "steps": 100, "epochs": 9}, "checkpoint.every_steps=1"),
        ("logger.every_steps=1", {}, "logger.every_steps=1"),
        ("data.batch_size=2", {"steps": 30}, "trainer.steps=30 train=20 test=20"),  # three epochs of ten steps
        ("data.batch_size=2 trainer.accumulate=2 data.drop_last=true", {"steps": 15}, "train=20"),
        ("trainer.validate_every=5", {}, "trainer.validate_every=1"),
        ("trainer.validate_unit=step trainer.validate_every=100", {}, "trainer.validate_every=12"),
        ("scheduler.warmup_steps=100 trainer.epochs=50", {}, "scheduler.warmup_steps=6"),
        ("data.split.limit=40", {}, "trainer.steps=9"),  # a length of one's own holds
    ],
)
def test_the_run_is_made_short(tmp_path: Path, typed: str, options: dict[str, int], wanted: str) -> None:
    job = shortened(TracedJob(str(tmp_path), "", overrides=(*PLAIN, *typed.split()), **options))
    settings = dict(text.split("=") for text in job.settings) | {name: str(rows) for name, rows in job.rows.items()}
    for text in wanted.split():
        name, _, value = text.partition("=")
        assert settings[name] == value
    if not typed:
        assert not {"train", "val", "test", "trainer.validate_every"} & settings.keys()


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
    saves = [choose_moment(TRACE, at=8, phase="save", draw=random.Random(seed)) for seed in (0, 5)]
    assert saves[0] == saves[1]
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
    with pytest.raises(UserError, match="too short to save three times"):
        choose_moment(TRACE[:8], at=None, phase=None, draw=random.Random(0))


@pytest.mark.thorough
def test_an_ensemble_is_killed_in_one_of_its_members(proved: Callable[..., VerifyResult]) -> None:
    stacking = ("ensemble=stacking", "ensemble.size=1", "ensemble.folds=2", "ensemble.solver=gradient")
    result = proved(*PLAIN, *stacking, at=None, phase=None, member="03-meta")
    assert result.same
    assert result.moment.member == "03-meta"
    assert "of member 03-meta" in result.moment.describe()
    assert {"members: model", "members: oof.safetensors", "ensemble.safetensors"} <= {x.name for x in result.compared}
