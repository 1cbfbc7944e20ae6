"""What model, loss and task keep in attributes, of which PyTorch does not know or which change in training."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from lightkit.assembly import Learner

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
