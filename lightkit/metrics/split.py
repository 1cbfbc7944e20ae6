"""The metrics of one split: a step only queues its results, a block of steps is counted at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightkit.metrics.collection import Collection, flatten

BLOCK_ELEMENTS = 4_000_000
"""A queue with this many output values is counted before its block is full: 16 MB in float32."""


Kwargs = Mapping[str, Tensor]
"""What the metrics of a batch get besides output and target, by the names of their arguments."""


class MetricRow(NamedTuple):
    """The results of one batch, as they are queued; see `SplitMetrics.update`."""

    preds: Tensor | None
    target: Tensor | None
    loss: Tensor
    size: int
    kwargs: Kwargs | None = None


class SplitMetrics:
    """Loss and metrics over all samples of a split.

    No value depends on the batch size: the loss is averaged over samples in double precision, metrics accumulate and
    are computed once. `update` never waits for the device. Blocks end at fixed places counted from `reset` on, and the
    queue is part of the state, so that a run resumed in the middle of an epoch ends with the same bits.

    Args:
        prefix: Name of the split; begins every value's name (`val/accuracy`).
        make: Builds the metrics by name; called when the first block is counted, because torchmetrics is slow to
            import.
        device: Where metric states live: the device of the model's output.
        block: Number of steps counted at once.
        class_names: Names of classes or labels, for metrics that give one value for each.
    """

    def __init__(
        self,
        prefix: str,
        make: Callable[[], Mapping[str, Any]] = dict,
        *,
        device: torch.device | str = "cpu",
        block: int = 32,
        class_names: Sequence[str] = (),
    ) -> None:
        self.prefix, self.class_names, self.block = prefix, tuple(class_names), block
        self.figures_data: dict[str, Any] = {}
        self._make, self._device, self._collection = make, torch.device(device), None  # type: Any, torch.device, Any
        self.reset()

    @property
    def made(self) -> dict[str, Any]:
        """The metrics by name; none before the first block is counted."""
        groups = [] if self._collection is None else self._collection.groups
        return {name: metric for group in groups for name, metric in zip(group.names, group.metrics)}

    def reset(self) -> None:
        """Forget everything counted and queued."""
        self._queue: list[MetricRow] = []
        self._elements, self._samples = 0, 0
        self._loss_sum = self.no_loss
        if self._collection is not None:
            self._collection.reset()

    @property
    def _wide(self) -> torch.dtype:
        return torch.float32 if self._device.type == "mps" else torch.float64

    def anew(self) -> SplitMetrics:
        """Return the same metrics made anew, with nothing counted."""
        return SplitMetrics(
            self.prefix, self._make, device=self._device, block=self.block, class_names=self.class_names
        )

    @property
    def no_loss(self) -> Tensor:
        """A sum of losses to which nothing was added yet."""
        return torch.zeros((), dtype=self._wide, device=self._device)

    def collected(self) -> Collection:
        """Return the metrics, made now where they were not."""
        if self._collection is None:
            self._collection = Collection(self._make(), key=f"metrics.{self.prefix}", device=self._device)
        return self._collection

    def check(self) -> None:
        """Make the metrics once, apart from those that count.

        Raises:
            UserError: One is no metric, or wants inputs of an unknown kind.
        """
        self.anew().collected()

    def update(
        self, preds: Tensor | None, target: Tensor | None, loss: Tensor, size: int, kwargs: Kwargs | None = None
    ) -> None:
        """Queue the results of one batch; do not change these tensors in place afterwards.

        Args:
            preds: Raw output of the model, samples in dimension 0; None leaves the metrics alone.
            target: What it was compared with.
            loss: Mean loss over the samples of the batch, 0-d.
            size: Samples in the batch.
            kwargs: What the metrics get besides, by the names of their arguments, samples in dimension 0.
        """
        if preds is not None and target is not None:
            preds, target = preds.detach(), target.detach()
            kwargs = {name: tensor.detach() for name, tensor in kwargs.items()} if kwargs else None
            self._elements += preds.numel()
        self._queue.append(MetricRow(preds, target, loss.detach(), size, kwargs))
        if len(self._queue) >= self.block or self._elements >= BLOCK_ELEMENTS:
            self._flush()

    def compute(self) -> dict[str, float]:
        """Return the values since `reset`: `val/loss` and each metric's (`val/f1`, for vectors `val/f1/<class>`).

        Results that are no numbers, such as matrices and curves, go to `figures_data`.
        """
        self._flush()
        if not self._samples:
            return {f"{self.prefix}/loss": float("nan")}
        found = {"loss": self._loss_sum / self._samples}
        self.figures_data = {}
        with torch.inference_mode(False), torch.no_grad():
            for name, result in ({} if self._collection is None else self._collection.compute()).items():
                numbers, rest = flatten(name, result, self.class_names)
                found.update(numbers)
                self.figures_data.update(rest)
        # one transfer for all values: each float() by itself would wait for the device
        values = torch.stack([value.to(self._device, self._wide) for value in found.values()]).tolist()
        return {f"{self.prefix}/{name}": value for name, value in zip(found, values)}

    def _flush(self) -> None:
        """Count what is queued."""
        if not self._queue:
            return
        queue, self._queue, self._elements = self._queue, [], 0
        # tensors made in inference mode could not be changed outside of it later
        with torch.inference_mode(False), torch.no_grad():
            # Losses times samples. Sizes stay numbers of the host: copying them to a GPU would wait for it.
            for size in dict.fromkeys(row.size for row in queue):
                same = [row.loss for row in queue if row.size == size]
                self._loss_sum = self._loss_sum + torch.stack(same).to(self._device, self._wide).sum() * size
                self._samples += size * len(same)
            inputs = [
                {"preds": row.preds, "target": row.target, **(row.kwargs or {})}
                for row in queue
                if row.preds is not None and row.target is not None
            ]
            for named in _joined(inputs):
                self.collected().update(**{name: tensor.to(self._device) for name, tensor in named.items()})

    def higher_is_better(self, name: str) -> bool | None:
        """Tell what a metric says of its values; None where it, or a metric not counted, says nothing.

        Args:
            name: Of a value, as `compute` gives it.
        """
        found = None if self._collection is None else self._collection.find(name.removeprefix(f"{self.prefix}/"))
        return getattr(found, "higher_is_better", None)

    def to(self, device: torch.device | str) -> SplitMetrics:
        """Move states and queue."""
        state, self._device = self.state_dict(), torch.device(device)
        if self._collection is not None:
            self._collection.to(self._device)
        self.load_state_dict(state)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Copy everything counted and queued: tensors and plain values only."""
        rows = [_mapped(torch.clone, row) for row in self._queue]
        queue = [tuple(row) if row.kwargs else tuple(row[:4]) for row in rows]  # as before metrics got anything besides
        metrics = {} if self._collection is None or not self._samples else self._collection.state_dict()
        return {"samples": self._samples, "loss_sum": self._loss_sum.clone(), "queue": queue, "metrics": metrics}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; the next values are those of a run that never stopped.

        Args:
            state: What `state_dict` gave.

        Raises:
            UserError: It holds counts of other metrics.
        """
        self.reset()
        self._samples = state["samples"]
        self._loss_sum = state["loss_sum"].to(self._device, self._wide, copy=True)
        for saved in state["queue"]:
            row = _mapped(lambda tensor: tensor.to(self._device), MetricRow(*saved))
            self._queue.append(row)
            self._elements += 0 if row.preds is None else row.preds.numel()
        if state["metrics"]:
            self.collected().load_state_dict(state["metrics"], self._device)


def _mapped(change: Callable[[Tensor], Tensor], row: MetricRow) -> MetricRow:
    """Change every tensor of a row."""
    tensors = [None if tensor is None else change(tensor) for tensor in row[:2]]
    kwargs = None if row.kwargs is None else {name: change(tensor) for name, tensor in row.kwargs.items()}
    return MetricRow(tensors[0], tensors[1], change(row.loss), row.size, kwargs)


def _joined(batches: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Join batches where their shapes allow it; sequences of unequal length stay apart."""
    if not batches or not batches[0]["preds"].ndim:
        return batches
    kinds = [{name: (t.shape[1:], t.dtype, t.ndim, t.device) for name, t in batch.items()} for batch in batches]
    if any(kind != kinds[0] or not all(t.ndim for t in batch.values()) for kind, batch in zip(kinds, batches)):
        return batches
    return [{name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}]
