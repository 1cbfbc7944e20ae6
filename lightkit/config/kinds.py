"""What kind of class a place in the configuration wants, told from source: nothing is imported."""

from __future__ import annotations

import ast
from functools import cache

from lightkit.config.lookup import Found, TargetError, UnreadableError, bases, find, member
from lightkit.config.origins import Key

KINDS: dict[Key, tuple[str, ...]] = {
    ("model",): ("torch.nn.Module",),
    ("optim",): ("torch.optim.Optimizer",),
    ("scheduler",): ("lightkit.optim.schedulers.Schedule",),
    ("metrics", "*", "*"): ("torchmetrics.Metric", "torchmetrics.MetricCollection"),
    ("trainer", "task"): ("lightkit.trainer.tasks.Task",),
    ("trainer", "callbacks", "*"): ("lightkit.trainer.callbacks.Callback",),
}
"""Base classes of what is built at a key; `*` stands for any name."""
_NAMED = {
    "torch.nn.Module": "a network or layer (torch.nn.Module)",
    "torch.optim.Optimizer": "an optimizer (torch.optim.Optimizer)",
    "lightkit.optim.schedulers.Schedule": "a schedule (lightkit.optim.Schedule)",
    "torchmetrics.Metric": "a metric (torchmetrics.Metric)",
    "torchmetrics.MetricCollection": "a collection of metrics (torchmetrics.MetricCollection)",
    "lightkit.trainer.tasks.Task": "a task (lightkit.trainer.Task)",
    "lightkit.trainer.callbacks.Callback": "a callback (lightkit.trainer.Callback)",
    "torch.utils.data.Dataset": "a data set (torch.utils.data.Dataset)",
    "torch.optim.lr_scheduler.LRScheduler": "a schedule of PyTorch",
    "torch.nn.modules.loss._Loss": "a loss",
}
_PLACES = {
    "torch.optim.Optimizer": "optim",
    "lightkit.optim.schedulers.Schedule": "scheduler",
    "torchmetrics.Metric": "metrics.val.NAME",
    "lightkit.trainer.tasks.Task": "trainer.task",
    "lightkit.trainer.callbacks.Callback": "trainer.callbacks.NAME",
    "torch.utils.data.Dataset": "data.dataset",
    "torch.optim.lr_scheduler.LRScheduler": "scheduler=torch scheduler.scheduler",
    "torch.nn.modules.loss._Loss": "loss",
    "torch.nn.Module": "model",
}
"""Where each kind belongs; of the kinds of a class the first counts: a metric is a module, too."""
_CLOSURE = {
    "what": "this optimizer computes the loss several times in a step; the training loop does it once",
    "expected": "an optimizer whose step() needs no closure",
    "fix": "optim=adamw, or another of `lightkit config optim`",
}
_OF_LOSS: Key = ("loss",)
_LOSS = "a loss: a class or function that is called with the output and the target"


def mismatch(target: str, key: Key) -> dict[str, str] | None:
    """Find out whether a class is of another kind than its place wants.

    Args:
        target: Dotted path of what is to be built; functions may give anything and pass.
        key: Where it stands.

    Returns:
        `what`, `expected`, `received` and `fix` of the message; None where it fits, or the source does not tell.
    """
    wanted = next((kinds for place, kinds in KINDS.items() if _is_at(key, place)), ())
    found = _find_class(target) if wanted or key == _OF_LOSS else None
    if found is None:
        return None
    own, lineage = found
    if _takes_output_and_target(own) if key == _OF_LOSS else _derives_from(lineage, wanted):
        return _CLOSURE | {"received": target} if key == ("optim",) and _wants_closure(own) else None
    kind = next((kind for kind in _PLACES if _derives_from(lineage, (kind,))), "")
    return {
        "what": "a class of another kind",
        "expected": _LOSS if key == _OF_LOSS else " or ".join(_NAMED[kind] for kind in wanted),
        "received": f"{target}, {_NAMED[kind]}" if kind else target,
        "fix": _better_place(target, key, _PLACES.get(kind, "")),
    }


def _find_class(target: str) -> tuple[Found, set[tuple[str, str]]] | None:
    """Find a class and those above it; None for what is no class, or whose source does not tell."""
    try:
        found = find(target)[0]
        return (found, _lineage(found)) if isinstance(found.node, ast.ClassDef) else None
    except (TargetError, UnreadableError):
        return None


def _better_place(target: str, key: Key, home: str) -> str:
    """Say what to do with a class whose kind belongs to `home`."""
    if home and home.partition(".")[0] != key[0]:
        return f"{home}._target_={target}"
    return f"`lightkit config {key[0]}` shows what goes there"


def _is_at(key: Key, place: Key) -> bool:
    return len(key) == len(place) and all(part in (name, "*") for name, part in zip(key, place))


def _lineage(found: Found) -> set[tuple[str, str]]:
    """Return module and name of a class and of all classes above it.

    Raises:
        UnreadableError: The source of one does not tell.
    """
    names = {(found.module.name, found.node.name)}  # type: ignore[union-attr]
    for base in bases(found):
        names |= _lineage(base)
    return names


def _derives_from(lineage: set[tuple[str, str]], kinds: tuple[str, ...]) -> bool:
    return bool(lineage & {_definition(kind) for kind in kinds})


@cache
def _definition(kind: str) -> tuple[str, str]:
    """Return module and name of the definition behind a public path."""
    found = find(kind)[0]
    return found.module.name, found.node.name  # type: ignore[union-attr]


def _takes_output_and_target(found: Found) -> bool:
    """Tell whether objects of a class take an output and a target; True where the source does not tell."""
    try:
        called = member(found, "forward", 0) or member(found, "__call__", 0)
    except (TargetError, UnreadableError):
        return True
    if called is None or not isinstance(called.node, ast.FunctionDef):
        return False
    given = called.node.args
    return given.vararg is not None or len(given.posonlyargs) + len(given.args) > 2


def _wants_closure(found: Found) -> bool:
    """Tell whether the step of an optimizer cannot do without a function that computes the loss anew."""
    try:
        step = member(found, "step", 0)
    except (TargetError, UnreadableError):
        return False
    given = step.node.args if step is not None and isinstance(step.node, ast.FunctionDef) else None
    return given is not None and len(given.args) - 1 > len(given.defaults)
