"""A generator and a discriminator that train against each other.

Shapes: B samples, Z numbers of noise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lightkit.trainer.tasks import Criterion, StepOutput, Task


class GAN(Task):
    """A generative adversarial network (https://arxiv.org/abs/1406.2661), whose two networks have an optimizer each.

    The model is both: `model(noise)` gives samples for noise `(B, Z)`, and `model(samples=x)` a score for each, above 0
    where it takes them for real. The discriminator learns to tell the data from what is generated, and the generator to
    be taken for them, by the loss that does not saturate. The loss of the run compares scores with ones or zeros:
    `bce_with_logits`, or `mse` for least squares (https://arxiv.org/abs/1611.04076). Batches are samples, or pairs of
    them and something that is not looked at. Metrics compare the data with as many samples that are generated.

    Args:
        latent: Z.
        penalty: Weight of the squared slope of the scores at the data, halved (R1, https://arxiv.org/abs/1801.04406);
            above 0 it keeps the two from circling around each other.
    """

    parts = ("discriminator", "generator")

    def __init__(self, latent: int, penalty: float = 0.0) -> None:
        self.latent, self.penalty = latent, penalty

    def part(self, name: str, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute the loss of one of the two networks; see `Task.part`."""
        real = batch[0] if isinstance(batch, (tuple, list)) else batch
        made = model(torch.randn(len(real), self.latent, device=real.device))
        scores = model(samples=made)
        if name == "generator":
            return StepOutput(criterion(scores, torch.ones_like(scores)), made, real)
        slopes, seen = torch.is_grad_enabled() and self.penalty > 0, real.detach()
        known = model(samples=seen.requires_grad_(slopes))
        loss = criterion(known, torch.ones_like(known)) + criterion(scores, torch.zeros_like(scores))
        if slopes:
            (slope,) = torch.autograd.grad(known.sum(), seen, create_graph=True)
            loss = loss + self.penalty / 2 * slope.square().flatten(1).sum(1).mean()
        return StepOutput(loss, made, real, log={"found_out": (scores < 0).float().mean()})

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute the loss of the discriminator, and as many samples as the batch has; see `Task.step`."""
        return self.part("discriminator", model, batch, criterion)
