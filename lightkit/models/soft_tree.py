"""Soft decision tree (Frosst & Hinton 2017, https://arxiv.org/abs/1711.09784).

Shapes: B samples, F features, C outputs, D depth, N nodes of a level.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightkit.common.argument_checks import check_range
from lightkit.models.parts import check_sizes


class SoftTree(nn.Module):
    """A binary tree whose inner nodes send a sample left with a probability, not at once left or right.

    A node's gate is `sigmoid(w x + b)`. The output is the sum of the leaves' outputs, each times the probability of the
    path to it, as in TorchEnsemble's neural forest. It has no softmax, so that it is a logit or a value of regression
    as the loss wants it. The input is flattened.

    In training a penalty is returned beside the output, which the loss is increased by (`lightkit.trainer.Supervised`):
    it keeps gates from sending all samples of a batch one way. Halved with every level, it is the cross entropy of an
    even split and the node's own, in which samples count as probably as they come to the node.

    Parameters are named `gates.weight`, `gates.bias` (nodes level by level) and `leaves.weight`.

    Args:
        in_features: Numbers per sample after flattening, F.
        num_classes: Size of the output, C.
        depth: Levels of inner nodes, D: there are 2^D - 1 of them, and 2^D leaves.
        penalty: Strength of the penalty at the root, 0 or more.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(self, in_features: int, num_classes: int, *, depth: int = 5, penalty: float = 1e-3) -> None:
        super().__init__()
        check_sizes(in_features=in_features, num_classes=num_classes, depth=depth)
        check_range("penalty", penalty, low=0)
        self.depth, self.penalty = depth, penalty
        self.gates = nn.Linear(in_features, 2**depth - 1)
        self.leaves = nn.Linear(2**depth, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        """Compute the outputs of inputs `(B, ...)` with F numbers per sample.

        Returns:
            The outputs `(B, C)`. In training, where there is a penalty, a dictionary: they are its `logits`, and the
            penalty `(1,)` is its `penalty`.
        """
        scores = self.gates(x.flatten(1))
        wide = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
        lefts = wide.sigmoid().split([2**level for level in range(self.depth)], dim=1)
        reach = wide.new_ones(wide.shape[0], 1)
        penalty = wide.new_zeros(1)
        penalized = self.training and self.penalty > 0
        for level, left in enumerate(lefts):
            if penalized:
                penalty = penalty + self.penalty * 0.5**level * _unevenness(reach, left)
            reach = torch.stack((reach * left, reach * (1 - left)), dim=2).flatten(1)
        output = self.leaves(reach.to(scores.dtype))
        return {"logits": output, "penalty": penalty} if penalized else output


def _unevenness(reach: Tensor, left: Tensor) -> Tensor:
    """Sum `-log(share sent left) - log(share sent right)` over the nodes of a level.

    Args:
        reach: Probability that a sample comes to a node, `(B, N)`.
        left: Probability that it is sent left there, `(B, N)`.
    """
    tiny = torch.finfo(reach.dtype).tiny
    # Shares are of the mean over the batch: of a node that no sample comes to, nothing is known and 0 is not divided.
    total = reach.sum(0).clamp_min(tiny)
    shares = torch.stack(((reach * left).sum(0), (reach * (1 - left)).sum(0))) / total
    return -shares.clamp_min(tiny).log().sum()
