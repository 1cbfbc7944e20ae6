"""`metrics.mode`: whether a smaller or a larger value of the monitored metric is better, as the metric itself says.

torchmetrics' classes say it in `higher_is_better`, which is read from their source: nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from lightkit.common.names import SPLIT_NAMES
from lightkit.config.lookup import Found, OpaqueSourceError, TargetError, bases, find, own, step
from lightkit.config.schema.learning import MetricsConfig, SchedulerConfig
from lightkit.config.tree import Report

MODES = {True: "max", False: "min"}
Direction = Literal["min", "max", "open", "unread"]
"""Which values are better; `open` where the metric leaves it to the user, `unread` where the source does not tell."""

_NAME = "higher_is_better"
_MEANINGS: Mapping[object, Direction] = {True: "max", False: "min", None: "open"}
_VARIANTS = ("Binary", "Multiclass", "Multilabel")
_COLLECTION = "MetricCollection"
_PLATEAU = ("lightkit.optim.Plateau", "lightkit.optim.annealing.Plateau")


def fill_mode(cfg: DictConfig) -> None:
    """Put in the mode that follows from the monitored metric, where none is given and the source tells."""
    try:
        metrics: Any = OmegaConf.to_container(cfg.metrics, resolve=True)
    except (OmegaConfBaseException, ValueError):
        return  # whatever it is, the check says it
    if not isinstance(metrics, dict) or metrics.get("mode") is not None:
        return
    found = direction(metrics)
    if found in MODES.values():
        with open_dict(cfg), read_write(cfg):
            cfg.metrics.mode = found


def forget_mode(cfg: DictConfig) -> None:
    """Leave the mode of a run open again, which was for the metric that it monitored, and that of its schedule."""
    OmegaConf.update(cfg, "metrics.mode", None)
    if OmegaConf.select(cfg, "scheduler._target_") in _PLATEAU:
        OmegaConf.update(cfg, "scheduler.mode", "${metrics.mode}")


def check_mode(
    metrics: MetricsConfig, scheduler: SchedulerConfig, plain: Any, report: Report, *, starting: bool
) -> None:
    """Report a mode that is missing or contradicts the metric.

    Args:
        metrics: The checked node of the metrics.
        scheduler: That of the schedule.
        plain: The node of the metrics as plain values.
        report: Gets the problems.
        starting: It is for a run that has not begun; one that has keeps the mode it was trained with.
    """
    mode, monitor, key = metrics.mode, metrics.monitor, ("metrics", "mode")
    found = direction(plain)
    if mode is None and found is not None:
        said = "does not say" if found == "open" else "is none whose source tells"
        what = f"missing: the metric of {monitor} {said} whether larger values are better"
        report.add(key, what, choices=("min", "max"), fix="metrics.mode=max, or min", family="missing-value")
    typed = starting or report.sources.on_command_line(key) is not None
    if typed and mode is not None and found in MODES.values() and mode != found:
        better = "larger" if found == "max" else "smaller"
        what = f"contradicts metrics.monitor: {better} values of {monitor} are better"
        fix = f"leave it out (null goes by the metric), or metrics.mode={found}"
        report.add(key, what, received=mode, fix=fix, family="contradiction")
    own_mode = getattr(scheduler, "mode", None)
    if scheduler._target_ in _PLATEAU and None not in (own_mode, mode) and own_mode != mode:
        what = f"contradicts metrics.mode, which is {mode} for metrics.monitor"
        fix = "leave it out: ~scheduler.mode"
        report.add(("scheduler", "mode"), what, received=own_mode, fix=fix, family="contradiction")


def direction(metrics: Mapping[str, Any]) -> Direction | None:
    """Tell which values of the monitored metric are better; None where no such metric is measured.

    Args:
        metrics: The node `metrics` as plain values.
    """
    split, _, name = str(metrics.get("monitor")).partition("/")
    measured = metrics.get(split if split in SPLIT_NAMES else "val")  # by which further sets are measured
    measured = measured if isinstance(measured, dict) else {}
    place = name
    while place and not isinstance(measured.get(place), dict):
        place = place.rpartition("/")[0]
    if place:
        return _of_node(measured[place], name[len(place) + 1 :])
    return "min" if name == "loss" else None


def _of_node(node: Mapping[str, Any], member: str) -> Direction | None:
    """Tell which values of a metric are better.

    Args:
        node: Its node.
        member: What follows its name in that of the value: a class, or of a collection a metric and more.
    """
    target = node.get("_target_")
    if not isinstance(target, str):
        return None
    if target.rpartition(".")[2] == _COLLECTION:
        inner = next((inner for name, inner in _members(node) if f"{member}/".startswith(f"{name}/")), None)
        return "unread" if inner is None else _of_node(inner, "")
    try:
        found = find(target)[0]
        answer = _of_class(found) if isinstance(found.node, ast.ClassDef) else "unread"
    except (TargetError, OpaqueSourceError, RecursionError):
        return "unread"
    wrapped = next((value for value in node.values() if isinstance(value, dict) and "_target_" in value), None)
    # A wrapper that works it out goes by what it wraps.
    return _of_node(wrapped, "") if answer == "unread" and wrapped is not None else answer


def _members(node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the metrics of a collection with the names that their values have."""
    inside = node.get("metrics", (node.get("_args_") or [None])[0])
    listed = inside if isinstance(inside, list) else [inside]
    named = {str(one.get("_target_")).rpartition(".")[2]: one for one in listed if isinstance(one, dict)}
    if isinstance(inside, dict) and "_target_" not in inside:
        named = {str(name): one for name, one in inside.items() if isinstance(one, dict)}
    for name, one in named.items():
        yield f"{node.get('prefix') or ''}{name}{node.get('postfix') or ''}", one


def _of_class(found: Found) -> Direction:
    """Tell what the class, or the first of its bases that says anything, sets the attribute to.

    Raises:
        OpaqueSourceError: The source does not tell.
    """
    node = found.node
    assert isinstance(node, ast.ClassDef)
    if own(found, "__new__"):
        return _of_variants(found, node.name)
    said = _stated_in_body(found, node)
    if said is not None:
        return said
    answers = (_of_class(base) for base in bases(found))
    return next((answer for answer in answers if answer != "open"), "open")


def _stated_in_body(found: Found, node: ast.ClassDef) -> Direction | None:
    """Tell what the body of a class says; None where it says nothing."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == _NAME:
            return "unread"
        targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == _NAME for target in targets):
            value = getattr(item, "value", None)  # None where its type is stated alone
            said = _MEANINGS.get(value.value, "unread") if isinstance(value, ast.Constant) else "unread"
            return said if value is not None else None
    init = own(found, "__init__")
    stored = (part for part in ast.walk(init) if isinstance(part, ast.Attribute)) if init is not None else ()
    return "unread" if any(part.attr == _NAME and isinstance(part.ctx, ast.Store) for part in stored) else None


def _of_variants(found: Found, name: str) -> Direction:
    """Tell what the classes say that a class such as `torchmetrics.Accuracy` makes in its place, where they agree."""
    answers: set[Direction] = set()
    for way in _VARIANTS:
        try:
            made = step(Found(found.module), f"{way}{name}", last=True)
        except TargetError:
            continue
        if isinstance(made.node, ast.ClassDef):
            answers.add(_of_class(made))
    return answers.pop() if len(answers) == 1 else "unread"
