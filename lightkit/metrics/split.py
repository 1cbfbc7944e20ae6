"""The metrics of one split: a step only queues its results, a block of steps is counted at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightkit.common.errors import UserError, keys_under
from lightkit.common.modules import mapped, tensors
from lightkit.common.sparing import sparingly
from lightkit.metrics.collection import Collection, keeps_more, outlasts
from lightkit.metrics.results import Shaped, flatten, gives_no_numbers
from lightkit.metrics.texts import Decode

_LOG = logging.getLogger(__name__)
BLOCK_ELEMENTS = 4_000_000
"""A queue with this many output values is counted before its block is full: 16 MB in float32."""


Kwargs = Mapping[str, Any]
"""What the metrics of a batch get besides output and target, by the names of their arguments."""


def detached(tensor: Tensor) -> Tensor:
    """Return a tensor without its graph; one that has none stays as it is."""
    return tensor.detach() if tensor.requires_grad else tensor


class AllBut(int):
    """Stands for the number of targets of a batch that are not this one, which is counted later."""


class MetricRow(NamedTuple):
    """The results of one batch, as they are queued; see `SplitMetrics.update`."""

    preds: Any
    target: Any
    loss: Tensor
    size: int
    kwargs: Kwargs | None = None
    weight: Tensor | int | None = None
    log: Mapping[str, Tensor] | None = None


def counted(rows: Sequence[MetricRow]) -> list[MetricRow]:
    """Return rows with the weights that were to be counted later: those of targets of one shape all at once."""
    kinds: list[Any] = [isinstance(r.weight, AllBut) and (int(r.weight), r.target.shape, r.target.dtype) for r in rows]
    found = dict[int, Tensor]()
    for kind in filter(None, {*kinds}):
        same = [index for index, own in enumerate(kinds) if own == kind]
        found |= zip(same, (torch.stack([rows[index].target.flatten() for index in same]) != kind[0]).sum(1))
    return [row._replace(weight=found[index]) if index in found else row for index, row in enumerate(rows)]


class LossMean:
    """Mean of the losses of batches, each by what it weighs, in double precision; of one model or of several.

    Args:
        nothing: The sum that it begins with, `()` or `(M,)`.
    """

    def __init__(self, nothing: Tensor) -> None:
        self.samples, self.total, self.weight = 0, nothing, nothing

    def add(self, rows: Sequence[tuple[Tensor, int, Tensor | int | None]]) -> None:
        """Count batches: the loss of each, its samples, and what the loss weighs where that is another number."""
        self.samples += sum(size for _, size, _ in rows)
        weighed = [(loss, size if weight is None else weight) for loss, size, weight in rows]
        numbers, pairs = ([pair for pair in weighed if isinstance(pair[1], Tensor) is known] for known in (False, True))
        # Sizes stay numbers of the host: copying them to a GPU would wait for it.
        for number in dict.fromkeys(weight for _, weight in numbers):
            same = [loss for loss, weight in numbers if weight == number]
            self.total = self.total + self._wide(same).sum(0) * number
            self.weight = self.weight + number * len(same)
        if pairs:
            losses, tensors = (self._wide(part) for part in zip(*pairs))
            # A batch without any weight has no mean, and adds nothing to that of all.
            self.total = self.total + torch.where(tensors == 0, 0, losses * tensors).sum(0)
            self.weight = self.weight + tensors.sum(0)

    def _wide(self, values: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(values)).to(self.total).reshape(-1, *self.total.shape)

    def compute(self) -> Tensor:
        """Return the mean."""
        return self.total / self.weight

    def state_dict(self) -> dict[str, Any]:
        """Copy what was counted."""
        return {"samples": self.samples, "loss_sum": self.total.clone(), "loss_weight": self.weight.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what was counted; before weights were kept, losses weighed as many as they had samples."""
        self.samples, self.total = state["samples"], state["loss_sum"].to(self.total, copy=True)
        weight = state.get("loss_weight", torch.full_like(self.total, self.samples))
        self.weight = weight.to(self.total, copy=True)


class SplitMetrics:
    """Loss and metrics over all samples of a split.

    No value depends on the batch size: the loss is averaged in double precision, by weights where it has some (see
    `lightkit.losses.mean_weight`); metrics accumulate and are computed once. `update` never waits for the device.
    Blocks end at fixed places counted from `reset` on, and the queue is part of the state, so that a run resumed in the
    middle of an epoch ends with the same bits.

    Args:
        prefix: Name of the split; begins every value's name (`val/accuracy`).
        make: Builds the metrics by name; called when the first block is counted, because torchmetrics is slow to
            import.
        device: Where metric states live: the device of the model's output.
        block: Number of steps counted at once.
        class_names: Names of classes or labels, for metrics that give one value for each.
        decode: Makes a text of tokens, for metrics of texts.
        undo: Turns learnt numbers into those of the data, for outputs and targets, before metrics see them.
    """

    def __init__(
        self,
        prefix: str,
        make: Callable[[], Mapping[str, Any]] = dict,
        *,
        device: torch.device | str = "cpu",
        block: int = 32,
        class_names: Sequence[str] = (),
        decode: Decode | None = None,
        undo: Callable[[Any], Any] | None = None,
    ) -> None:
        self._decode, self.undo = decode, undo or (lambda values: values)
        self.prefix, self.class_names, self.block = prefix, tuple(class_names), block
        self.figures_data: dict[str, Shaped] = {}
        self._told = False
        self._make, self._device, self._collection = make, torch.device(device), None  # type: Any, torch.device, Any
        self.reset()

    @property
    def made(self) -> dict[str, Any]:
        """The metrics by name; none before the first block is counted."""
        return {} if self._collection is None else self._collection.metrics()

    def reset(self) -> None:
        """Forget everything counted and queued."""
        self._queue: list[MetricRow] = []
        self._elements, self._loss = 0, LossMean(self.no_loss)
        self._logged: dict[str, LossMean] = {}
        if self._collection is not None:
            self._collection.reset()

    @property
    def _wide(self) -> torch.dtype:
        return torch.float32 if self._device.type == "mps" else torch.float64

    def anew(self) -> SplitMetrics:
        """Return the same metrics made anew, with nothing counted."""
        same: dict[str, Any] = {"block": self.block, "class_names": self.class_names, "decode": self._decode}
        return SplitMetrics(self.prefix, self._make, device=self._device, undo=self.undo, **same)

    @property
    def no_loss(self) -> Tensor:
        """A sum of losses to which nothing was added yet."""
        return torch.zeros((), dtype=self._wide, device=self._device)

    def collected(self) -> Collection:
        """Return the metrics, made now where they were not."""
        if self._collection is None:
            key = f"metrics.{self.prefix}"
            self._collection = Collection(sparingly(self._make), key=key, device=self._device, decode=self._decode)
        return self._collection

    def for_one_model(self) -> str:
        """Return the name of a metric that gives more than numbers, or keeps something over batches or epochs."""
        own = (name for name, one in self.collected().metrics().items() if gives_no_numbers(one) or keeps_more(one))
        return next(own, "")

    def check(self) -> None:
        """Make the metrics once, apart from those that count.

        Raises:
            UserError: One is no metric, or wants inputs of an unknown kind.
        """
        self.anew().collected()

    def update(
        self,
        preds: Any,
        target: Any,
        loss: Tensor,
        size: int,
        kwargs: Kwargs | None = None,
        weight: Tensor | int | None = None,
        log: Mapping[str, Any] | None = None,
    ) -> None:
        """Queue the results of one batch; do not change these tensors in place afterwards.

        Args:
            preds: Raw output of the model, samples in dimension 0, or a list of texts; None leaves the metrics alone.
            target: What it was compared with.
            loss: Mean loss over the samples of the batch, 0-d.
            size: Samples in the batch.
            kwargs: What the metrics get besides, by the names of their arguments, samples in dimension 0.
            weight: What the loss weighs among those of other batches; None stands for `size`.
            log: Further numbers by name: means over the samples of the batch, or one for each sample.
        """
        means = {name: torch.as_tensor(value, dtype=self._wide).detach().mean() for name, value in (log or {}).items()}
        if preds is not None and target is not None:
            preds, target = mapped(detached, preds), mapped(detached, target)
            kwargs = mapped(detached, dict(kwargs)) if kwargs else None
            self._elements += _count(preds)
        self._queue.append(
            MetricRow(preds, target, detached(loss), size, kwargs, mapped(detached, weight), means or None)
        )
        if len(self._queue) >= self.block or self._elements >= BLOCK_ELEMENTS:
            self._flush()

    def compute(self) -> dict[str, float]:
        """Return the values since `reset`: `val/loss` and each metric's (`val/f1`, for vectors `val/f1/<class>`).

        Results that are no numbers, such as matrices and curves, go to `figures_data`.
        """
        self._flush()
        if not self._loss.samples:
            return {f"{self.prefix}/loss": float("nan")}
        found = {"loss": self._loss.compute(), **{name: mean.compute() for name, mean in self._logged.items()}}
        self.figures_data = {}
        self._refuse_twice(())
        with torch.inference_mode(False), torch.no_grad():
            for name, result in ({} if self._collection is None else self._collection.compute()).items():
                with keys_under(f"metrics.{self.prefix}"):
                    numbers, rest = flatten(name, result, self.class_names, self._collection.find(name))
                self._refuse_twice(numbers)
                found.update(numbers)
                self.figures_data.update(rest)
        self._tell_missing(found)
        # one transfer for all values: each float() by itself would wait for the device
        values = torch.stack([value.to(self._device, self._wide) for value in found.values()]).tolist()
        return {f"{self.prefix}/{name}": value for name, value in zip(found, values)}

    def _refuse_twice(self, names: Iterable[str]) -> None:
        """Refuse numbers of the task that have the name of the loss or of a metric."""
        if twice := sorted(self._logged.keys() & {"loss", *names}):
            what = "logs a number under a name that is taken"
            raise UserError(
                what, key="trainer.task", received=f"{self.prefix}/{twice[0]}", fix="another name in log={…}"
            )

    def _tell_missing(self, found: Mapping[str, Any]) -> None:
        """Say once which metrics have no value, as the task handed nothing on to them."""
        if self._told:
            return
        self._told, given = True, [*found, *self.figures_data]
        for name in self.collected().names:
            if not any(f"{one}/".startswith((f"{name}/", f"{name}_")) for one in given):
                _LOG.warning("metrics.%s.%s has no value: the task gives no outputs for it", self.prefix, name)

    def _flush(self) -> None:
        """Count what is queued."""
        if not self._queue:
            return
        queue, self._queue, self._elements = self._queue, [], 0
        # tensors made in inference mode could not be changed outside of it later
        with torch.inference_mode(False), torch.no_grad():
            self._loss.add([(row.loss, row.size, row.weight) for row in counted(queue)])
            for name in dict.fromkeys(name for row in queue for name in row.log or ()):
                mean = self._logged.setdefault(name, LossMean(self.no_loss))
                mean.add([(row.log[name], row.size, None) for row in queue if row.log and name in row.log])
            inputs = [
                {"preds": self.undo(row.preds), "target": self.undo(row.target), **(row.kwargs or {})}
                for row in queue
                if row.preds is not None and row.target is not None
            ]
            apart = any(group.takes_batches for group in self.collected().groups) if inputs else False
            for named in inputs if apart else ():
                self.collected().update(**self._here(named), of_batches=True)
            for named in _joined(inputs):
                self.collected().update(**self._here(named), of_batches=False)

    def _here(self, named: dict[str, Any]) -> dict[str, Any]:
        """Move what the metrics get to the device of their states."""
        return mapped(lambda tensor: tensor.to(self._device), named)

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
        self._queue = counted(self._queue)
        queue = [tuple(row) for row in self._queue]  # nobody changes these tensors
        keeps = self._collection is not None and (self._loss.samples or any(map(outlasts, self.made.values())))
        metrics = self._collection.state_dict() if keeps else {}
        logged = {name: mean.state_dict() for name, mean in self._logged.items()}
        own = {"logged": logged} if logged else {}
        return {**self._loss.state_dict(), "queue": queue, "metrics": metrics, **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; the next values are those of a run that never stopped.

        Args:
            state: What `state_dict` gave.

        Raises:
            UserError: It holds counts of other metrics.
        """
        self.reset()
        self._loss.load_state_dict(state)
        for name, counted in state.get("logged", {}).items():
            self._logged[name] = LossMean(self.no_loss)
            self._logged[name].load_state_dict(counted)
        for saved in state["queue"]:
            row = MetricRow(*mapped(lambda tensor: tensor.to(self._device), tuple(saved)))
            self._queue.append(row)
            self._elements += _count(row.preds)
        if state["metrics"]:
            self.collected().load_state_dict(state["metrics"], self._device)


def _count(preds: Any) -> int:
    """Return how many values an output has; a text has as many as it has characters."""
    if isinstance(preds, (list, tuple)) and preds and isinstance(preds[0], str):
        return sum(map(len, preds))
    return preds.numel() if isinstance(preds, Tensor) else sum(tensor.numel() for tensor in tensors(preds))


def _joined(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join batches where their shapes allow it; sequences of unequal length stay apart."""
    if not batches or any(_kind(value) is None for value in batches[0].values()):
        return batches
    kinds = [{name: _kind(value) for name, value in batch.items()} for batch in batches]
    if any(kind != kinds[0] for kind in kinds):
        return batches
    return [{name: _together([batch[name] for batch in batches]) for name in batches[0]}]


def _kind(value: Any) -> Any:
    """Return what has to be equal for values of several batches to be joined; None where they never are."""
    if isinstance(value, Tensor):
        return (value.shape[1:], value.dtype, value.ndim, value.device) if value.ndim else None
    return list if type(value) is list else None


def _together(values: list[Any]) -> Any:
    return [item for value in values for item in value] if isinstance(values[0], list) else torch.cat(values)
