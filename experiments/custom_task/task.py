"""A task with two inputs and a step of its own.

Shapes: B samples.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightkit.trainer.tasks import Criterion, StepOutput, Task


class SumOfDigits(Task):
    """One network reads both images; what it believes about each digit gives what it believes about the sum.

    No digit is ever shown to it: the two images of a pair share the blame for a wrong sum (the MNIST addition of
    Manhaeve et al. 2018, https://arxiv.org/abs/1805.10872).
    """

    def step(self, model: nn.Module, batch: dict[str, Tensor], criterion: Criterion) -> StepOutput:
        """Loss and predictions of pairs; see `Task.step`."""
        both = model(torch.cat([batch["left"], batch["right"]]))
        left, right = both.softmax(dim=1).chunk(2)
        scores = distribution_of_sum(left, right).clamp_min(1e-9).log()
        return StepOutput(criterion(scores, batch["sum"]), scores, batch["sum"])


def distribution_of_sum(left: Tensor, right: Tensor) -> Tensor:
    """Probabilities of the sums 0 to 18, `(B, 19)`, from those of two independent digits, `(B, 10)` each."""
    total = left.new_zeros(len(left), left.shape[1] + right.shape[1] - 1)
    for digit in range(left.shape[1]):
        total[:, digit : digit + right.shape[1]] += left[:, digit : digit + 1] * right
    return total
