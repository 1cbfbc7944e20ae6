"""The weights of alike models in one stack, and what computes all of them at once.

Shapes: M models, B samples of a batch, `...` further dimensions.

Each model gets the masks that it draws alone. What `vmap` draws by itself is random in another way, so the masks are
drawn outside of it, in the order in which a model alone calls for them, and handed in.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from lightkit.common.errors import UserError
from lightkit.common.modules import layer_by_layer
from lightkit.device import Engine
from lightkit.ensemble.functions import (
    by_sample,
    cheap_cross_entropy,
    linears,
    linears_of_features,
    mean_cross_entropies,
    swapped,
)
from lightkit.ensemble.tasks import FastGradientSign
from lightkit.trainer.tasks import Criterion, StepOutput, Supervised, Task, loss_weight


class StackedModel(nn.Module):
    """The parameters and buffers of alike models, `(M, ...)` each, under the names that one model has for them.

    Args:
        models: The models.
        template: The one of them whose code is run, without its own weights; None takes the first.
    """

    def __init__(self, models: Sequence[nn.Module], template: nn.Module | None = None) -> None:
        super().__init__()
        self.template = template or models[0]
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


class Computation:
    """Runs a task with all models of a stack at once.

    Args:
        model: The stack.
        network: The first model as its own training would call it, with the hooks of its precision.
        task: How a batch becomes a loss.
        criterion: The loss.
        networks: Those of all models, where they drop other shares; none where all drop what the first one does.
    """

    def __init__(
        self,
        model: StackedModel,
        network: nn.Module,
        task: Task,
        criterion: Criterion,
        *,
        networks: Sequence[nn.Module] = (),
    ) -> None:
        self.networks = list(networks)
        self._attack = task if isinstance(task, FastGradientSign) else None
        self.model, self._network, self._criterion = model, network, criterion
        self._task = self._attack.task if self._attack else task
        self._slots = list(_slots(model.template, network))
        loss: Any = criterion if type(criterion) is nn.CrossEntropyLoss else None
        usual = loss and loss.weight is None and loss.reduction == "mean" and not loss.label_smoothing
        self._merges = by_sample(network) if usual and type(self._task) is Supervised else ""
        self._ignored: int = getattr(loss, "ignore_index", -100)
        self._has_preds = self._has_target = self._has_weight = True
        self._draws: dict[Any, list[list[Draw]]] = {}
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
        every = [own * times for own in (draws if self.networks else draws * len(seeds))]
        masks = drawn(every, seeds, batch[0].device) if draws[0] else ()
        if self._attack is None:
            return self._forward(batch, masks, shared=shared)
        left = iter(
            (masks[: len(draws[0])], masks[len(draws[0]) :])
        )  # a model alone draws them one after the other, too
        return self._attack.on_both(batch, lambda inputs: self._forward(inputs, next(left), shared=shared))

    def _forward(self, batch: Sequence[Tensor], masks: tuple[Tensor, ...], *, shared: bool) -> StepOutput:
        """Compute a batch with all models once."""
        merges = self._merges == "features" if shared else self._merges
        if merges and batch[1].dtype == torch.int64 and batch[1].ndim == 2 - shared:
            return self._merged(batch, masks, shared=shared)
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

    def _merged(self, batch: Sequence[Tensor], masks: Sequence[Tensor], *, shared: bool) -> StepOutput:
        """Compute a batch with all models as one, to which it is a batch of `M·B`; only layers with weights part it.

        Each operation is one of PyTorch's own then: `vmap` takes longer to translate one than a small one takes.
        """
        x, y = batch
        drops = replayed(masks) if masks else nullcontext()
        linear = partial(linears_of_features, shared=shared) if self._merges == "features" else linears
        with self._holding(self.model.tensors), drops, swapped({"linear": linear}):
            preds = self._network(x if shared else x.flatten(0, 1))
        y = y.expand(preds.shape[:2]) if shared else y
        preds = preds if preds.ndim == 3 else preds.unflatten(0, y.shape)
        losses, counted = mean_cross_entropies(preds, y, self._ignored)
        return StepOutput(losses, preds, y, weight=counted)

    def _one(self, tensors: Sequence[Tensor], batch: Any, masks: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with replayed(masks), cheap_cross_entropy(), layer_by_layer():
            return self._step(tensors, batch)

    def _calls(self, batch: Sequence[Tensor]) -> list[list[Draw]]:
        """Find out which masks each of the networks asks for with batches of this shape; none are masks of ones."""
        key = tuple((part.shape[1:], part.dtype) for part in batch)
        if key not in self._draws:
            found = list[list[Draw]]()
            for row, network in enumerate(self.networks or [self._network]):
                found.append([])
                with torch.no_grad(), recorded(found[-1]):
                    self._task.step(copy.deepcopy(network).train(), tuple(part[row] for part in batch), self._criterion)
            none = [draw._replace(probability=0.0) for draw in max(found, key=len)]
            if any([draw._replace(probability=0.0) for draw in own] not in ([], none) for own in found):
                raise ValueError("they drop something at other places")
            self._draws[key] = [own or none for own in found]
        return self._draws[key]

    def keep(self, rows: Sequence[int]) -> None:
        """Leave out all models but these."""
        self.networks = [self.networks[row] for row in rows] if self.networks else []
        self._draws.clear()

    @contextmanager
    def _holding(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Let the modules of the network hold these tensors inside."""
        before = [(holder, key, holder[key]) for holder, key, _ in self._slots]
        for holder, key, name in self._slots:
            holder[key] = tensors[name]
        try:
            yield
        finally:
            for holder, key, tensor in before:
                holder[key] = tensor

    def _step(self, tensors: Sequence[Tensor], batch: Any) -> tuple[Tensor, ...]:
        """Return loss, outputs, targets and what the loss weighs; the loss in place of what there is none of."""
        with self._holding(dict(zip(self.model.tensors, tensors))):
            step = self._task.step(self._network, batch, self._criterion)
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


_WHOLE_CHANNELS = {"dropout1d": 3, "dropout2d": 4, "dropout3d": 5}
"""Functions that drop whole channels, and the dimensions of their inputs."""
_PLAIN: dict[str, Callable[..., Any]] = {
    name: getattr(F, name) for name in ("dropout", *_WHOLE_CHANNELS, "scaled_dot_product_attention")
}


class Draw(NamedTuple):
    """One call for a mask."""

    function: str
    """Which of `torch.nn.functional`'s it is."""
    shape: tuple[int, ...]
    """Shape of the mask for one model."""
    stride: tuple[int, ...]
    """How it lies in memory, which decides about the order of its random numbers."""
    dtype: torch.dtype
    """Its number format."""
    probability: float
    """Share of elements that are dropped."""


def recorded(draws: list[Draw]) -> AbstractContextManager[None]:
    """Note the calls for masks that a model makes inside, which computes without dropout meanwhile.

    Args:
        draws: Gets the calls, in their order.
    """

    def note(name: str, like: Tensor, probability: float) -> Tensor:
        empty = torch.empty_like(like)
        draws.append(Draw(name, tuple(like.shape), tuple(empty.stride()), like.dtype, probability))
        return torch.ones_like(like)

    return _masked(note)


def replayed(masks: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Let a model use these masks inside, in the order in which it calls for them."""
    left = iter(masks)
    return _masked(lambda name, like, probability: next(left).reshape(like.shape))


def drawn(
    draws: Sequence[Sequence[Draw]], seeds: Sequence[Callable[[], None]], device: torch.device
) -> tuple[Tensor, ...]:
    """Draw the masks of many models, scaled by what they keep, `(M, ...)` each.

    Args:
        draws: What each model calls for, in the same places.
        seeds: Seeds the generators for each model.
        device: Where the models compute.
    """
    count = len(seeds)
    masks = [
        torch.empty_strided(
            (count, *draw.shape),
            (1 + sum((size - 1) * step for size, step in zip(draw.shape, draw.stride)), *draw.stride),
            dtype=draw.dtype,
            device=device,
        )
        for draw in draws[0]
    ]
    rows = [mask.unbind(0) for mask in masks]
    for model, seed in enumerate(seeds):
        seed()
        for draw, own in zip(draws[model], rows):
            if not draw.probability:
                own[model].fill_(1.0)
            elif device.type == "cpu" or draw.function in _WHOLE_CHANNELS:
                own[model].bernoulli_(1.0 - draw.probability)
            else:  # one kernel draws and scales there, and consumes other numbers
                own[model].copy_(_PLAIN["dropout"](torch.ones_like(own[model]), draw.probability) != 0)
    for mask, own, place in zip(masks, rows, zip(*draws)):
        shares = [1.0 - draw.probability for draw in place]
        for part, share in zip(own, shares) if len({*shares}) > 1 else [(mask, shares[0])]:
            part.div_(share)
    return tuple(masks)


def _masked(mask: Callable[[str, Tensor, float], Tensor]) -> AbstractContextManager[None]:
    """Let the functions of `torch.nn.functional` that drop something ask for their mask.

    Args:
        mask: Called with the name of the function, a tensor like the mask, and the share to drop.
    """
    drops = {name: _dropping(name, mask) for name in ("dropout", *_WHOLE_CHANNELS)}
    return swapped({**drops, "scaled_dot_product_attention": partial(_attention, mask)})


def _dropping(name: str, mask: Callable[[str, Tensor, float], Tensor]) -> Callable[..., Tensor]:
    """Make a function that takes the place of one that drops elements or channels."""

    def drop(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        of_channels = name in _WHOLE_CHANNELS
        if not training or p in (0.0, 1.0) or (of_channels and input.ndim != _WHOLE_CHANNELS[name]):
            plain: Tensor = _PLAIN[name](input, p, training)
            return plain
        channels = (
            input.flatten(2)[:, :, :1].reshape(*input.shape[:2], *[1] * (input.ndim - 2)) if of_channels else input
        )
        return input * mask(name, channels, p)

    return drop


def _attention(
    mask: Callable[[str, Tensor, float], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention step by step, as PyTorch does where it has no kernel for all of it; `vmap` has none."""
    if enable_gqa:
        options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        found: Tensor = _PLAIN["scaled_dot_product_attention"](query, key, value, attn_mask, dropout_p, **options)
        return found
    root = math.sqrt(scale if scale is not None else 1.0 / math.sqrt(query.shape[-1]))
    scores = (query * root) @ (key * root).transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        hidden = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if hidden else scores + attn_mask
    weights = scores.softmax(-1)
    if dropout_p:
        weights = weights * mask("scaled_dot_product_attention", weights, dropout_p)
    return weights @ value
