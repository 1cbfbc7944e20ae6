"""A pass over a split without training."""

from __future__ import annotations

import torch

from lightkit.trainer import Ema
from tests.trainer.parts import network, trainer
from tests.trainer.test_loop import weights


def test_validation_uses_the_average_and_training_its_own_weights() -> None:
    plain, averaged_model = trainer(), network()
    run = trainer(averaged_model, average=Ema(averaged_model, 0.99))
    plain.fit()
    run.fit()
    assert all(torch.equal(a, b) for a, b in zip(weights(plain.model), weights(run.model), strict=True))
    assert plain.logger.series("val/loss") != run.logger.series("val/loss")
