"""The metrics of one split for many models at once.

Shapes: M models, B samples of a batch, N samples of a block, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightkit.common.modules import mapped
from lightkit.metrics.collection import MetricGroup, load, share, state_of
from lightkit.metrics.results import Shaped, convert, flatten
from lightkit.metrics.split import BLOCK_ELEMENTS, LossMean, SplitMetrics

_COUNTED = tuple(f"Multiclass{name}" for name in ("Accuracy", "Precision", "Recall", "F1Score", "FBetaScore"))
"""Metrics of torchmetrics that follow from a confusion matrix; that of all models is counted at once."""


class _Row(NamedTuple):
    """The results of one batch."""

    preds: Tensor | None
    target: Tensor | None
    losses: Tensor
    size: int
    weight: Tensor | int | None = None


class StackedMetrics:
    """Loss and metrics of many models over all samples of a split; each value is what `SplitMetrics` finds for a model.

    Args:
        like: The metrics of one of the models, which count nothing themselves meanwhile.
        count: Number of models.
    """

    def __init__(self, like: SplitMetrics, count: int) -> None:
        self.prefix, self.count, self.block = like.prefix, count, like.block
        self._like = like
        self.figures_data: dict[str, Shaped] = {}  # metrics that give more than numbers are not for many models at once
        self._collection: Any = None
        self.reset()

    def reset(self) -> None:
        """Forget everything counted and queued."""
        self._queue: list[_Row] = []
        self._elements = self._updates = 0
        self._loss = LossMean(self._like.no_loss.expand(self.count).clone())
        self._matrix: Tensor | None = None
        self._states: dict[str, list[Any]] = {}

    def update(
        self,
        preds: Tensor | None,
        target: Tensor | None,
        losses: Tensor,
        size: int,
        kwargs: Mapping[str, Tensor] | None = None,
        weight: Tensor | int | None = None,
        *_more: Any,
    ) -> None:
        """Queue the results of one batch; do not change these tensors in place afterwards.

        Args:
            preds: Raw outputs of the models, `(M, B, ...)`; None leaves the metrics alone.
            target: What they were compared with, `(M, B, ...)`.
            losses: Mean losses over the samples of the batch, `(M,)`.
            size: Samples in the batch.
            kwargs: Not used: tasks that hand on more than outputs and targets are not for many models at once.
            weight: What the losses weigh among those of other batches, `(M,)`; None stands for `size`.
        """
        if preds is not None and target is not None:
            preds, target = preds.detach(), target.detach()
            self._elements += preds.numel()
        self._queue.append(_Row(preds, target, losses.detach(), size, weight))
        if len(self._queue) >= self.block or self._elements >= BLOCK_ELEMENTS:
            self._flush()

    @torch.no_grad()
    def compute(self) -> list[dict[str, float]]:
        """Return the values of each model since `reset`; see `SplitMetrics.compute`."""
        self._flush()
        if not self._loss.samples:
            return [{f"{self.prefix}/loss": float("nan")} for _ in range(self.count)]
        columns = {"loss": self._loss.compute()}
        if self._collection is not None and self._updates:
            found: dict[str, Tensor] = {}
            for group in self._collection.groups:
                found |= self._counted(group) if self._is_counted(group) else self._each(group)
            columns |= {name: found[name] for name in sorted(found, key=self._place)}
        table = torch.stack([column.to(self._loss.total) for column in columns.values()], 1).tolist()
        names = [f"{self.prefix}/{name}" for name in columns]
        return [dict(zip(names, row)) for row in table]

    def _place(self, name: str) -> int:
        """Tell where a value stands by the order in which the metrics were given."""
        names = [] if self._collection is None else self._collection.names
        return next((i for i, own in enumerate(names) if f"{name}/".startswith(f"{own}/")), len(names))

    def _counted(self, group: MetricGroup) -> dict[str, Tensor]:
        """Compute metrics of all models from their confusion matrices, `(M,)` by name."""
        found: dict[str, Tensor] = {}
        for name, metric in zip(group.names, group.metrics):
            for key, part in self._counts(metric).items():
                setattr(metric, key, part)
            metric._update_count, metric._computed, metric.multidim_average = self._updates, None, "samplewise"
            result = metric.compute()
            metric.multidim_average = "global"
            parts = [flatten(name, row, self._like.class_names)[0] for row in result.reshape(self.count, -1).unbind(0)]
            found |= {key: torch.stack([part[key] for part in parts]) for key in parts[0]}
        return found

    def _each(self, group: MetricGroup) -> dict[str, Tensor]:
        """Compute metrics model by model, `(M,)` by name."""
        leader, rows = group.metrics[0], list[dict[str, Tensor]]()
        for state in self._states[group.names[0]]:
            load(leader, state, self._loss.total.device)
            values: dict[str, Tensor] = {}
            for name, metric in zip(group.names, group.metrics):
                if metric is not leader:
                    share(leader, metric)
                values |= flatten(name, self._collection.result(name, metric), self._like.class_names)[0]
            rows.append(values)
        return {name: torch.stack([row[name].to(self._loss.total) for row in rows]) for name in rows[0]}

    @torch.no_grad()
    def _flush(self) -> None:
        """Count what is queued."""
        if not self._queue:
            return
        queue, self._queue, self._elements = self._queue, [], 0
        self._loss.add([(row.losses, row.size, row.weight) for row in queue])
        rows = [(row.preds, row.target) for row in queue if row.preds is not None and row.target is not None]
        alike = len({(preds.shape[2:], target.shape[2:]) for preds, target in rows}) == 1
        if alike:
            rows = [(torch.cat([preds for preds, _ in rows], 1), torch.cat([target for _, target in rows], 1))]
        for preds, target in rows:
            self._count(preds, target)

    def _count(self, preds: Tensor, target: Tensor) -> None:
        """Count a block of samples, `(M, N, ...)`."""
        if self._collection is None:
            self._collection = self._like.collected()
        preds, target = self._like.undo(preds), self._like.undo(target)
        self._updates += 1
        if preds.ndim == 3 and any(map(is_counted, self._collection.groups)):
            matrix = confusion(*convert("scores", preds.flatten(0, 1), target.flatten(0, 1)), self.count)
            self._matrix = matrix if self._matrix is None else self._matrix + matrix
        for group in self._collection.groups:
            if self._is_counted(group):
                continue
            leader, name = group.metrics[0], group.names[0]
            before = self._states.setdefault(name, [None] * self.count)
            for model, state in enumerate(before):
                leader.reset()
                if state is not None:
                    load(leader, state, preds.device)
                leader.update(*convert(group.kind, preds[model], target[model], self._collection.decode))
                leader.validate_args = False
                before[model] = state_of(leader)

    def _is_counted(self, group: MetricGroup) -> bool:
        return self._matrix is not None and is_counted(group)

    def _counts(self, metric: Any) -> dict[str, Tensor]:
        """Return what a metric counts for every model, `(M, C)`, or `(M, 1)` where classes do not matter to it."""
        assert self._matrix is not None, "counted before"
        hits, predicted, actual = self._matrix.diagonal(dim1=1, dim2=2), self._matrix.sum(1), self._matrix.sum(2)
        found = {"tp": hits, "fp": predicted - hits, "fn": actual - hits}
        found["tn"] = actual.sum(1, keepdim=True) - found["fp"] - found["fn"] - hits
        return {name: part.sum(1, keepdim=True) for name, part in found.items()} if metric.average == "micro" else found

    def keep(self, rows: Tensor) -> None:
        """Leave out all models but these, `(K,)` int64."""
        self.count, numbers = len(rows), rows.tolist()
        self._loss.total, self._loss.weight = self._loss.total[rows], self._loss.weight[rows]
        self._matrix = None if self._matrix is None else self._matrix[rows]
        self._states = {name: [states[row] for row in numbers] for name, states in self._states.items()}
        self._queue = [
            row._replace(
                preds=None if row.preds is None else row.preds[rows],
                target=None if row.target is None else row.target[rows],
                losses=row.losses[rows],
                weight=mapped(lambda weight: weight[rows], row.weight),
            )
            for row in self._queue
        ]

    def state_dict(self) -> dict[str, Any]:
        """Copy everything counted and queued: tensors and plain values only."""
        return {
            **self._loss.state_dict(),
            "updates": self._updates,
            "matrix": None if self._matrix is None else self._matrix.clone(),
            "states": {name: list(states) for name, states in self._states.items()},
            "queue": [tuple(row) for row in self._queue],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.reset()
        self._loss.load_state_dict(state)
        device, self._updates = self._loss.total.device, state["updates"]
        self._matrix = None if state["matrix"] is None else state["matrix"].to(device, copy=True)
        self._states = {name: list(states) for name, states in state["states"].items()}
        queue: list[list[Any]] = [
            [part.to(device) if isinstance(part, Tensor) else part for part in row] for row in state["queue"]
        ]
        self._queue = [_Row(*row) for row in queue]
        self._elements = sum(row.preds.numel() for row in self._queue if row.preds is not None)
        if self._updates:
            self._collection = self._like.collected()

    def state_of(self, model: int) -> dict[str, Any]:
        """Return the state of one model, as its own `SplitMetrics` has it."""
        metrics: dict[str, Any] = {}
        if self._collection is not None and self._updates:
            for group in self._collection.groups:
                name, leader = group.names[0], group.metrics[0]
                if self._is_counted(group):
                    values = {key: part[model].clone() for key, part in self._counts(leader).items()}
                    metrics[name] = {"": {"updates": self._updates, "values": values}}
                else:
                    metrics[name] = self._states[name][model]
        queue = [
            (
                None if row.preds is None else row.preds[model].clone(),
                None if row.target is None else row.target[model].clone(),
                row.losses[model].clone(),
                row.size,
                None,
                mapped(lambda weight: weight[model].clone(), row.weight),
            )
            for row in self._queue
        ]
        return {
            "samples": self._loss.samples,
            "loss_sum": self._loss.total[model].clone(),
            "loss_weight": self._loss.weight[model].clone(),
            "queue": queue,
            "metrics": metrics if self._loss.samples else {},
        }


def is_counted(group: MetricGroup) -> bool:
    """Tell whether the metrics of a group follow from a confusion matrix."""
    return group.kind == "scores" and all(
        type(metric).__module__.startswith("torchmetrics.classification.")
        and type(metric).__name__ in _COUNTED
        and metric.top_k == 1
        and metric.ignore_index is None
        and metric.multidim_average == "global"
        for metric in group.metrics
    )


def confusion(preds: Tensor, target: Tensor, count: int) -> Tensor:
    """Count how often each model gave which class for which, `(M, C, C)`: rows true, columns predicted.

    Args:
        preds: Scores of the samples of one model after the other, `(M * N, C)`.
        target: Their classes, `(M * N,)`.
        count: Number of models.
    """
    classes = preds.shape[1]
    cells = target.view(count, -1) * classes + preds.max(1).indices.view(count, -1)  # faster than `argmax`
    cells = cells + torch.arange(count, device=cells.device)[:, None] * classes**2
    return torch.bincount(cells.view(-1), minlength=count * classes**2).view(count, classes, classes)
