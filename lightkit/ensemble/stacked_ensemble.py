"""Networks that take the predictions of others as inputs, as one module.

Shapes: B samples, C classes, labels or targets, F columns of features, M networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.ensemble.combining import as_probabilities
from lightkit.ensemble.module import Ensemble
from lightkit.ensemble.stacking import stack_features
from lightkit.trainer.tasks import logits


@dataclass(frozen=True)
class Inputs:
    """What a network takes in the place of the inputs of the data."""

    columns: Sequence[Sequence[str]]
    """For each base the networks whose mean prediction counts, by name."""
    passthrough: bool
    """Whether the inputs of the data follow."""
    shift: Sequence[float]
    """`(F,)`: is subtracted."""
    scale: Sequence[float]
    """`(F,)`: divides what is left."""

    def plain(self) -> dict[str, Any]:
        """Return this as plain values."""
        return asdict(self)


class StackedEnsemble(Ensemble):
    """An ensemble of networks of which some learnt from the predictions of others.

    Args:
        estimators: The networks, each behind those whose predictions it takes.
        task: Kind of target.
        weights: How much each counts in the end: 1 for a meta-model, 0 for what feeds it.
        names: Names of the networks.
        inputs: By name, what a network takes that does not take the inputs of the data.
    """

    def __init__(
        self,
        estimators: Sequence[nn.Module],
        *,
        task: str,
        weights: Sequence[float],
        names: Sequence[str],
        inputs: Mapping[str, Inputs],
    ) -> None:
        super().__init__(estimators, task=task, rule="soft", weights=weights, names=names)
        self.inputs = dict(inputs)
        for name, own in inputs.items():
            self.register_buffer(f"scaling{self.names.index(name)}", torch.tensor([own.shift, own.scale]))

    def outputs(self, *x: Tensor) -> Tensor:
        """Return the output of every network, `(M, B, C)`."""
        found, predictions = list[Tensor](), dict[str, Tensor]()
        for number, (name, network) in enumerate(zip(self.names, self.estimators)):
            own = logits(network(self._features(x[0], name, number, predictions)))
            found.append(own[:, None] if own.ndim == 1 else own)
            predictions[name] = as_probabilities(found[-1], self.task)
        return torch.stack(found)

    def _features(self, x: Tensor, name: str, number: int, predictions: Mapping[str, Tensor]) -> Tensor:
        """Return what a network takes in."""
        if name not in self.inputs:
            return x
        own = self.inputs[name]
        bases = [torch.stack([predictions[network] for network in base]).mean(0) for base in own.columns]
        shift, scale = self.get_buffer(f"scaling{number}")
        return (stack_features(bases, self.task, x if own.passthrough else None) - shift) / scale
