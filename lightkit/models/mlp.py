"""Multi-layer perceptron for inputs of any shape, and output layers for several targets.

Shapes: B samples, F features.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from torch import Tensor, nn

from lightkit.common.argument_checks import check_choice
from lightkit.models.parts import Activation, check_dropout, check_sizes
from lightkit.models.parts import activation as make_activation

Norm = Literal["none", "batch", "layer"]


class MLP(nn.Module):
    """Linear layers with activations in between; the input is flattened.

    Parameters are named `layers.linear0.weight`, `layers.norm0.weight`, …, `head.weight`.

    Args:
        in_features: Numbers per sample after flattening, F.
        num_classes: Size of the output.
        hidden: Width of each hidden layer, in order; empty makes a linear model.
        activation: `relu`, `gelu`, `silu`, `leaky_relu`, `elu`, `selu`, `tanh`, `sigmoid` or `identity`.
        norm: Normalisation between a linear layer and its activation: none, `batch`
            (https://arxiv.org/abs/1502.03167) or `layer` (https://arxiv.org/abs/1607.06450).
        dropout: Probability of zeroing an activation in training, 0 to below 1.

    Raises:
        UserError: An argument is out of its range.
    """

    by_sample = "features"
    """It computes each sample by itself where its layers do so, along its features, and has no weights but theirs."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        norm: Norm = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(in_features=in_features, num_classes=num_classes, hidden=hidden)
        check_choice("norm", norm, get_args(Norm))
        check_dropout(dropout)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        widths = [in_features, *hidden]
        for i, (size_in, size_out) in enumerate(itertools.pairwise(widths)):
            # A bias in front of batch norm is subtracted again with the mean.
            layers[f"linear{i}"] = nn.Linear(size_in, size_out, bias=norm != "batch")
            if norm != "none":
                layers[f"norm{i}"] = nn.BatchNorm1d(size_out) if norm == "batch" else nn.LayerNorm(size_out)
            layers[f"activation{i}"] = make_activation(activation)
            if dropout:
                layers[f"dropout{i}"] = nn.Dropout(dropout)
        self.layers = nn.Sequential(layers)
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs `(B, num_classes)` of inputs `(B, ...)` with F numbers per sample."""
        return self.head(self.layers(x.flatten(1)))


class Heads(nn.Module):
    """A network that all targets share, and a linear output layer for each of them.

    Args:
        trunk: The shared network; what it puts out are the features of a sample.
        heads: Outputs for each target, by its name.

    Raises:
        UserError: A head has no output.
    """

    def __init__(self, trunk: nn.Module, heads: Mapping[str, int]) -> None:
        super().__init__()
        check_sizes(heads=list(heads.values()))
        self.trunk, self.activation = trunk, nn.ReLU()
        self.heads = nn.ModuleDict({name: nn.LazyLinear(size) for name, size in heads.items()})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Compute an output `(B, ...)` for each head by name."""
        features = self.activation(self.trunk(x)).flatten(1)
        return {name: head(features) for name, head in self.heads.items()}
