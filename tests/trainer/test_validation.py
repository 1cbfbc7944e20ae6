from __future__ import annotations

import torch

from tests.trainer.parts import network, trainer, weights


def test_validation_changes_neither_training_nor_the_modes_of_modules() -> None:
    quiet, busy = trainer(network(0.5), timetable={"validate_every": 100}), trainer(network(0.5))
    busy.model[1].eval()
    busy.model.train = lambda mode=True: busy.model  # type: ignore[method-assign,assignment]
    quiet.model[1].eval()
    quiet.model.train = lambda mode=True: quiet.model  # type: ignore[method-assign,assignment]
    quiet.fit()
    busy.fit()
    assert not busy.model[1].training
    assert busy.model[3].training
    assert all(torch.equal(a, b) for a, b in zip(weights(quiet.model), weights(busy.model), strict=True))
