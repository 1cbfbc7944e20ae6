"""A pass over a split without training."""

from __future__ import annotations

import pytest
import torch

from lightkit.trainer import Ema
from lightkit.trainer.evaluate import Predictions
from tests.trainer.parts import network, trainer
from tests.trainer.test_loop import weights


def test_validation_uses_the_average_and_training_its_own_weights() -> None:
    plain, averaged_model = trainer(), network()
    run = trainer(averaged_model, average=Ema(averaged_model, 0.99))
    plain.fit()
    run.fit()
    assert all(torch.equal(a, b) for a, b in zip(weights(plain.model), weights(run.model), strict=True))
    assert plain.logger.series("val/loss") != run.logger.series("val/loss")


@pytest.mark.parametrize(
    ("targets", "names", "predicted"),
    [
        (torch.tensor([0, 1]), ("cat", "dog"), ["dog", "cat"]),
        (torch.tensor([0, 1]), (), [[0.0, 9.0], [9.0, 0.0]]),
        (torch.tensor([[0.0, 1.0], [1.0, 1.0]]), ("cat", "dog"), [[0.0, 9.0], [9.0, 0.0]]),
    ],
)
def test_classes_of_samples_of_another_form_have_their_names(
    targets: torch.Tensor, names: tuple[str, ...], predicted: list[object]
) -> None:
    collected = Predictions("custom", names)
    collected.update(torch.tensor([[0.0, 9.0], [9.0, 0.0]]), targets, torch.tensor(0.0), 2)
    rows = collected.rows(torch.arange(2))
    assert [row["prediction"] for row in rows] == predicted
    assert [row["target"] for row in rows] == ([*names] if isinstance(predicted[0], str) else targets.tolist())
