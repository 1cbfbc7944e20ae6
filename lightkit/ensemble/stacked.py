"""The weights of alike models in one stack, and what computes all of them at once.

Shapes: M models, B samples of a batch, `...` further dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from lightkit.common.errors import UserError
from lightkit.data.loaders import Batches, Loader
from lightkit.device import Engine
from lightkit.ensemble.dropout import Draw, drawn, layer_by_layer, recorded, replayed
from lightkit.ensemble.tasks import FastGradientSign
from lightkit.trainer.tasks import Criterion, StepOutput, Task, loss_weight


class StackedModel(nn.Module):
    """The parameters and buffers of alike models, `(M, ...)` each, under the names that one model has for them.

    Args:
        models: The models. The first serves as the one whose code is run; its own weights are not used.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.template = models[0]
        weights = [dict(model.named_parameters()) for model in models]
        buffers = [dict(model.named_buffers()) for model in models]
        self.weights = {
            name: nn.Parameter(torch.stack([own[name].detach() for own in weights]), requires_grad=first.requires_grad)
            for name, first in weights[0].items()
        }
        self.states = {name: torch.stack([own[name].detach() for own in buffers]) for name in buffers[0]}
        self._saved_names = _saved_names(models[0])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return all of them by name."""
        return {**self.weights, **self.states}

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the stacked parameters by name."""
        yield from self.weights.items()

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yield the stacked parameters."""
        yield from self.weights.values()

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the stacked buffers."""
        yield from self.states.values()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the stacked tensors that a model saves, by its names; the same tensors with `keep_vars`."""
        own = self.tensors
        found = {saved: own[name] for saved, name in self._saved_names.items()}
        return found if kwargs.get("keep_vars") else {name: tensor.detach() for name, tensor in found.items()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Copy stacked tensors in."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state_dict[name])

    def keep(self, rows: Tensor) -> None:
        """Leave out all models but these, `(K,)` int64; the tensors stay the same objects."""
        for tensor in self.tensors.values():
            tensor.data = tensor.data.index_select(0, rows)


def _saved_names(model: nn.Module) -> dict[str, str]:
    """Return every name that a model saves a tensor under, with the first one that it has for that tensor.

    A tensor that several modules share, such as a tied weight, is stacked once and saved under each of its names.
    """
    first = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    known = {
        name: first[id(tensor)]
        for found in (model.named_parameters, model.named_buffers)
        for name, tensor in found(remove_duplicate=False)
    }
    return {name: known[name] for name in model.state_dict() if name in known}


class StackedLoader:
    """Batches of many members, `(M, B, ...)` each: of every member its own rows, order and augmentation.

    Args:
        loaders: Those of the members, over the same data set, with as many rows each.
    """

    def __init__(self, loaders: Sequence[Loader]) -> None:
        first = loaders[0]
        self.loaders = list(loaders)
        self.num_samples, self.batch_size, self.epoch_samples = first.num_samples, first.batch_size, first.epoch_samples
        self.options, self.source = first.options, first.source

    def __len__(self) -> int:
        return len(self.loaders[0])

    @property
    def plain(self) -> bool:
        """Tell whether the rows of all members can be read from the data set at once."""
        return all(
            loader.mixup is None and not loader.prepare.augment and loader.prepare.normalizer is None
            for loader in self.loaders
        )

    def keep(self, rows: Sequence[int]) -> None:
        """Leave out all members but these, from the next epoch on."""
        self.loaders = [self.loaders[row] for row in rows]

    def epoch(self, epoch: int, start: int = 0) -> Batches:
        """Yield the batches of an epoch from a sample on; see `Loader.epoch`."""
        if not self.plain:
            for batches in zip(*(loader.epoch(epoch, start) for loader in self.loaders), strict=True):
                yield tuple(torch.stack(parts) for parts in zip(*batches, strict=True))
            return
        orders = torch.stack([loader.order(epoch) for loader in self.loaders])
        for first in range(start, self.epoch_samples, self.batch_size):
            rows = orders[:, first : min(first + self.batch_size, self.epoch_samples)]
            x, y = self.source.take(rows.reshape(-1))
            yield x.unflatten(0, rows.shape), y.unflatten(0, rows.shape)

    def close(self) -> None:
        """Close the loaders of the members."""
        for loader in self.loaders:
            loader.close()


class Computation:
    """Runs a task with all models of a stack at once.

    Args:
        model: The stack.
        network: The first model as its own training would call it, with the hooks of its precision.
        task: How a batch becomes a loss.
        criterion: The loss.
    """

    def __init__(self, model: StackedModel, network: nn.Module, task: Task, criterion: Criterion) -> None:
        self._attack = task if isinstance(task, FastGradientSign) else None
        self.model, self._network, self._criterion = model, network, criterion
        self._task = self._attack.task if self._attack else task
        self._slots = list(_slots(model.template, network))
        self._has_preds = self._has_target = self._has_weight = True
        self._draws: dict[Any, list[Draw]] = {}
        self._together: dict[Any, Callable[..., Any]] = {}

    def __call__(
        self, batch: Sequence[Tensor], *, shared: bool = False, seeds: Sequence[Callable[[], None]] = ()
    ) -> StepOutput:
        """Compute a batch: loss, outputs, targets and weight have the models in dimension 0.

        Args:
            batch: Its tensors; `(M, B, ...)` each.
            shared: All models get the same batch, `(B, ...)` each.
            seeds: Seeds the generators for each model, in training.
        """
        if not self.model.training:
            return self._forward(batch, (), shared=shared)
        draws, times = self._calls(batch), 2 if self._attack else 1
        masks = drawn(draws * times, seeds, batch[0].device) if draws else ()
        if self._attack is None:
            return self._forward(batch, masks, shared=shared)
        left = iter((masks[: len(draws)], masks[len(draws) :]))  # a model alone draws them one after the other, too
        return self._attack.on_both(batch, lambda inputs: self._forward(inputs, next(left), shared=shared))

    def _forward(self, batch: Sequence[Tensor], masks: tuple[Tensor, ...], *, shared: bool) -> StepOutput:
        """Compute a batch with all models once."""
        tensors = tuple(self.model.tensors.values())
        if shared not in self._together:
            self._together[shared] = vmap(self._one, in_dims=(0, None, 0) if shared else 0)
        losses, preds, target, weight = self._together[shared](tensors, tuple(batch), masks)
        return StepOutput(
            losses,
            preds if self._has_preds else None,
            target if self._has_target else None,
            weight=weight.detach() if self._has_weight else len(batch[0] if shared else batch[0][0]),
        )

    def _one(self, tensors: Sequence[Tensor], batch: Any, masks: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with replayed(masks), cheap_cross_entropy(), layer_by_layer():
            return self._step(tensors, batch)

    def _calls(self, batch: Sequence[Tensor]) -> list[Draw]:
        """Find out which masks a model asks for with batches of this shape, by computing one with the first model."""
        key = tuple((part.shape[1:], part.dtype) for part in batch)
        if key not in self._draws:
            draws = self._draws[key] = []
            own = [tensor[0].clone() for tensor in self.model.tensors.values()]
            with torch.no_grad(), recorded(draws):
                self._step(own, tuple(part[0] for part in batch))
        return self._draws[key]

    def _step(self, tensors: Sequence[Tensor], batch: Any) -> tuple[Tensor, ...]:
        """Return loss, outputs, targets and what the loss weighs; the loss in place of what there is none of."""
        by_name = dict(zip(self.model.tensors, tensors))
        before = [(holder, key, holder[key]) for holder, key, _ in self._slots]
        for holder, key, name in self._slots:
            holder[key] = by_name[name]
        try:
            step = self._task.step(self._network, batch, self._criterion)
        finally:
            for holder, key, tensor in before:
                holder[key] = tensor
        for what, more in (("the metrics take more", step.metric_kwargs), ("the task logs more", step.log)):
            if more:
                raise UserError(f"{what} than output and target", key="trainer.task", received=", ".join(more))
        weight = loss_weight(step, self._criterion)
        weight = torch.full_like(step.loss, weight) if isinstance(weight, int) else weight
        parts = (step.preds, step.target, weight)
        self._has_preds, self._has_target, self._has_weight = (part is not None for part in parts)
        return step.loss, *(step.loss if part is None else part for part in parts)


def _slots(template: nn.Module, network: nn.Module) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield every place in the modules of a network that holds a tensor, with the name that its model has for it.

    `torch.func.functional_call` looks for these places in every step, which takes as long as a small layer.
    """
    names = {id(tensor): name for name, tensor in (*template.named_parameters(), *template.named_buffers())}
    holders: list[dict[str, Any]] = [
        cast("dict[str, Any]", holder)
        for module in network.modules()
        for holder in (module._parameters, module._buffers)
    ]
    for holder in holders:
        yield from ((holder, key, names[id(tensor)]) for key, tensor in holder.items() if tensor is not None)


@contextmanager
def cheap_cross_entropy() -> Iterator[None]:
    """Let `torch.nn.functional.cross_entropy` be a few plain operations inside.

    `vmap` would spell it out in Python at every call, in more operations, which give the same bits.
    """
    F.cross_entropy = _cross_entropy
    try:
        yield
    finally:
        F.cross_entropy = _CROSS_ENTROPY


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the cross-entropy, by plain operations where it is the mean over classes that are given as numbers."""
    usual = weight is None and size_average is None and reduce is None and reduction == "mean" and not label_smoothing
    numbers = target.dtype == torch.int64 and input.dtype in (torch.float32, torch.float64)
    if not usual or not numbers or input.ndim < 2 or input.ndim != target.ndim + 1:
        options: dict[str, Any] = {"reduction": reduction, "label_smoothing": label_smoothing}
        return _CROSS_ENTROPY(input, target, weight, size_average, ignore_index, reduce, **options)
    counted = target != ignore_index
    picked = F.log_softmax(input, 1).gather(1, torch.where(counted, target, 0).unsqueeze(1)).squeeze(1)
    return torch.where(counted, picked, 0.0).sum() / -counted.sum()


_CROSS_ENTROPY = F.cross_entropy


class StackedTask(Task):
    """The task of many models at once, for an evaluation.

    Args:
        computation: Computes a batch.
        shared: Whether all models see the same batches.
    """

    def __init__(self, computation: Computation, *, shared: bool = True) -> None:
        self.computation, self._shared = computation, shared

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Return the losses `(M,)`, outputs and targets `(M, B, ...)` of a batch; see `Task.step`."""
        return self.computation(batch, shared=self._shared)


def seeders(engines: Sequence[Engine], epoch: int, position: int) -> list[Callable[[], None]]:
    """Return what seeds the generators for each member's batch, as its own training would."""
    return [lambda engine=engine: engine.seed(epoch, position) for engine in engines]  # type: ignore[misc]
