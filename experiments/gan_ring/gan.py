"""A generator and a discriminator that train against each other, each by an optimizer of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightkit.trainer.tasks import Criterion, StepOutput, Task


class Adversarial(Task):
    """The discriminator learns to tell samples from those of the generator, and the generator to be taken for them.

    A generative adversarial network (Goodfellow et al. 2014, https://arxiv.org/abs/1406.2661); the generator learns by
    the loss that does not saturate. `model(noise)` gives samples, `model(samples=x)` a score for each. The loss is that
    of scores and of ones or zeros: `bce_with_logits`, or `mse` for least squares (https://arxiv.org/abs/1611.04076).

    Args:
        latent: Numbers of noise that a sample is made of.
    """

    parts = ("discriminator", "generator")

    def __init__(self, latent: int) -> None:
        self.latent = latent

    def part(self, name: str, model: nn.Module, batch: Tensor, criterion: Criterion) -> StepOutput:
        """Compute the loss of one of the two networks; see `Task.part`."""
        made = model(torch.randn(len(batch), self.latent, device=batch.device))
        scores = model(samples=made)
        if name == "generator":
            return StepOutput(criterion(scores, torch.ones_like(scores)))
        real = model(samples=batch)
        loss = criterion(real, torch.ones_like(real)) + criterion(scores, torch.zeros_like(scores))
        return StepOutput(loss, log={"found_out": (scores < 0).float().mean()})

    def step(self, model: nn.Module, batch: Tensor, criterion: Criterion) -> StepOutput:
        """Make as many samples as the batch has, for metrics that compare them; see `Task.step`."""
        made = model(torch.randn(len(batch), self.latent, device=batch.device))
        return StepOutput(self.part("discriminator", model, batch, criterion).loss, made, batch)
