"""The state that the objects of a run have besides what a checkpoint saves, by the path of each value."""

from __future__ import annotations

import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lightkit.assembly import Learner
from lightkit.metrics import SplitMetrics
from lightkit.runner.proving.trace import digest
from lightkit.trainer.guard import KEPT

_PLAIN = (int, float, complex, str, bytes, bool, type(None), np.generic)
_GENERATORS = (np.random.Generator, np.random.RandomState, torch.Generator, random.Random)
_VALUES = (*_PLAIN, *_GENERATORS, Tensor, np.ndarray, itertools.count)
_CONTAINERS = (list, tuple, set, frozenset, deque, Mapping)
_LARGE = 1 << 14
"""Elements of a tensor or a container from which on only so many of them are looked at."""
_DEEP, _MOST = 6, 20_000
"""How far objects are followed, and how many values are looked at."""
_FOREIGN = frozenset({*sys.stdlib_module_names, "numpy", "omegaconf", "pandas", "PIL"})
_SHIPPED = ("lightkit", "torchmetrics")
"""Whose parts hold nothing of their own that a resume could lose."""
_MACHINERY = (
    "lightkit.trainer.loop", "lightkit.trainer.state", "lightkit.loggers", "lightkit.device", "lightkit.checkpoint",
)  # fmt: skip
"""Where classes are from that are part of no run's state, although a callback may hold on to one."""
_TEXT = 60


class LiveValue(NamedTuple):
    """A value at a moment."""

    digest: str
    """The same for the same value."""
    text: str
    """The value in words."""
    refills: bool
    """Whether it is of a kind that is filled when it is needed: a cache that is empty after a resume fills again."""


def objects_of(parts: Learner) -> dict[str, Any]:
    """Return the objects of a run by the keys of the configuration that they come from."""
    source, train = parts.data.source, parts.data.train
    found: dict[str, Any] = {
        "model": parts.model,
        "loss": parts.criterion,
        "trainer.task": parts.task,
        "scheduler": parts.scheduler,
        "optim": parts.optimizer,
        "data.dataset": getattr(source, "base", source),
        "data.augment": list(train.prepare.augment),
    }
    own = {name: part for name, part in parts.callbacks.items() if name != KEPT}
    return found | {f"trainer.callbacks.{name}": part for name, part in own.items()}


def metrics_of(parts: Learner) -> dict[str, Any]:
    """Return the metrics by their keys; they are made when they first count something."""
    return {
        f"metrics.{split}.{name}": metric
        for split, counted in parts.metrics.items()
        if isinstance(counted, SplitMetrics)
        for name, metric in counted.made.items()
    }


def live_state(objects: Mapping[str, Any]) -> dict[str, LiveValue]:
    """Return everything that objects have in them and no checkpoint saves by itself, by path.

    The attributes of parts of lightkit and torchmetrics are left out, as they are saved or do no harm; objects of
    others in them are not. Also left out are parameters and buffers of the model, and states that a metric has
    registered. What a callback or a scheduler saves is looked at: after a resume it is what it was, or it is not saved
    in truth.

    Args:
        objects: From `objects_of`.
    """
    model = objects.get("model")
    saved = set[int]()
    for module in model.modules() if isinstance(model, nn.Module) else ():
        buffers = (item for name, item in module._buffers.items() if name not in module._non_persistent_buffers_set)
        saved |= {id(tensor) for tensor in (*module._parameters.values(), *buffers) if tensor is not None}
    walk, found = _StateWalk(saved), dict[str, LiveValue]()
    walk.seen.update(id(item) for item in objects.values() if not isinstance(item, _CONTAINERS))
    for name, item in objects.items():
        walk.seen.discard(id(item))
        found.update(walk.values_below(name, item, 0))
    return found


class _StateWalk:
    """A walk through nested objects that visits each of them once."""

    def __init__(self, saved: set[int]) -> None:
        self.saved, self.seen, self.left = saved, set[int](), _MOST

    def values_below(self, path: str, thing: Any, depth: int) -> Iterator[tuple[str, LiveValue]]:
        """Yield the values below an object or a container, or the value itself."""
        if id(thing) in self.saved or depth > _DEEP or self.left < 0:
            return
        if isinstance(thing, _VALUES) or (isinstance(thing, _CONTAINERS) and _is_plain(thing)):
            self.left -= 1
            refills = thing is None or isinstance(thing, (Mapping, set, frozenset))
            yield path, LiveValue(digest(_sample(thing)), _in_words(thing), refills)
        elif id(thing) not in self.seen:
            self.seen.add(id(thing))
            for name, part in _parts(thing):
                yield from self.values_below(f"{path}{name}", part, depth + 1)


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is nested in an object or a container, with the end of its path."""
    if isinstance(thing, Mapping):
        yield from ((f".{name}", part) for name, part in itertools.islice(thing.items(), _LARGE))
    elif isinstance(thing, _CONTAINERS):
        yield from ((f"[{number}]", part) for number, part in enumerate(itertools.islice(thing, _LARGE)))
    elif _is_state(thing):
        yield from ((f".{name}", part) for name, part in _attributes(thing))


def _is_state(thing: Any) -> bool:
    """Tell whether attributes of an object may be state: not those of functions, of the loop or of other libraries."""
    kind = type(thing)
    if isinstance(thing, (type, ModuleType)) or not hasattr(thing, "__dict__"):
        return False
    root = kind.__module__.partition(".")[0]
    if root == "torch":
        return kind.__module__.startswith(("torch.nn.", "torch.optim.", "torch.utils.data."))
    return root not in _FOREIGN and not kind.__module__.startswith(_MACHINERY)


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object but for those of its library; what is in a module by the name it has there."""
    own, root = dict(vars(thing)), type(thing).__module__.partition(".")[0]
    if isinstance(thing, nn.Module):
        for kind in ("_parameters", "_buffers", "_modules"):
            yield from own.pop(kind, {}).items()
        own = {} if root == "torch" else own
    known = _of_library(thing)
    for name, part in own.items():
        if name not in known and (root not in _SHIPPED or not isinstance(part, _VALUES)):
            yield name, part


def _of_library(thing: Any) -> set[str]:
    """Return the names of the attributes that an object has because of the library that its class builds on."""
    known = set[str]()
    if isinstance(thing, nn.Module):
        known |= {*vars(nn.Module())}
    if isinstance(thing, torch.optim.Optimizer):
        weights = [nn.Parameter(torch.zeros(1))]
        for fused in (False, True):  # which notes that it has looked at its weights
            known |= {*vars(torch.optim.SGD(weights, lr=0.1, fused=fused)), "state", "param_groups"}
    if hasattr(thing, "_defaults") and hasattr(thing, "add_state"):  # a metric of torchmetrics
        known |= {*_of_metric(), *thing._defaults}
    return known


@cache
def _of_metric() -> frozenset[str]:
    """Return the names of the attributes that every metric of torchmetrics has."""
    from torchmetrics import Metric

    class Plain(Metric):
        def update(self) -> None:
            """Do nothing."""

        def compute(self) -> None:
            """Do nothing."""

    return frozenset({*vars(Plain()), "validate_args"})  # lightkit checks the first batch only


def _is_plain(container: Any) -> bool:
    """Tell whether a container holds nothing but values, so that it is one itself."""
    items = container.values() if isinstance(container, Mapping) else container
    return all(
        isinstance(item, _VALUES) or (isinstance(item, _CONTAINERS) and _is_plain(item))
        for item in itertools.islice(items, _LARGE)
    )


def _sample(thing: Any) -> Any:
    """Reduce a value to a size that takes no time to hash: of a large one, evenly spaced elements."""
    for kind, state in _STATES.items():
        if isinstance(thing, kind):
            return state(thing)
    if isinstance(thing, np.ndarray):
        thing = torch.from_numpy(thing) if thing.dtype.kind in "fiub" else thing.tolist()
    if isinstance(thing, Tensor):
        flat = thing.detach().reshape(-1) if thing.layout is torch.strided else thing.detach().cpu().to_dense()
        return [str(tuple(thing.shape)), flat[:: max(1, flat.numel() // _LARGE)]]
    if isinstance(thing, (set, frozenset)):
        return [len(thing), sorted(map(repr, itertools.islice(thing, _LARGE)))]
    if isinstance(thing, _CONTAINERS):
        items = thing.items() if isinstance(thing, Mapping) else thing
        some = itertools.islice(items, 0, None, max(1, len(thing) // _LARGE))
        return [len(thing), [_sample(part) for part in some]]
    return thing


_STATES: dict[type, Callable[[Any], Any]] = {
    np.random.Generator: lambda thing: str(thing.bit_generator.state),
    np.random.RandomState: lambda thing: str(thing.get_state()),
    torch.Generator: lambda thing: thing.get_state(),
    random.Random: lambda thing: str(thing.getstate()),
}


def _in_words(thing: Any) -> str:
    """Describe a value in a few words."""
    if isinstance(thing, (Tensor, np.ndarray)):
        count = thing.numel() if isinstance(thing, Tensor) else thing.size
        return f"{thing.item():.6g}" if count == 1 else f"{type(thing).__name__} of shape {tuple(thing.shape)}"
    if isinstance(thing, _GENERATORS):
        return "a generator"
    if isinstance(thing, _CONTAINERS):
        return f"{type(thing).__name__} of {len(thing)}"
    text = repr(thing)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
