"""The proof of a resume: what is compared, which moments there are, and what is said about a difference."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lightkit.runner.proving.verify as module
from lightkit.common.errors import UserError
from lightkit.runner.proving.trace import Moment
from lightkit.runner.proving.traced import TracedJob, shortened, work
from lightkit.runner.proving.verify import Verdict, choose, told, verify
from tests.resume.harness import forked

SETS = "tests.resume.sets"
PLAIN = ["data=wine", "model.hidden=[8]", "data.batch_size=16", "device=cpu", "metrics.figures=[]"]
OWN = ["data=custom", "data.batch_size=10", "device=cpu", "metrics.figures=[]"]
DRAWING = [*OWN, "model.hidden=[8]", f"data.dataset._target_={SETS}.Drawing"]


@pytest.fixture
def proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Verdict]:
    """`verify` with forked children in place of new processes, which take seconds to start."""

    def finished(job: TracedJob, file: Path, *, want: int = 0) -> None:
        forked(lambda: work(job), file.with_suffix(".log"), want=want)

    monkeypatch.setattr(module, "_finished", finished)

    def run(*overrides: str, at: int | None = 9, phase: str | None = "step", **options: Any) -> Verdict:
        job = TracedJob(folder=str(tmp_path / "work"), trace="", overrides=overrides, at=at, **options)
        return verify(job, phase=phase, draw=random.Random(1))

    return run


@pytest.mark.thorough
@pytest.mark.parametrize("phase", ["micro", "step", "save", None])
def test_a_run_that_can_be_resumed(proved: Callable[..., Verdict], phase: str | None) -> None:
    verdict = proved(*PLAIN, "model.dropout=0.2", phase=phase)
    assert verdict.same
    assert [item for item in verdict.compared if item.different] == []
    sizes = {item.name: item.size for item in verdict.compared}
    assert min(sizes[name] for name in ("model", "optimizer", "metrics.jsonl", "TensorBoard", "result.json")) > 5
    assert verdict.moment.step == 9
    assert 0 < verdict.resumed_at <= 9
    assert verdict.steps == 24
    assert verdict.unsaved == []
    assert verdict.crossed[0][1:3] == (3, 3)


def test_moments_of_evaluations(proved: Callable[..., Verdict]) -> None:
    verdict = proved(*PLAIN, "trainer.validate_unit=step", "trainer.validate_every=3", at=None, phase="validation")
    assert verdict.same
    assert verdict.moment.phase == "validation"
    assert verdict.moment.step % 3 == 0 or verdict.moment.step == 24


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (
            [*OWN, "model.hidden=[8]", f"data.dataset._target_={SETS}.DrawsItself"],
            r"the batch of step \d+ differs after the resume\. The data set or a transform draws from a generator of "
            r"its own whose state is in no checkpoint[\s\S]*not saved: data\.dataset\.rng",
        ),
        (
            [*OWN, "model.hidden=[8]", f"data.dataset._target_={SETS}.DrawsItself", "data.dataset.seed=null"],
            r"the batch of step 1 differs even between two runs that nobody interrupted[\s\S]*without a seed",
        ),
        (
            [*PLAIN, "model=custom", f"model._target_={SETS}.Forgetful"],
            r"the loss of step \d+ differs after the resume\. Batch and weights are the same[\s\S]*"
            r"not saved: model\.calls",
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
def test_what_cannot_be_resumed_is_named(proved: Callable[..., Verdict], overrides: list[str], reason: str) -> None:
    kept = [text for text in overrides if not text.startswith("model.hidden") or "model=custom" not in overrides]
    verdict = proved(*kept)
    assert not verdict.same
    assert verdict.reason is not None
    assert re.match(reason, verdict.reason), verdict.reason
    assert any(item.different for item in verdict.compared)


def test_a_configuration_that_fails_says_so(tmp_path: Path) -> None:
    job = TracedJob(
        folder=str(tmp_path), trace="", overrides=(*PLAIN, "optim=sgd", "optim.lr=1e30", "data.normalize=none")
    )
    with pytest.raises(UserError, match=r"the run ended with status 3:\n[\s\S]*no longer finite") as caught:
        verify(job)
    assert caught.value.exit_code == 3


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


def test_the_rows_of_a_shortened_run_are_the_same_in_all_of_its_processes(proved: Callable[..., Verdict]) -> None:
    verdict = proved(*PLAIN, "data.batch_size=4", "data.eval_batch_size=2", at=None, phase=None, steps=24)
    assert verdict.same, verdict.reason
    assert set(verdict.rows) == {"train", "val", "test"}
    assert verdict.crossed[0][:3] == (24, 3, 3)
    assert verdict.crossed[1].epochs >= 1
    assert verdict.resumed_at % 8, "the checkpoint lies in mid-epoch"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "path", "fix"),
    [
        ([f"+trainer.callbacks.mine._target_={SETS}.Unsaved"], "trainer.callbacks.mine.count: 24 after training, ",
         "state_dict"),
        (["model=custom", f"model._target_={SETS}.CountsCalls"], "model.calls: ", "register_buffer"),
        (["loss=custom", f"loss._target_={SETS}.Remembers"], "loss.last: ", "callback's state_dict"),
        ([f"trainer.task._target_={SETS}.CountingTask"], "trainer.task.batches: ", "callback's state_dict"),
        ([f"data.augment=[{{_target_: {SETS}.CountingTransform}}]"], "data.augment[0].calls: ", "function of the row"),
        ([f"+metrics.val.mine._target_={SETS}.ListedQuietly"], "metrics.val.mine.seen: list of ", "add_state"),
    ],
)  # fmt: skip
def test_what_changes_without_being_saved_is_a_warning(
    proved: Callable[..., Verdict], overrides: list[str], path: str, fix: str
) -> None:
    base = [text for text in PLAIN if not text.startswith("model.hidden") or "model=custom" not in overrides]
    verdict = proved(*base, *overrides, at=None, phase="micro")
    assert verdict.same, verdict.reason
    found = [item for item in verdict.unsaved if str(item).startswith(path)]
    assert found, verdict.unsaved
    assert fix in found[0].fix
    assert len(verdict.unsaved) <= 2


def test_what_is_saved_repeats_by_itself_or_never_repeats_is_no_warning(proved: Callable[..., Verdict]) -> None:
    callbacks = ("Counts", "ClockedAndCached", "KeepsTrainer")
    mine = [f"+trainer.callbacks.{name.lower()}._target_={SETS}.{name}" for name in callbacks]
    verdict = proved(
        *PLAIN, *mine, "trainer.early_stopping.patience=20", "trainer.ema.decay=0.9", at=None, phase="step"
    )
    assert verdict.same, verdict.reason
    assert verdict.unsaved == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Cached", "Listed"])
def test_state_that_shows_only_across_epochs_or_blocks_makes_the_bits_differ(
    proved: Callable[..., Verdict], name: str
) -> None:
    with_data = [*OWN, "model.hidden=[8]", f"data.dataset._target_={SETS}.Cached"]
    with_metric = [*PLAIN, f"+metrics.train.mine._target_={SETS}.Listed"]
    verdict = proved(*(with_data if name == "Cached" else with_metric), at=None, phase="micro")
    assert not verdict.same
    assert verdict.reason is not None
    assert {"Cached": "data.dataset.cache", "Listed": "metrics.train.mine.seen"}[name] in verdict.reason


TRACE = [
    {"phase": phase, "step": step, "number": number}
    for step in range(1, 10)
    for phase, count in (("micro", 2), ("step", 1), ("save", 3 if step % 2 == 0 else 0), ("validation", step == 8))
    for number in range(count)
]


def test_a_moment_is_drawn_after_two_saves() -> None:
    draws = [choose(TRACE, at=None, phase=None, draw=random.Random(seed)) for seed in range(60)]
    assert {moment.phase for moment in draws} == {"micro", "step", "save", "validation"}
    assert min(moment.step for moment in draws) > 4
    assert choose(TRACE, at=8, phase="save", draw=random.Random(0)) == choose(
        TRACE, at=8, phase="save", draw=random.Random(5)
    )
    assert choose(TRACE, at=None, phase="validation", draw=random.Random(0)).step == 8


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
        choose(TRACE, at=at, phase=phase, draw=random.Random(0))


def test_a_run_that_hardly_saves() -> None:
    with pytest.raises(UserError, match="too short to save three times"):
        choose(TRACE[:8], at=None, phase=None, draw=random.Random(0))


def test_moments_in_words() -> None:
    assert told(Moment("micro", 3, 1)) == "before batch 2 of step 3"
    assert told(Moment("step", 3, 0)) == "after step 3"
    assert told(Moment("validation", 3, 0)) == "before batch 1 of the validation after step 3"
