"""One network with an output layer for each of several targets.

Shapes: B samples.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from lightkit.models.parts import check_sizes


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
