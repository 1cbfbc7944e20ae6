from __future__ import annotations

from lightkit.config.fields import meant_by


def test_a_slip_a_foreign_name_or_another_place() -> None:
    assert meant_by("epoch_s", 1, ["epochs", "steps"], ("trainer",)) == "did you mean trainer.epochs?"
    assert meant_by("precision", 1, ["epochs"], ("trainer",)) == "did you mean device.precision?"
    assert meant_by("learning_rate", 1, ["lr", "match"], ("optim", "rules", 0)) == "did you mean optim.rules[0].lr?"
    assert meant_by("keep_last", 1, ["epochs"], ("trainer",)) == "did you mean checkpoint.keep_last?"
    assert meant_by("key", 1, ["seed"], ()) is None
