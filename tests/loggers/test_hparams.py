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
ALWAYS = {"seed": 0, "model": "MLP", "data": "wine"}


def test_a_run_has_the_seed_and_what_learns_what():
    assert columns(SETTINGS) == ALWAYS


def test_what_was_typed_has_a_column_and_nothing_else():
    typed = [
        "++device.precision=bf16",
        "model.hidden=[64,64]",
        "finetune=[lora,norm]",
        "experiment=digits/cnn",
        "data=wine",
        "data.num_workers=4",
        "logger.every_steps=2",
        "hydra.run.dir=x",
        "~metrics.val.x",
        "no_such_key=1",
    ]
    swept = {"device.precision": "bf16", "model.hidden": "[64, 64]", "data.num_workers": 4}
    chosen = {"finetune": "[lora,norm]", "experiment": "digits/cnn"}
    assert columns({**SETTINGS, "finetune": {"freeze": []}}, typed) == {**ALWAYS, **swept, **chosen}


def test_what_is_swept_and_the_seed_are_among_the_five_that_tensorboard_shows_of_other_runs():
    """It sorts those in which runs differ to the front, and by name, and shows five."""
    other = {**SETTINGS, "model": {"_target_": "a.CNN", "width": 3}, "trainer": {"epochs": 9, "accumulate": 2}}
    made = [columns({**SETTINGS, "optim": {"lr": rate}}, [f"optim.lr={rate}", "seed=0"]) for rate in (0.1, 0.2)]
    made.append(columns(other, []))
    names = sorted({name for run in made for name in run})
    assert {"optim.lr", "seed"} <= {*names[:5]}


def test_flags_stay_flags_and_the_rest_is_numbers_or_text():
    assert flat({"a": {"b": True, "c": {}}, "d": math.inf, "e": 1e-3, "f": (), "g": (1,)}) == {
        "a.b": True, "d": "inf", "e": 1e-3, "g": "(1,)"}  # fmt: skip
