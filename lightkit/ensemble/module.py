"""Networks that count as one: the ensemble as a module.

Shapes: B samples, C classes, labels or targets, M networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.ensemble.combining import as_logits
from lightkit.ensemble.side_by_side import Stacked, agrees, alone, stack
from lightkit.trainer.tasks import logits

Rule = Literal["soft", "hard", "sum"]


class Joint(nn.Module):
    """Several networks that are trained as one.

    Args:
        estimators: The networks.
        stacked: In training, return the outputs of all `(B, M, C)` in place of their combination.
        scale: Factor of each network in the sum; 1 / M makes it the mean.
    """

    def __init__(self, estimators: Sequence[nn.Module], *, stacked: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.estimators = nn.ModuleList(estimators)
        self.stacked, self.scale = stacked, scale

    def forward(self, *x: Tensor) -> Tensor:
        """Compute `(B, C)`, in training of a stacked one `(B, M, C)`, from inputs `(B, ...)`."""
        outputs = torch.stack([logits(network(*x)) for network in self.estimators], dim=1)
        return outputs if self.stacked and self.training else self.scale * outputs.sum(1)


class Ensemble(nn.Module):
    """The members of an ensemble, with one output for all of them.

    The output is what a single network gives: of classes the logarithm of the combined probabilities, of labels and two
    classes their logit, of numbers the weighted mean. Losses and metrics take it as they take a network's.

    Args:
        estimators: The networks.
        task: Kind of target: `multiclass`, `binary`, `multilabel` or `regression`.
        rule: `soft`: weighted mean of probabilities; `hard`: share of the votes; `sum`: weighted sum of the outputs.
        weights: One for each network; None is the mean.
        names: Names of the members.
    """

    def __init__(
        self,
        estimators: Sequence[nn.Module],
        *,
        task: str,
        rule: Rule = "soft",
        weights: Sequence[float] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.estimators = nn.ModuleList(estimators)
        self.task, self.rule = task, rule
        self.names = tuple(names) or tuple(f"{i:02}" for i in range(len(self.estimators)))
        shares = torch.tensor(weights or [1 / len(self.estimators)] * len(self.estimators), dtype=torch.float64)
        self.weights = nn.Buffer(shares)
        self._stacked: Stacked | None = None
        self._stackable = True
        self._observer: Callable[[Tensor], None] | None = None

    def __len__(self) -> int:
        return len(self.estimators)

    def __getitem__(self, index: int) -> nn.Module:
        return self.estimators[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.estimators)

    def outputs(self, *x: Tensor) -> Tensor:
        """Return the output of every network, `(M, B, C)`.

        Alike networks are computed at once in eval mode without gradients, where that pays. The first batch is computed
        in both ways: networks whose outputs differ then stay one after the other.
        """
        if self.training or torch.is_grad_enabled() or not self._stackable:
            return alone(list(self.estimators), *x)
        checked = self._stacked is not None and self._stacked.current
        if not checked:
            self._stacked = stack(list(self.estimators))
        if self._stacked is None:
            self._stackable = False
            return alone(list(self.estimators), *x)
        if checked:
            return self._stacked.outputs(*x)
        expected = alone(list(self.estimators), *x)
        try:
            self._stackable = agrees(self._stacked.outputs(*x), expected)
        except (RuntimeError, NotImplementedError, ValueError, TypeError):  # it branches on values, or draws numbers
            self._stackable = False
        if not self._stackable:
            self._stacked = None
        return expected

    def probabilities(self, *x: Tensor) -> Tensor:
        """Return what every network predicts, `(M, B, C)`: probabilities, or numbers in regression."""
        outputs = self.outputs(*x)
        outputs = outputs if outputs.dtype == torch.float64 else outputs.float()
        if self.task == "regression":
            return outputs
        return outputs.softmax(-1) if self.task == "multiclass" else outputs.sigmoid()

    @contextmanager
    def observed(self, observer: Callable[[Tensor], None]) -> Iterator[None]:
        """Hand over what every network predicts, `(M, B, C)`, of each batch inside.

        Args:
            observer: Gets it. Nothing is handed over where the outputs are a sum: its parts predict nothing themselves.
        """
        self._observer = observer
        try:
            yield
        finally:
            self._observer = None

    def forward(self, *x: Tensor) -> Tensor:
        """Combine the outputs of all networks, `(B, C)`."""
        if self.rule == "sum":
            return self._weighed(self.outputs(*x))
        found = self.probabilities(*x)
        if self._observer is not None:
            self._observer(found)
        if self.rule == "hard" and self.task != "regression":
            chosen = F.one_hot(found.argmax(-1), found.shape[-1]) if self.task == "multiclass" else found > 0.5
            # In double precision, as equal shares stay equal then whoever voted; so `combining.hard` adds them, too.
            return as_logits(self._weighed(chosen.double()).to(found.dtype), self.task)
        return as_logits(self._weighed(found), self.task)

    def _weighed(self, found: Tensor) -> Tensor:
        return torch.einsum("m,mbc->bc", self.weights.to(found.dtype), found)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Ensemble:
        """Move or cast the networks; the weights of the members keep their precision."""
        weights = self.weights.detach()
        super()._apply(fn, recurse)
        if self.weights.dtype != weights.dtype:
            self.weights = nn.Buffer(weights.to(self.weights.device))
        self._stacked, self._stackable = None, True
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be made anew."""
        return {**super().__getstate__(), "_stacked": None, "_observer": None}


def members_only(ensemble: Ensemble, keep: Callable[[str], bool]) -> Ensemble:
    """Return an ensemble of some members, with the same weights relative to each other."""
    chosen = [i for i, name in enumerate(ensemble.names) if keep(name)]
    weights = ensemble.weights[chosen]
    if ensemble.rule != "sum":
        weights = weights / weights.sum() if weights.sum() > 0 else torch.full_like(weights, 1 / len(chosen))
    return Ensemble(
        [ensemble[i] for i in chosen],
        task=ensemble.task,
        rule=ensemble.rule,
        weights=weights.tolist(),
        names=[ensemble.names[i] for i in chosen],
    )
