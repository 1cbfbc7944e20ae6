"""Checks of `_target_` nodes: whether a target exists, is of the right kind, and takes the arguments it is given."""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import Any, Literal

from lightkit.common import suggest
from lightkit.common.argument_checks import check_choice
from lightkit.common.doors import SHIPPED
from lightkit.common.suggest import nearest
from lightkit.config.annotations import UNKNOWN, becomes_tensor, fits, in_words, type_hint
from lightkit.config.doors import names
from lightkit.config.fields import argument_range
from lightkit.config.judging import judge
from lightkit.config.lookup import Found, OpaqueSourceError, TargetError, bases, defined_path, find_known, member
from lightkit.config.missing import report_missing
from lightkit.config.origins import Key, dotted
from lightkit.config.schema.base import SIZES
from lightkit.config.signatures import Signature, called, read
from lightkit.config.tree import Report

EMPTY = {name: f"{name}=custom" for name in ("loss", "model", "optim", "scheduler")} | {"data.dataset": "data=custom"}
"""Options that set nothing, for a `_target_` of one's own."""
HYDRA_KEYS = ("_target_", "_partial_", "_args_", "_convert_", "_recursive_")
_HYDRA_TYPES: dict[str, Any] = {
    "_partial_": bool,
    "_args_": list,
    "_convert_": Literal["none", "partial", "object", "all"],
    "_recursive_": bool,
}
REMOVE = "remove it: ~"
"""How the fix for an argument begins that nothing here takes."""
_PATH = "the dotted path of a class or function"
_TORCH_SCHEDULES = "torch.optim.lr_scheduler."
PROVIDED: dict[Key, tuple[str, ...]] = {
    ("model",): SIZES,
    ("loss",): SIZES,
    ("metrics",): SIZES,
    ("data", "augment"): SIZES,
    # The parameter groups, the network, several optimizers by name; and what their schedules get.
    ("optim",): ("params", "model", "parts", "optimizer", "total_steps", "steps_per_epoch", "mode"),
    ("scheduler",): ("optimizer", "total_steps", "steps_per_epoch", "mode"),
    ("logger", "more"): ("folder", "monitor", "mode", "splits"),
    ("data", "sampler"): ("targets", "weights", "lengths", "num_samples", "data_source", "shards"),
    ("device", "parallel"): ("device", "ranks"),  # the main device, and the processes that train together
}
"""Arguments that the build fills in, by the node they are below."""
FILLED = frozenset({"params", "model", "optimizer", "parts"})
"""Those of them that a configuration cannot give, wherever they are."""
_OF_STRATEGY: Key = ("device", "parallel")
_CALLED_LATER: frozenset[Key] = frozenset({("data", "collate")})
"""Places of what the run calls: a function there is not called when it is built."""


KINDS: dict[Key, tuple[str, ...]] = {
    ("model",): ("torch.nn.Module",),
    ("optim",): ("torch.optim.Optimizer",),
    ("optim", "parts", "*"): ("torch.optim.Optimizer",),
    ("optim", "parts", "*", "schedule"): ("lightkit.optim.schedulers.Schedule",),
    ("scheduler",): ("lightkit.optim.schedulers.Schedule",),
    ("metrics", "*", "*"): ("torchmetrics.Metric", "torchmetrics.MetricCollection"),
    ("trainer", "task"): ("lightkit.trainer.tasks.Task",),
    ("trainer", "callbacks", "*"): ("lightkit.trainer.callbacks.Callback",),
    ("logger", "more", "*"): ("lightkit.loggers.base.Logger",),
    ("data", "sampler"): ("torch.utils.data.Sampler",),
    ("device", "parallel"): ("lightkit.device.parallel.Parallel",),
}
"""Base classes of what is built at a key; `*` stands for any name."""
_PLACES = {
    "torch.optim.Optimizer": ("an optimizer (torch.optim.Optimizer)", "optim"),
    "lightkit.optim.schedulers.Schedule": ("a schedule (lightkit.optim.Schedule)", "scheduler"),
    "torchmetrics.Metric": ("a metric (torchmetrics.Metric)", "metrics.val.NAME"),
    "torchmetrics.MetricCollection": ("a collection of metrics (torchmetrics.MetricCollection)", "metrics.val.NAME"),
    "lightkit.trainer.tasks.Task": ("a task (lightkit.trainer.Task)", "trainer.task"),
    "lightkit.trainer.callbacks.Callback": ("a callback (lightkit.trainer.Callback)", "trainer.callbacks.NAME"),
    "lightkit.loggers.base.Logger": ("a logger (lightkit.Logger)", "logger.more.NAME"),
    "lightkit.device.parallel.Parallel": ("a strategy (lightkit.device.Parallel)", "device.parallel"),
    "torch.utils.data.Sampler": ("a sampler (torch.utils.data.Sampler)", "data.sampler"),
    "torch.utils.data.Dataset": ("a data set (torch.utils.data.Dataset)", "data.dataset"),
    "torch.optim.lr_scheduler.LRScheduler": ("a schedule of PyTorch", "scheduler=torch scheduler.scheduler"),
    "torch.nn.modules.loss._Loss": ("a loss", "loss"),
    "torch.nn.Module": ("a network or layer (torch.nn.Module)", "model"),
}
"""What each kind is called, and where it belongs; of the kinds of a class the first counts, as a metric is a module."""
_OF_LOSS: Key = ("loss",)
_LOSS = "a loss: a class or function that is called with the output and the target"


def provided(key: Key) -> tuple[str, ...]:
    """Return the arguments that need not be given at a place in the configuration."""
    return next((names for place, names in PROVIDED.items() if key[: len(place)] == place), ())


def called_later(node: dict[str, Any], key: Key) -> dict[str, Any]:
    """Return a node as it is built: one with a function that the run calls gives that, with its further arguments."""
    target = node.get("_target_")
    if key not in _CALLED_LATER or not isinstance(target, str) or _find_class(target) is not None:
        return node
    return {"_partial_": True, **node}


def check_arguments(node: dict[str, Any], key: Key, *, own: set[str], report: Report) -> None:
    """Check one `_target_` node and those inside it.

    Args:
        node: The node as plain values.
        key: Where it is.
        own: Keys that lightkit reads itself and that are no arguments.
        report: Gets the problems.
    """
    node = called_later(_usable(node, key, report), key)
    arguments = {name: value for name, value in node.items() if name not in own and name not in HYDRA_KEYS}
    if key == ("scheduler",) and str(node.get("_target_")).startswith(_TORCH_SCHEDULES):
        what = f"{node['_target_']} goes inside of scheduler=torch, which knows when to call it"
        fix = f"scheduler=torch 'scheduler.scheduler={{_target_: {node['_target_']}, _partial_: true, …}}'"
        report.add((*key, "_target_"), what, expected="a lightkit.optim.Schedule", fix=fix, family="wrong-value")
        return
    target = _target(node, key, report)
    wrong = None if target is None else mismatch(target, key)
    if wrong is not None:
        report.add((*key, "_target_"), **wrong, family="wrong-value")
        return
    _check_given(node, arguments, target, (*key, "_target_"), report)
    for name, function in called({**arguments, "_target_": target}).items():
        _check_called(function, (*key, name), report)
    for name, value in arguments.items():
        _nested(value, (*key, name), report)
    _nested(node.get("_args_"), (*key, "_args_"), report)


def _check_called(node: dict[str, Any], place: Key, report: Report) -> None:
    """Check a function that is given by its path, and the arguments for it that stand beside the path."""
    arguments = {name: value for name, value in node.items() if name not in HYDRA_KEYS}
    _check_given(node, arguments, _target(node, place[:-1], report), place, report)


def _check_given(
    node: dict[str, Any], arguments: dict[str, Any], target: str | None, place: Key, report: Report
) -> None:
    """Check that what stands at a place is there, and names and types of its arguments, as far as the source tells."""
    try:
        signature = None if target is None else read(target)
    except TargetError as error:
        report_missing(error, str(target), place, report)
        return
    if signature is not None:
        _check_names(node, arguments, signature, place[:-1], report)
        for name, value in arguments.items():
            _check_type(value, name, signature, place[:-1], report)


def _usable(node: dict[str, Any], key: Key, report: Report) -> dict[str, Any]:
    """Return a node without what Hydra's own keys can't be, which is reported."""
    wrong = [name for name, kind in _HYDRA_TYPES.items() if name in node and not fits(node[name], kind)]
    for name in [name for name in wrong if node[name] is not UNKNOWN]:
        report.add_wrong_type(node[name], _HYDRA_TYPES[name], (*key, name))
    return {name: UNKNOWN if name in wrong else value for name, value in node.items()}


def _nested(value: Any, key: Key, report: Report) -> None:
    if isinstance(value, dict):
        if "_target_" in value:
            check_arguments(value, key, own=set(), report=report)
            return
        for name, item in value.items():
            _nested(item, (*key, name), report)
    for index, item in enumerate(value if isinstance(value, list) else ()):
        _nested(item, (*key, index), report)


def _target(node: dict[str, Any], key: Key, report: Report) -> str | None:
    """Return the path of what a node builds; None where there is none to look into, which is reported."""
    place, target = (*key, "_target_"), node.get("_target_")
    if "_target_" not in node:
        report.add(place, "missing", expected=_PATH, fix=f"{dotted(place)}=package.Name", family="missing-value")
    elif target is not UNKNOWN and not isinstance(target, str):
        report.add(place, "wrong type", expected=_PATH, received=target, family="wrong-value")
    return target if isinstance(target, str) and judge(target, report.trust) is None else None


def _check_names(node: dict[str, Any], given: dict[str, Any], signature: Signature, key: Key, report: Report) -> None:
    names, target = signature.names(), node["_target_"]
    meant = set()
    filled = provided(key) if key == _OF_STRATEGY else FILLED.intersection(provided(key))
    for name in given.keys() & filled:
        report.add(
            (*key, name),
            "this is filled in when the run is built",
            fix=f"remove it: ~{dotted((*key, name))}",
            family="wrong-arguments",
        )
    for name in given if not signature.open else ():
        if name not in names:
            meant.add(_unknown_argument(name, names, target, key, report))
    if node.get("_partial_") is True or node.get("_args_") is UNKNOWN:
        return
    covered = {*given, *meant, *provided(key), *names[: min(len(node.get("_args_") or ()), signature.positional)]}
    for parameter in signature.parameters:
        if parameter.required and parameter.name not in covered:
            place, expected = (*key, parameter.name), in_words(parameter.annotation)
            what, fix = f"missing: {target} needs it", f"{dotted(place)}=VALUE"
            report.add(place, what, expected=expected, fix=fix, family="missing-value")


def _unknown_argument(name: str, names: list[str], target: str, key: Key, report: Report) -> str | None:
    """Report an argument the target does not take; the one that was probably meant."""
    place, choices = (*key, name), [item for item in names if item not in FILLED]
    special = HYDRA_KEYS if name.startswith("_") or name.endswith("_") else ()
    left_over = _is_left_over(name, key, report)
    close = [] if left_over else nearest(name, [*special, *choices], count=1)
    meant = None if left_over else suggest.meaning(dotted(place))
    if meant and f"{dotted(place)}?" in meant:  # of another option of this group, which is named with the value
        meant = None
    close = [] if meant and close != [suggest.own_name(name)] else close
    fix = f"did you mean {dotted((*key, close[0]))}?" if close else meant or f"{REMOVE}{dotted(place)}"
    if left_over and dotted(key) in EMPTY:
        fix += f"; {EMPTY[dotted(key)]} starts without any"
    report.add(
        place, f"{target} takes no such argument", received=name, choices=choices, fix=fix, family="wrong-arguments"
    )
    return close[0] if close else None


def _is_left_over(name: str, key: Key, report: Report) -> bool:
    """Tell whether an argument was written for another target: in another file than that of the target that counts."""
    given_in, target_in = (report.sources.exact((*key, one)) or "" for one in (name, "_target_"))
    in_files = bool(given_in and target_in) and not given_in.startswith("command line")
    return in_files and given_in.rpartition(":")[0] != target_in.rpartition(":")[0]


def _check_type(value: Any, name: str, signature: Signature, key: Key, report: Report) -> None:
    parameter = signature.get(name)
    is_built = isinstance(value, dict) and "_target_" in value
    if parameter is None or value is UNKNOWN or is_built:
        return
    place, kind = (*key, name), parameter.annotation
    if key[:1] != ("optim",) and becomes_tensor(value, kind):
        return
    if dotted(place) in SHIPPED and isinstance(value, str):  # a name of what makes the argument
        report.ask(key, check_choice, name, value, names(dotted(place)))
        return
    if fits(value, kind):
        report.check_range(value, place, argument_range(place))
        for index, item in enumerate(value if isinstance(value, list) else ()):
            report.check_range(item, (*place, index), argument_range((*place, index)))
        return
    # Of the optimizers PyTorch makes the tensors itself.
    expected = in_words(kind).replace(" or a list of numbers or a `_target_`", "") if key[:1] == ("optim",) else None
    report.add_wrong_type(value, kind, place, expected=expected, fix=type_hint(value, kind))


def mismatch(target: str, key: Key) -> dict[str, str] | None:
    """Find what is wrong with a class that is of another kind than its place wants.

    Args:
        target: Dotted path of what is to be built; functions may give anything and pass.
        key: Where it stands.

    Returns:
        `what`, `expected`, `received` and `fix` of the message; None where it fits, or the source does not tell.
    """
    places = [place for place in KINDS if len(place) == len(key)]
    fitting = (place for place in places if all(part in (name, "*") for name, part in zip(key, place)))
    wanted = KINDS.get(next(fitting, ()), ())
    found = _find_class(target) if wanted or key == _OF_LOSS else None
    if found is None:
        return None
    own, lineage = found
    if _takes_output_and_target(own) if key == _OF_LOSS else _derives_from(lineage, wanted):
        return None
    expected = _LOSS if key == _OF_LOSS else " or ".join(_PLACES[kind][0] for kind in wanted)
    return {"what": "a class of another kind", "expected": expected, **_better_place(target, key, lineage)}


def _better_place(target: str, key: Key, lineage: set[str]) -> dict[str, str]:
    """Say of which kind a class is after all, and where it belongs."""
    name, home = next((facts for kind, facts in _PLACES.items() if _derives_from(lineage, (kind,))), ("", ""))
    is_elsewhere = home and home.partition(".")[0] != key[0]
    return {
        "received": f"{target}, {name}" if name else target,
        "fix": f"{home}._target_={target}" if is_elsewhere else f"`lightkit config {key[0]}` shows what goes there",
    }


def _find_class(target: str) -> tuple[Found, set[str]] | None:
    """Find a class and those above it; None for what is no class, or whose source does not tell."""
    found = find_known(target)
    with suppress(TargetError, OpaqueSourceError):
        if found is not None and isinstance(found.node, ast.ClassDef):
            return found, _lineage(found)
    return None


def _lineage(found: Found) -> set[str]:
    """Return the paths where a class and all classes above it are defined.

    Raises:
        OpaqueSourceError: The source of one does not tell.
    """
    names = {f"{found.module.name}.{found.node.name}"}  # type: ignore[union-attr]
    for base in bases(found):
        names |= _lineage(base)
    return names


def _derives_from(lineage: set[str], kinds: tuple[str, ...]) -> bool:
    return bool(lineage & {defined_path(kind) for kind in kinds})


def _method(found: Found, *names: str) -> ast.FunctionDef | None:
    """Find the first of these methods that a class has.

    Raises:
        OpaqueSourceError: The source does not tell.
    """
    known = next(filter(None, (member(found, name, 0) for name in names)), None)
    return known.node if known is not None and isinstance(known.node, ast.FunctionDef) else None


def _takes_output_and_target(found: Found) -> bool:
    """Tell whether objects of a class take an output and a target; True where the source does not tell."""
    try:
        called = _method(found, "forward", "__call__")
    except (TargetError, OpaqueSourceError):
        return True
    given = called.args if called is not None else None
    return given is not None and (given.vararg is not None or len(given.posonlyargs) + len(given.args) > 2)
