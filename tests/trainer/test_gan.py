"""A generator and a discriminator: what each learns by, and batches of any form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss

from lightkit.trainer import GAN


class Pair(nn.Module):
    """Samples are the noise times a weight, and scores their sum times another one."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = (nn.Parameter(torch.tensor(value)) for value in (3.0, 2.0))

    def forward(self, noise: Tensor | None = None, samples: Tensor | None = None) -> Tensor:
        return noise * self.generator if samples is None else samples.sum(1, keepdim=True) * self.discriminator


def test_each_network_learns_by_its_own_loss_and_slopes_are_punished_in_training_only() -> None:
    model, batch = Pair(), torch.ones(5, 4)
    values = {}
    for penalty in (0.0, 0.5):
        torch.manual_seed(0)
        task = GAN(4, penalty)
        values[penalty] = task.part("discriminator", model, (batch, torch.zeros(5)), loss).loss
    assert (values[0.5] - values[0.0]).item() == pytest.approx(0.25 * 4 * 2.0**2)
    values[0.5].backward()
    with torch.no_grad():
        torch.manual_seed(0)
        step = GAN(4, 0.5).step(model, batch, loss)
    torch.testing.assert_close(step.loss, values[0.0].detach())
    assert step.preds.shape == step.target.shape == batch.shape
    assert 0 <= step.log["found_out"].item() <= 1
    torch.manual_seed(0)
    fooled = GAN(4).part("generator", model, batch, loss)
    torch.testing.assert_close(fooled.loss, loss(model(samples=step.preds), torch.ones(5, 1)))
