"""Outputs of a model, collected as rows of a table."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightkit.common.errors import UserError


class Predictions:
    """Collects what a task hands to the metrics, for every sample.

    Args:
        task: Kind of target, as in `DataInfo`.
        class_names: Names of the classes or labels; numbers where empty.
    """

    def __init__(self, task: str, class_names: tuple[str, ...]) -> None:
        self._task, self._names = task, class_names
        self._preds: list[Tensor] = []
        self._targets: list[Tensor] = []

    def update(self, preds: Tensor | None, target: Tensor | None, loss: Tensor, size: int, *_more: Any) -> None:
        """Take in one batch; same arguments as `SplitMetrics.update`."""
        if preds is None or len(preds) != size:
            raise UserError(
                "the task hands no prediction per sample on",
                key="trainer.task",
                fix="return StepOutput(loss, preds)",
                family="wrong-command",
            )
        self._preds.append(preds.detach().float().cpu())
        if target is not None:
            self._targets.append(target.detach().cpu())

    def rows(self, numbers: Tensor) -> list[dict[str, Any]]:
        """One row a sample.

        Args:
            numbers: Row of each sample in the data set, `(N,)`.
        """
        outputs = torch.cat(self._preds)
        targets = torch.cat(self._targets).tolist() if self._targets else [None] * len(outputs)
        columns = getattr(self, f"_{self._task}", self._values)(outputs)
        named = [
            {"row": row, "target": self._label(target)} for row, target in zip(numbers.tolist(), targets, strict=True)
        ]
        return [row | {name: values[i] for name, values in columns.items()} for i, row in enumerate(named)]

    def _label(self, target: Any) -> Any:
        return self._names[target] if self._task == "multiclass" and self._names and isinstance(target, int) else target

    def _multiclass(self, outputs: Tensor) -> dict[str, list[Any]]:
        probabilities = outputs.softmax(1)
        names = self._names or tuple(map(str, range(outputs.shape[1])))
        chosen = [names[index] for index in probabilities.argmax(1).tolist()]
        return {"prediction": chosen} | {f"p({n})": probabilities[:, i].tolist() for i, n in enumerate(names)}

    def _multilabel(self, outputs: Tensor) -> dict[str, list[Any]]:
        probabilities = outputs.sigmoid()
        names = self._names or tuple(map(str, range(outputs.shape[1])))
        return {"prediction": (probabilities > 0.5).int().tolist()} | {
            f"p({name})": probabilities[:, index].tolist() for index, name in enumerate(names)
        }

    def _binary(self, outputs: Tensor) -> dict[str, list[Any]]:
        probabilities = outputs.reshape(len(outputs)).sigmoid()
        return {"prediction": (probabilities > 0.5).int().tolist(), "p": probabilities.tolist()}

    def _language_modeling(self, outputs: Tensor) -> dict[str, list[Any]]:
        return {"prediction": outputs.argmax(-1).tolist()}

    def _values(self, outputs: Tensor) -> dict[str, list[Any]]:
        return {"prediction": outputs.tolist()}
