"""The weights of alike models in one stack, and what computes all of them at once.

Shapes: M models, B samples of a batch, `...` further dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lightkit.common.errors import UserError
from lightkit.data.loaders import Batches, Loader
from lightkit.device import Engine
from lightkit.ensemble.dropout import Draw, drawn, recorded, replayed
from lightkit.ensemble.tasks import FastGradientSign
from lightkit.trainer.tasks import Criterion, StepOutput, Task


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
        self._saved_names = tuple(models[0].state_dict())

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All of them by name."""
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
        found = {name: own[name] for name in self._saved_names if name in own}
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


class Computed(NamedTuple):
    """What one batch gives: see `StepOutput`; everything has the models in dimension 0."""

    losses: Tensor
    preds: Tensor | None
    target: Tensor | None


class Computation:
    """Runs a task with all models of a stack at once.

    Args:
        model: The stack.
        network: The first model as its own training would call it, with the hooks of its precision.
        task: How a batch becomes a loss.
        criterion: The loss.
    """

    def __init__(self, model: StackedModel, network: nn.Module, task: Task, criterion: Criterion) -> None:
        self.model = model
        self._attack = task if isinstance(task, FastGradientSign) else None
        self._whole = _Whole(network, self._attack.task if self._attack else task, criterion)
        self._draws: dict[Any, list[Draw]] = {}
        self._together: dict[Any, Callable[..., Any]] = {}

    def __call__(
        self, batch: Sequence[Tensor], *, shared: bool = False, seeds: Sequence[Callable[[], None]] = ()
    ) -> Computed:
        """Compute a batch.

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
        found = self._attack.on_both(
            batch, lambda inputs: StepOutput(*self._forward(inputs, next(left), shared=shared))
        )
        return Computed(found.loss, found.preds, found.target)

    def _forward(self, batch: Sequence[Tensor], masks: tuple[Tensor, ...], *, shared: bool) -> Computed:
        """Compute a batch with all models once."""
        key = shared, self.model.training, bool(masks)
        if key not in self._together:
            self._together[key] = vmap(self._one, in_dims=(0, None if shared else 0, 0 if masks else None))
        losses, preds, target = self._together[key](self.model.tensors, tuple(batch), masks)
        return Computed(losses, preds if self._whole.has_preds else None, target if self._whole.has_target else None)

    def _one(self, tensors: Mapping[str, Tensor], batch: Any, masks: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with replayed(masks):
            found: tuple[Tensor, ...] = functional_call(self._whole, _below(tensors), (batch,))
        return found

    def _calls(self, batch: Sequence[Tensor]) -> list[Draw]:
        """Find out which masks a model asks for with batches of this shape, by computing one with the first model."""
        key = tuple((part.shape[1:], part.dtype) for part in batch)
        if key not in self._draws:
            draws = self._draws[key] = []
            own = {name: tensor[0].clone() for name, tensor in self.model.tensors.items()}
            with torch.no_grad(), recorded(draws):
                functional_call(self._whole, _below(own), (tuple(part[0] for part in batch),))
        return self._draws[key]


class _Whole(nn.Module):
    """Network, task and loss as one module, in which `functional_call` puts the weights in their place."""

    def __init__(self, network: nn.Module, task: Task, criterion: Criterion) -> None:
        super().__init__()
        self.network, self.criterion, self._step = network, criterion, task.step
        self.has_preds = self.has_target = True

    def forward(self, batch: Any) -> tuple[Tensor, ...]:
        """Return loss, predictions and targets; the loss in place of what there is none of."""
        step = self._step(self.network, batch, self.criterion)
        if step.metric_kwargs:
            what = "the metrics take more than output and target"
            raise UserError(what, key="trainer.task", received=", ".join(step.metric_kwargs))
        self.has_preds, self.has_target = step.preds is not None, step.target is not None
        return step.loss, *(step.loss if part is None else part for part in (step.preds, step.target))


def _below(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"network.{name}": tensor for name, tensor in tensors.items()}


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
        return StepOutput(*self.computation(batch, shared=self._shared))


def seeders(engines: Sequence[Engine], epoch: int, position: int) -> list[Callable[[], None]]:
    """Return what seeds the generators for each member's batch, as its own training would."""
    return [lambda engine=engine: engine.seed(epoch, position) for engine in engines]  # type: ignore[misc]
