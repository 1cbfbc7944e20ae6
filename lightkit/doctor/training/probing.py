"""What checks of a model do with it: take the same batch, compute it, make a step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.assembly import Learner
from lightkit.common.modules import mapped
from lightkit.common.stepping import set_rate, take_step
from lightkit.data.loaders import Loader
from lightkit.data.transforms import alike_views
from lightkit.trainer.step import trial_stepper
from lightkit.trainer.tasks import StepOutput, Weighted

DROPPING = (nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.modules.dropout._DropoutNd)


@dataclass
class Heard:
    """The loss, which notes what it was given. In the place of the learner's own one it changes nothing.

    Args:
        criterion: The loss.
    """

    criterion: Any
    calls: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Outputs and targets of each call."""

    def __call__(self, preds: Tensor, target: Tensor) -> Tensor:
        """Compute the loss."""
        self.calls.append((preds, target))
        loss: Tensor = self.criterion(preds, target)
        return loss

    def __getattr__(self, name: str) -> Any:
        if name == "criterion":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.criterion, name)


def in_process(learner: Learner, loader: Loader, rows: Tensor, **changes: Any) -> Loader:
    """Return a loader of other rows that reads them in this process, without weights if the task can do without."""
    made = loader.with_rows(rows, num_workers=0, persistent_workers=False, pin_memory=False, **changes)
    made.weights = None if isinstance(learner.task, Weighted) else made.weights
    return made


def plain_loader(learner: Learner, split: str, *, rows: int, batch_size: int) -> Loader:
    """Make batches of the first rows of a split, those of an epoch in training, without augmentation or processes.

    A task that compares views of each training row gets them, all alike.
    """
    loader = learner.data.evaluation(split)
    if loader is None:
        raise ValueError(f"no split {split}")
    train = learner.data.train
    order = (train.order(0) if split == "train" else loader.rows)[:rows]
    views = alike_views(train.prepare.augment) if split == "train" else []
    return in_process(learner, loader, order, batch_size=min(batch_size, len(order)), augment=views)


def plain_batch(learner: Learner, rows: int) -> Any:
    """Read training rows as one batch on the device, without augmentation."""
    return next(batches_of(learner, plain_loader(learner, "train", rows=rows, batch_size=rows)))


def batches_of(learner: Learner, loader: Loader, epoch: int = 0) -> Iterator[Any]:
    """Yield the batches of a loader on the device."""
    with closing(loader.epoch(epoch)) as read:
        for batch in read:
            yield learner.engine.move(batch)


def training_batches(learner: Learner, steps: int, size: int) -> Iterator[Any]:
    """Yield batches as training gets them, augmented and mixed, but read by this process.

    Args:
        learner: Its data are read.
        steps: Batches.
        size: Rows of each.
    """
    train = learner.data.train
    epochs = range(-(-steps * size // train.epoch_samples))  # small data give few batches each
    rows = torch.cat([train.order(epoch) for epoch in epochs])[: steps * size]
    yield from batches_of(learner, in_process(learner, train, rows, batch_size=size, shuffle=False, drop_last=False))


def compute(learner: Learner, batch: Any, criterion: Any = None, *, key: int | None = 0) -> StepOutput:
    """Compute the loss of a batch as training does.

    Args:
        learner: What is trained.
        batch: The batch.
        criterion: In the place of its own loss.
        key: What random numbers depend on alone; None goes on with those there are.
    """
    if key is not None:
        learner.engine.seed(0, key)
    with learner.engine.autocast():
        return learner.task.step(learner.network, batch, criterion or learner.criterion)


def train_step(learner: Learner, batch: Any, *, key: int = 0, optimizer: Optimizer | None = None) -> float:
    """Make an optimizer step with a batch.

    Args:
        learner: What is trained.
        batch: The batch.
        key: What random numbers depend on.
        optimizer: In the place of the learner's own one.

    Returns:
        The loss before it.
    """
    stepper = trial_stepper(learner, optimizer)
    stepper.micro(batch, position=key, size=1, window=1, more=False)
    stepper.update(usable=True, want_norm=False)
    return float(stepper.loss.detach())


def some_steps(learner: Learner, steps: int, rows: int) -> list[Any]:
    """Make some steps of training, and return their batches."""
    learner.network.train()
    batches = [*training_batches(learner, steps, rows)]
    for number, batch in enumerate(batches):
        train_step(learner, mapped(torch.clone, batch), key=number)
    return batches


def own_rates(learner: Learner) -> list[float]:
    """Return the learning rate of each group without what the schedule makes of it: a warm-up begins far below."""
    return [float(group.get("initial_lr", group["lr"])) for group in learner.optimizer.param_groups]


def warmed(optimizer: Optimizer, rates: Sequence[float], steps: float) -> Iterator[int]:
    """Yield the numbers of steps, before each of which the rates of an optimizer rise.

    Args:
        optimizer: Its rates are set.
        rates: The rate of each of its groups in the end.
        steps: Steps over which they rise.
    """
    for number in count():
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            set_rate(group, rate * min(1.0, (number + 1) / max(1.0, steps)))
        yield number


def fitted(
    loss: Callable[[Tensor], Tensor], start: Tensor, *, rate: float, steps: int, enough: float = 0.0
) -> tuple[list[float], Tensor]:
    """Make outputs better by the loss itself, without a network.

    Args:
        loss: Of outputs.
        start: The outputs to begin with.
        rate: Learning rate of Adam.
        steps: Most steps.
        enough: A loss below which it ends.

    Returns:
        The loss before each step, and the outputs with the lowest.
    """
    free = nn.Parameter(start.detach().float().clone().contiguous())
    optimizer, losses, best = torch.optim.Adam([free], lr=rate), list[float](), start
    for _ in range(steps):
        value = loss(free)
        losses.append(float(value.detach()))
        best = free.detach().clone() if losses[-1] == min(losses) else best
        if not value.requires_grad or not math.isfinite(losses[-1]) or 0 <= losses[-1] < enough:
            break
        optimizer.zero_grad()
        value.backward()
        take_step(optimizer)
    return losses, best


def alike(one: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Tell whether two tensors are the same but for rounding; NaN is like NaN."""
    return one.shape == other.shape and torch.allclose(one.float(), other.detach().float(), rtol, atol, equal_nan=True)


def without_dropout(model: nn.Module) -> None:
    """Put a model into training mode, but let it drop nothing: so that the same batch gives the same loss."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.dropout = 0.0
        elif isinstance(module, DROPPING) or type(module).__name__ in ("DropPath", "StochasticDepth"):
            module.eval()


def seeded(learner: Learner, number: int) -> None:
    """Give what is evaluated next random numbers of its own."""
    learner.engine.seed_validation(number)


def outputs(learner: Learner, loader: Loader, *, key: int = 0) -> list[Tensor]:
    """Evaluate a loader and return what the model gives for its samples, one tensor a batch; empty where nothing."""
    learner.network.eval()
    seeded(learner, key)
    with torch.no_grad():
        given = [compute(learner, batch, key=None).preds for batch in batches_of(learner, loader)]
    return [preds.detach().float().cpu() for preds in given if isinstance(preds, Tensor)]


_OWN = {"training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_is_full_backward_hook"}


def modules_of(learner: Learner) -> Iterator[tuple[str, Any]]:
    """Yield the modules of the model by their names, then the loss and the task."""
    yield from learner.model.named_modules()
    for name, part in (("loss", learner.criterion), ("trainer.task", learner.task)):
        if isinstance(part, nn.Module):
            yield from ((f"{name}.{place}".rstrip("."), module) for place, module in part.named_modules())
        elif hasattr(part, "__dict__"):
            yield name, part


def attributes_of(learner: Learner) -> Iterator[tuple[str, Any]]:
    """Yield what modules, loss and task hold beside parameters, buffers and modules, by the full name of each."""
    for place, module in modules_of(learner):
        for name, value in vars(module).items():
            if name not in _OWN and not (name.startswith("_") and name.endswith("_hooks")):
                yield f"{place}.{name}".lstrip("."), value


def contents(value: Any) -> list[Any]:
    """Return what an attribute holds: the entries of a list or dict, also of those in it, or itself."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple | set | deque):
        return [part for each in value for part in (contents(each) if isinstance(each, list | tuple) else [each])]
    return [value]


def kept_graphs(learner: Learner, most: int = 3000) -> dict[str, int]:
    """Return the attributes that hold results of a computation with its graph, and how many operations that has.

    Args:
        learner: What is trained.
        most: Operations after which counting ends.
    """
    graphs = dict[str, int]()
    for name, value in attributes_of(learner):
        begun = [each.grad_fn for each in contents(value) if isinstance(each, Tensor) and each.grad_fn is not None]
        seen, waiting = set[Any](), list[Any](begun)
        while waiting and len(seen) < most:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [following for following, _ in node.next_functions]
        if seen:
            graphs[name] = len(seen)
    return graphs


def state_of(learner: Learner) -> dict[str, Any]:
    """Return the numbers, texts and tensors in attributes, which are in no checkpoint; tensors as copies."""
    state = dict[str, Any]()
    for name, value in attributes_of(learner):
        parts = contents(value)
        if parts and all(isinstance(each, bool | int | float | str | Tensor) for each in parts):
            state[name] = [each.detach().clone() if isinstance(each, Tensor) else each for each in parts]
    return state


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names of the attributes that are not the same in both, or that one of them lacks."""
    return [name for name in {**one, **other} if not _same(one.get(name, ()), other.get(name, ()))]


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(
        isinstance(a, Tensor) is isinstance(b, Tensor)
        and (a.shape == b.shape and bool((a == b).all()) if isinstance(a, Tensor) else a == b)
        for a, b in zip(one, other, strict=True)
    )
