"""A run that pauses on its way is the beginning of the run that does not, whatever the schedule depends on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightkit.runner import Runner
from lightkit.runs.reading import read_jsonl
from tests.resume.harness import BASE, Case, configured, forked
from tests.resume.test_finetune import SMALL

WINE = (*BASE, "data=wine", "model.dropout=0.2", "trainer.epochs=8")
TUNED = (*SMALL, "finetune=gradual", "finetune.freeze=['*']", "finetune.train=[@head]", "trainer.epochs=8")
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cosine": ((*WINE, "scheduler=cosine", "trainer.epochs=4"), ("1", "2")),
    "plateau": ((*WINE, "scheduler=plateau", "scheduler.patience=0", "optim.lr=0.3"), ("2", "4")),
    "early stopping": ((*WINE, "trainer.early_stopping.patience=3", "optim.lr=0.5"), ("2", "3")),
    "average of the weights": ((*WINE, "trainer.ema.decay=0.9", "scheduler.warmup_steps=20"), ("2", "4")),
    "mean of epochs": ((*WINE, "trainer.swa.from_epoch=3", "model.norm=batch", "trainer.epoch_steps=5"), ("2", "4")),
    "steps within an epoch": ((*WINE, "trainer.validate_every=2"), ("5 steps", "3", "37 steps")),
    "a step that ends an epoch": ((*WINE, "trainer.steps=30", "trainer.accumulate=2"),
                                  ("8 steps", "9 steps", "12 steps")),
    "validation by steps": ((*WINE, "trainer.validate_unit=step", "trainer.validate_every=6"),
                            ("12 steps", "2", "18 steps")),
    "unfreezing in shares": ((*TUNED, "model.dropout=0.2"), ("2", "18 steps")),
    "states to go back to": ((*WINE, "trainer.nonfinite.action=rollback", "trainer.nonfinite.every=3"),
                             ("9 steps", "2")),
    "batch size that was found": ((*WINE, "trainer.find_batch_size=auto"), ("2", "4")),
}  # fmt: skip
"""Overrides, and where the run pauses; an epoch of WINE has 8 steps."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*CASES])
def test_a_run_in_parts_equals_the_whole(name: str, tmp_path: Path) -> None:
    options, stops = CASES[name]
    case, place = Case(configured(base=options), tmp_path), tmp_path / "parts"
    started = configured(f"trainer.stop_at={stops[0]}", base=options)
    forked(lambda: Runner(started, place).run(), tmp_path / "parts.log")
    steps = []
    for stop in (*stops[1:], "null"):
        result = json.loads((place / "result.json").read_text())
        assert (result["status"], result["test"]) == ("paused", {})
        steps.append(result["steps"])
        case.resume(place, f"trainer.stop_at={stop}")
    whole = json.loads((case.whole / "result.json").read_text())
    assert [*steps, whole["steps"]] == sorted({*steps, whole["steps"]}), "each part has trained something"
    assert case.differences(place) == []


@pytest.mark.thorough
def test_nothing_is_left_to_train_where_the_run_has_come_to_already(tmp_path: Path) -> None:
    case = Case(configured("data=wine", "trainer.stop_at=2"), tmp_path)
    rows = read_jsonl(case.whole / "metrics.jsonl")
    for stop in ("2", "1", "7 steps"):
        case.resume(case.whole, f"trainer.stop_at={stop}")
        assert f"nothing is left to train up to trainer.stop_at={stop}" in (case.whole / "run.log").read_text()
        result = json.loads((case.whole / "result.json").read_text())
        assert (result["status"], result["steps"], result["test"]) == ("paused", 16, {})
    assert read_jsonl(case.whole / "metrics.jsonl") == rows


@pytest.mark.thorough
@pytest.mark.parametrize("stop", ["24 steps", "9"])
def test_a_pause_at_the_end_or_beyond_it_is_none(stop: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cfg = configured("data=wine", f"trainer.stop_at={stop}")
    forked(lambda: Runner(cfg, folder).run(), tmp_path / "run.txt")
    result = json.loads((folder / "result.json").read_text())
    assert (result["status"], result["epochs"]) == ("finished", 3)
    assert result["test"]
    assert ("trainer.stop_at=9 lies beyond the end" in (folder / "run.log").read_text()) == (stop == "9")
