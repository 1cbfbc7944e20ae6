"""What checks of a model do with it: take the same batch, compute it, make a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.assembly import Learner
from lightkit.data.loaders import Loader
from lightkit.trainer.tasks import StepOutput

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
        return getattr(self.criterion, name)


def plain_loader(learner: Learner, split: str, *, rows: int, batch_size: int) -> Loader:
    """Make batches of the first rows of a split, those of an epoch in training, without augmentation or processes."""
    data = learner.data
    loader = data.evaluation(split)
    if loader is None:
        raise ValueError(f"no split {split}")
    order = data.train.order(0) if split == "train" else loader.rows
    size = min(batch_size, len(order[:rows]))
    return loader.with_rows(order[:rows], batch_size=size, num_workers=0, persistent_workers=False, pin_memory=False)


def plain_batch(learner: Learner, rows: int) -> Any:
    """Read training rows as one batch on the device, without augmentation."""
    return next(batches_of(learner, plain_loader(learner, "train", rows=rows, batch_size=rows)))


def batches_of(learner: Learner, loader: Loader) -> Iterator[Any]:
    """Yield the batches of a loader on the device."""
    with closing(loader.epoch(0)) as read:
        for batch in read:
            yield learner.engine.move(batch)


def training_batches(learner: Learner, count: int, size: int) -> Iterator[Any]:
    """Yield batches as training gets them, augmented and mixed, but read by this process.

    Args:
        learner: Its data are read.
        count: Batches.
        size: Rows of each.
    """
    train = learner.data.train
    epochs = range(-(-count * size // train.num_samples))  # small data give few batches each
    rows = torch.cat([train.order(epoch) for epoch in epochs])[: count * size]
    changes: dict[str, Any] = {"num_workers": 0, "persistent_workers": False, "pin_memory": False}
    yield from batches_of(learner, train.with_rows(rows, batch_size=size, shuffle=False, drop_last=False, **changes))


def compute(learner: Learner, batch: Any, criterion: Any = None, *, key: int = 0) -> StepOutput:
    """Compute the loss of a batch as training does, with random numbers that depend on `key` alone."""
    learner.engine.seed(0, key)
    with learner.engine.autocast():
        return learner.task.step(learner.network, batch, criterion or learner.criterion)


def train_step(learner: Learner, batch: Any, *, key: int = 0) -> float:
    """Make an optimizer step with a batch.

    Returns:
        The loss before it.
    """
    step = compute(learner, batch, key=key)
    learner.engine.backward(step.loss)
    learner.engine.step(learner.optimizer)
    return float(step.loss.detach())


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
    found = []
    learner.network.eval()
    seeded(learner, key)
    with torch.no_grad():
        for batch in batches_of(learner, loader):
            with learner.engine.autocast():
                step = learner.task.step(learner.network, batch, learner.criterion)
            if isinstance(step.preds, Tensor):
                found.append(step.preds.detach().float().cpu())
    return found


def sized(count: int, noun: str) -> str:
    """Write a number with its noun: `1 row`, `1,200 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(share: float) -> str:
    """Write a share: `0.42 %`, `4.2 %`, `150 %`."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def named(names: list[str], most: int = 3) -> str:
    """Write the first of some names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


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
    found = dict[str, int]()
    for name, value in attributes_of(learner):
        begun = [each.grad_fn for each in contents(value) if isinstance(each, Tensor) and each.grad_fn is not None]
        seen, waiting = set[Any](), list[Any](begun)
        while waiting and len(seen) < most:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [following for following, _ in node.next_functions]
        if seen:
            found[name] = len(seen)
    return found


def state_of(learner: Learner) -> dict[str, Any]:
    """Return the numbers, texts and tensors in attributes, which are in no checkpoint; tensors as copies."""
    found = dict[str, Any]()
    for name, value in attributes_of(learner):
        parts = contents(value)
        if parts and all(isinstance(each, bool | int | float | str | Tensor) for each in parts):
            found[name] = [each.detach().clone() if isinstance(each, Tensor) else each for each in parts]
    return found


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names of the attributes that are not the same in both, or that one of them lacks."""
    return [name for name in {**one, **other} if not _same(one.get(name, ()), other.get(name, ()))]


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and bool((a == b).all())):
                return False
        elif a != b:
            return False
    return True
