from __future__ import annotations

import math

from lightkit.loggers.hparams import columns, flat

SETTINGS = {
    "name": "run",
    "seed": 0,
    "model": {"_target_": "lightkit.models.MLP", "hidden": [64, 64], "norm": None},
    "data": {"batch_size": 16, "num_workers": 4, "augment": [], "dataset": {"_target_": "lightkit.data.tables.wine"}},
    "logger": {"every_steps": 2},
    "device": {"name": "cpu", "precision": "bf16"},
    "metrics": {"monitor": "val/f1", "val": {"f1": {"_target_": "torchmetrics.F1Score"}}},
    "trainer": {"epochs": 3, "task": {"_target_": "a.Task"}, "nonfinite": {"limit": 3}},
}
LEARNT = {
    "seed": 0,
    "model": "MLP",
    "model.hidden": "[64, 64]",
    "data.batch_size": 16,
    "data": "wine",
    "trainer.epochs": 3,
}


def test_only_what_decides_what_is_learnt_has_a_column():
    assert columns(SETTINGS) == LEARNT


def test_what_was_typed_has_a_column_whatever_it_is():
    typed = [
        "++device.precision=bf16",
        "metrics=multiclass",
        "data=wine",
        "data.num_workers=4",
        "logger.every_steps=2",
        "~metrics.val.x",
    ]
    assert columns(SETTINGS, typed) == {**LEARNT, "device.precision": "bf16", "data.num_workers": 4}


def test_flags_stay_flags_and_the_rest_is_numbers_or_text():
    assert flat({"a": {"b": True, "c": {}}, "d": math.inf, "e": 1e-3, "f": (), "g": (1,)}) == {
        "a.b": True, "d": "inf", "e": 1e-3, "g": "(1,)"}  # fmt: skip
