"""TabM: an MLP that is an ensemble of members sharing most of their weights (https://arxiv.org/abs/2410.24210).

Shapes: B samples, F features, K members, C outputs of a member, D and E widths of a layer's input and output.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.argument_checks import check_choice
from lightkit.models.parts import Activation, check_dropout, check_sizes
from lightkit.models.parts import activation as make_activation

TabularTask = Literal["multiclass", "binary", "multilabel", "regression"]
"""Kinds of target whose predictions can be averaged over members."""


class TabM(nn.Module):
    """K multi-layer perceptrons that share their weight matrices; the input is flattened.

    Each member scales inputs and outputs of every shared layer with vectors of its own, and has biases and an output
    layer of its own (Gorishniy et al. 2025, https://arxiv.org/abs/2410.24210, the variant called TabM). In training
    the outputs of the members are returned beside their mean, so that the loss is the mean of the members' losses; see
    `lightkit.trainer.Supervised`. Afterwards the model is the ensemble: it returns the mean of their predictions.

    Parameters are named `layers.linear0.shared.weight`, `layers.linear0.scale_in`, …, `head.weight`, `head.bias`.

    Args:
        in_features: Numbers per sample after flattening, F.
        num_classes: Size of the output, C.
        task: Kind of target, which says what is averaged: probabilities of `multiclass`, `binary` and `multilabel`, or
            values of `regression`.
        k: Number of members, K.
        hidden: Width of each hidden layer, in order; empty makes K linear models that share nothing.
        activation: `relu`, `gelu`, `silu`, `leaky_relu`, `elu`, `selu`, `tanh`, `sigmoid` or `identity`.
        dropout: Probability of zeroing an activation in training, 0 to below 1; each member draws its own.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        task: TabularTask = "multiclass",
        k: int = 32,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(in_features=in_features, num_classes=num_classes, k=k, hidden=hidden)
        check_choice("task", task, get_args(TabularTask))
        check_dropout(dropout)
        self.task, self.k = task, k
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        widths = [in_features, *hidden]
        for i, (size_in, size_out) in enumerate(itertools.pairwise(widths)):
            layers[f"linear{i}"] = SharedLinear(k, size_in, size_out, random_signs=i == 0)
            layers[f"activation{i}"] = make_activation(activation)
            if dropout:
                layers[f"dropout{i}"] = nn.Dropout(dropout)
        self.layers = nn.Sequential(layers)
        self.head = MemberLinear(k, widths[-1], num_classes)

    def no_weight_decay(self) -> list[str]:
        """List the members' scales, which `optim.no_decay` spares like those of a norm layer."""
        return [name for name, _ in self.named_parameters() if name.endswith((".scale_in", ".scale_out"))]

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        """Compute the outputs of inputs `(B, ...)` with F numbers per sample.

        Returns:
            The ensemble's outputs `(B, C)`, see `combine`. In training a dictionary: they are its `logits`, and those
            of each member `(B, K, C)` its `members`.
        """
        x = x.flatten(1).unsqueeze(1).expand(-1, self.k, -1)
        members = self.head(self.layers(x))
        combined = combine(members, self.task)
        return {"logits": combined, "members": members} if self.training else combined


class SharedLinear(nn.Module):
    """A linear layer that members share but for scales and bias (BatchEnsemble, https://arxiv.org/abs/2002.06715).

    Args:
        k: Number of members, K.
        in_features: Width of the input, D.
        out_features: Width of the output, E.
        random_signs: Start the scales of the input with -1 or 1 at random, so that members differ, and not with 1.
    """

    def __init__(self, k: int, in_features: int, out_features: int, *, random_signs: bool = False) -> None:
        super().__init__()
        self.shared = nn.Linear(in_features, out_features, bias=False)
        self.scale_in = nn.Parameter(torch.ones(k, in_features))
        self.scale_out = nn.Parameter(torch.ones(k, out_features))
        self.bias = nn.Parameter(torch.empty(k, out_features))
        with torch.no_grad():
            if random_signs:
                self.scale_in.bernoulli_(0.5).mul_(2).sub_(1)
            # All members start with the same bias.
            self.bias.copy_(torch.empty(out_features).uniform_(-1, 1) / math.sqrt(in_features))

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs `(B, K, E)` of inputs `(B, K, D)`."""
        return torch.addcmul(self.bias, self.shared(x * self.scale_in), self.scale_out)


class MemberLinear(nn.Module):
    """One linear layer for each member.

    Args:
        k: Number of members, K.
        in_features: Width of the input, D.
        out_features: Width of the output, E.
    """

    def __init__(self, k: int, in_features: int, out_features: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(k, in_features, out_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(k, out_features).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs `(B, K, E)` of inputs `(B, K, D)`."""
        return (x.transpose(0, 1) @ self.weight).transpose(0, 1) + self.bias


def combine(members: Tensor, task: TabularTask) -> Tensor:
    """Average the predictions of members.

    Args:
        members: Their outputs, `(B, K, C)`.
        task: Kind of target.

    Returns:
        Outputs `(B, C)` of the kind that a single model gives: logits whose probabilities are the members' mean
        probabilities, or the mean of the values for `regression`.
    """
    if task == "regression":
        return members.mean(1)
    if members.dtype in (torch.bfloat16, torch.float16):
        members = members.float()
    if task == "multiclass":
        return members.log_softmax(-1).logsumexp(1) - math.log(members.shape[1])
    # log p - log(1 - p), of the mean p; the number of members cancels out.
    return F.logsigmoid(members).logsumexp(1) - F.logsigmoid(-members).logsumexp(1)
