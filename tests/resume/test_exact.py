"""A run that is killed at any moment and resumed leaves the same bits behind as one that was never stopped."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from lightkit.device import switches as compiling
from tests.resume.harness import BASE, Case, configured, foreign_draws
from tests.resume.sets import text_file

SETS = "tests.resume.sets"
WINE = ["data=wine"]
DRAWING = [
    "data=custom",
    f"data.dataset._target_={SETS}.Drawing",
    "data.persistent_workers=true",
]
SHAPES = [
    "data=shapes",
    "model=cnn",
    "model.channels=[4,8]",
    "data.dataset.size=16",
    "data.dataset.train=96",
    "data.dataset.val=24",
    "data.dataset.test=24",
    "~model.hidden",
]
TRANSFORMS = "lightkit.data.transforms"
AUGMENTED = f"data.augment=[{{_target_: {TRANSFORMS}.GaussianNoise}},{{_target_: {TRANSFORMS}.FeatureDropout}}]"
TURNED = f"data.augment=[{{_target_: {TRANSFORMS}.RandomAffine}},{{_target_: {TRANSFORMS}.RandomFlip}}]"
TEXT = [
    "data=text",
    "data.dataset.path={text}",
    "data.dataset.pattern=*.txt",
    "data.dataset.context_length=16",
    "model=transformer_lm",
    "model.dim=8",
    "model.depth=1",
    "model.heads=2",
    "model.dropout=0.1",
    "~model.hidden",
]

CONFIGURATIONS = {
    "dropout, accumulation": [*WINE, "model.dropout=0.3", "trainer.accumulate=2", "data.batch_size=8"],
    "ema, clipping": [*WINE, "optim=sgd", "optim.momentum=0.9", "trainer.ema.decay=0.9", "trainer.clip_norm=0.5",
                      "data.batch_size=11"],
    "plateau": [*WINE, "scheduler=plateau", "scheduler.patience=0", "metrics.monitor=val/loss", "metrics.mode=min",
                "trainer.validate_unit=step", "trainer.validate_every=2", "optim.lr=0.3"],
    "early stopping": [*WINE, "trainer.early_stopping.patience=3", "trainer.validate_unit=step",
                       "trainer.validate_every=2", "optim.lr=0.5"],
    "mixup": [*WINE, "data.mixup.alpha=0.4", "model.norm=batch"],
    "augmentation in memory": [*WINE, AUGMENTED, "model.dropout=0.1", "data.drop_last=true"],
    "drawn pictures": [*SHAPES, TURNED],
    "fp16": [*SHAPES, "device.precision=fp16", "trainer.clip_norm=1.0", "trainer.accumulate=2"],
    "overflows": [*WINE, "device.precision=fp16", "loss=custom", f"loss._target_={SETS}.Overflows", "optim=adamw"],
    "bf16-true": [*SHAPES, "device.precision=bf16-true", "device.channels_last=true", "trainer.ema.decay=0.9"],
    "fp64, computed twice": [*WINE, "device.precision=fp64", "model.dropout=0.3", "model.norm=batch",
                             "device.activation_checkpointing=[layers]", "device.optimizer=loop", "optim=nadam"],
    "bf16": [*SHAPES, "device.precision=bf16", "data.drop_last=true"],
    "map-style": [*DRAWING],
    "workers": [*DRAWING, "data.num_workers=2"],
    "text": [*TEXT],
    "members in one network": [*WINE, "model=tabm", "model.k=4", "model.dropout=0.2", "device.precision=bf16"],
    "penalty": [*WINE, "model=soft_tree", "model.depth=2", "data.batch_size=8", "trainer.accumulate=2",
                "~model.hidden"],
    "regression, monitored in training": ["data=diabetes", "metrics.monitor=train/loss", "metrics.mode=min",
                                          "data.batch_size=64", "data.split.val=0.2", "trainer.epochs=4"],
    "multilabel, step schedule": ["data=digits_multilabel", "data.batch_size=256", "scheduler=step",
                                  "scheduler.every_epochs=1"],
    "binary, linear": ["data=breast_cancer", "data.batch_size=64", "scheduler=linear", "scheduler.warmup_steps=4"],
    "one cycle, steps": [*WINE, "scheduler=one_cycle", "trainer.steps=19", "trainer.accumulate=3", "data.batch_size=4"],
    "torch schedule": [*WINE, "scheduler=torch", "scheduler.interval=step", "trainer.test=last"],
    "constant, no validation": [*WINE, "scheduler=constant", "data.split.val=0", "metrics.monitor=train/loss",
                                "metrics.mode=min", "optim=rmsprop"],
    "skipped steps": [*WINE, "loss=custom", f"loss._target_={SETS}.Explodes", "trainer.nonfinite.action=skip",
                      "trainer.nonfinite.limit=100", "checkpoint.asynchronous=false"],
    "steps, rare saves": [*WINE, "trainer.steps=21", "trainer.validate_unit=step", "trainer.validate_every=5",
                          "checkpoint.every_steps=4", "checkpoint.every_epochs=null",
                          f"+trainer.callbacks.foreign._target_={SETS}.ForeignDraws"],
}  # fmt: skip
KILLS = [
    ("dropout, accumulation", "micro", 2), ("dropout, accumulation", "save", 1), ("dropout, accumulation", "step", 1),
    ("ema, clipping", "step", 1), ("ema, clipping", "validation", 1), ("ema, clipping", "test", 1),
    ("plateau", "validation", 2), ("plateau", "save", 1), ("plateau", "step", 1),
    ("early stopping", "validation", 1), ("early stopping", "micro", 1), ("early stopping", "test", 1),
    ("mixup", "micro", 1), ("mixup", "save", 1), ("mixup", "step", 1),
    ("augmentation in memory", "step", 2), ("augmentation in memory", "save", 1),
    ("drawn pictures", "micro", 1), ("drawn pictures", "save", 1),
    ("overflows", "step", 1), ("overflows", "save", 1), ("bf16-true", "micro", 1), ("bf16-true", "save", 1),
    ("fp64, computed twice", "micro", 1), ("fp64, computed twice", "step", 1),
    ("bf16", "step", 1), ("bf16", "save", 1), ("fp16", "step", 1), ("fp16", "micro", 2),
    ("map-style", "micro", 1), ("map-style", "validation", 1),
    ("workers", "step", 1), ("workers", "save", 1),
    ("text", "step", 1), ("text", "validation", 1),
    ("members in one network", "micro", 1), ("penalty", "micro", 1),
    ("regression, monitored in training", "save", 2), ("regression, monitored in training", "test", 1),
    ("multilabel, step schedule", "step", 1), ("multilabel, step schedule", "save", 1),
    ("binary, linear", "micro", 1), ("binary, linear", "save", 1),
    ("one cycle, steps", "micro", 2), ("one cycle, steps", "save", 1),
    ("torch schedule", "step", 1), ("torch schedule", "test", 1),
    ("constant, no validation", "step", 1), ("constant, no validation", "save", 1),
    ("skipped steps", "micro", 1), ("skipped steps", "save", 1),
    ("steps, rare saves", "step", 1), ("steps, rare saves", "validation", 1), ("steps, rare saves", "save", 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """The uninterrupted runs, each made once."""
    return Cases(tmp_path_factory.mktemp("cases"))


class Cases(dict[str, Case]):
    def __init__(self, place: Path) -> None:
        super().__init__()
        self.place = place

    def __missing__(self, name: str) -> Case:
        place = self.place / name.replace(", ", "-").replace(" ", "-")
        place.mkdir()
        text = text_file(place / "text.txt")
        overrides = [
            override.format(text=text) if "{text}" in override else override for override in CONFIGURATIONS[name]
        ]
        left_out = {override.lstrip("~") for override in overrides if override.startswith("~")}
        base = [override for override in BASE if override.partition("=")[0] not in left_out]
        self[name] = Case(configured(*(o for o in overrides if not o.startswith("~")), base=base), place)
        return self[name]


FIRST = {name: phase for name, phase, _ in reversed(KILLS)}
"""One phase of each configuration; the others are for the long form."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "phase", "count"),
    [pytest.param(*kill, marks=() if FIRST[kill[0]] == kill[1] else pytest.mark.slow) for kill in KILLS],
)
def test_a_killed_run_ends_with_the_same_bits(cases: dict[str, Case], name: str, phase: str, count: int) -> None:
    case = cases[name]
    moments = case.moments(phase)
    for number, moment in enumerate(random.Random(f"{name} {phase}").sample(moments, count)):
        place = case.kill(moment, f"{phase}-{number}")
        case.resume(place, before=foreign_draws)
        assert case.differences(place) == [], f"killed at {moment}"


def test_steps_that_overflow_are_left_out_and_counted(cases: dict[str, Case]) -> None:
    result = json.loads((cases["overflows"].whole / "result.json").read_text())
    assert 0 < result["scaler_skipped_steps"] < result["steps"]
    assert result["scaler_skipped_steps"] == result["metrics"]["amp/skipped_steps"]


@pytest.mark.thorough
@pytest.mark.slow
def test_compiled_code_resumes_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    compiled = [*WINE, "model.dropout=0.3", "device.compile=default", "device.deterministic=true"]
    case = Case(configured(*compiled), tmp_path)
    assert "not compiled" not in (case.whole / "run.log").read_text()
    moments = case.moments("micro")
    place = case.kill(moments[len(moments) // 2], "micro")
    case.resume(place, before=foreign_draws)
    assert case.differences(place) == []
