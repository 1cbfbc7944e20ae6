"""How sure an ensemble is of each sample, from what its members predict."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightkit.ensemble.combining import decisions
from lightkit.ensemble.diversity import uncertainty


class MemberOutputs:
    """Collects what every member predicts, batch by batch.

    Args:
        task: Kind of target, as in `lightkit.data.DataInfo`.
        weights: How much each member counts, `(M,)`.
        unit: What deviations of numbers are multiplied by.
    """

    def __init__(self, task: str, weights: Tensor, unit: float = 1.0) -> None:
        self.task, self.weights, self._unit = task, weights.cpu(), unit
        self.batches: list[Tensor] = []

    def __call__(self, predictions: Tensor) -> None:
        """Take in the predictions `(M, B, C)` of a batch."""
        self.batches.append(predictions.detach().cpu())

    def columns(self, combined: Tensor) -> dict[str, list[Any]]:
        """Return how sure the ensemble is of each sample, by what that is called.

        Of regression that is the standard deviation over the members, `std`. Of classes and labels: `entropy` of the
        mean prediction, `mutual_information` (the part of it that is there because the members differ), both in nats
        and of several labels their sum, and `disagreement`, the share of the members that decide otherwise than the
        ensemble, of several labels the mean over them.

        Args:
            combined: What the ensemble puts out, `(N,)` or `(N, C)`.

        Returns:
            A value a sample under each name. Empty where no member has predicted them, or only one has.
        """
        size = sum(batch.shape[1] for batch in self.batches)
        if size != len(combined) or len(self.weights) < 2:
            return {}
        predictions = torch.cat(self.batches, 1)
        found = uncertainty(predictions, self.task, self.weights)
        if self.task == "regression":
            return {"std": (found.standard_deviation.reshape(combined.shape) * self._unit).tolist()}
        table = combined.reshape(predictions.shape[1:])  # logits: the largest is that of the class, of labels above 0
        decided = table.argmax(-1) if self.task == "multiclass" else (table > 0).long()
        differs = (decisions(predictions, self.task) != decided).double().reshape(len(predictions), size, -1).mean(-1)
        share = self.weights.double() / self.weights.double().sum()
        return {
            "entropy": found.entropy.tolist(),
            "mutual_information": found.mutual_information.tolist(),
            "disagreement": torch.einsum("m,mn->n", share, differs).tolist(),
        }
