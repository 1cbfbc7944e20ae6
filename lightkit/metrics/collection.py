"""Metrics that are updated together: those that count the same thing count it once; and what their states are."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, is_dead_worker, is_out_of_memory, user_frame
from lightkit.common.modules import shape_of
from lightkit.metrics.results import CONVERTERS, convert, kind_of, wrapped
from lightkit.metrics.texts import Decode

_LOG = logging.getLogger(__name__)
_OUTPUT_ONLY = {"beta", "zero_division", "normalize", "validate_args", "k", "empty_target_action"}
"""Arguments that shape a metric's result but not what its `update` counts."""
_RETRIEVAL = "trainer.task._target_=lightkit.trainer.tasks.Retrieval"
_SHARED_FROM = ("torchmetrics.classification.", "lightkit.metrics.")


class MetricGroup(NamedTuple):
    """Metrics with one common state, kept by the first.

    Args:
        kind: Which conversion of the model's output they take.
        names: Their names.
        metrics: The metrics, in the same order.
    """

    kind: str
    names: list[str]
    metrics: list[Any]

    @property
    def takes_batches(self) -> bool:
        """Tell whether it counts batches, so that several may not be joined: `Running` and its like."""
        return any(hasattr(metric, WINDOW) for metric in self.metrics)


class Collection:
    """A set of metrics with names, grouped by what they count.

    torchmetrics' own grouping compares states after the first batch, and so merges metrics that agreed on it by chance
    (top-1 and top-5 accuracy of a model that got everything right); here the classes and arguments decide.

    Args:
        metrics: The metrics by name; those of a `MetricCollection` are named below its name, `all/MulticlassAccuracy`.
        key: Where they stand in the configuration (`metrics.val`), for errors.
        device: Where their states live.
        decode: Makes a text of tokens, for metrics of texts; None where the data set does not.

    Raises:
        UserError: One is no metric, or wants inputs of an unknown kind.
    """

    def __init__(
        self, metrics: Mapping[str, Any], *, key: str, device: torch.device, decode: Decode | None = None
    ) -> None:
        self.decode = decode
        self.key, metrics, self._undefined = key, _members(metrics), set[str]()
        self.names, self.strict = list(metrics), False
        groups: dict[Any, MetricGroup] = {}
        for name, metric in metrics.items():
            if not (hasattr(metric, "update") and hasattr(metric, "metric_state")):
                expected = "a subclass of torchmetrics.Metric"
                raise UserError("not a metric", key=self._key(name), expected=expected, received=type(metric).__name__)
            kind = kind_of(metric)
            if kind not in CONVERTERS:
                raise UserError("unknown kind of inputs", key=f"{key}.{name}.inputs", received=kind, choices=CONVERTERS)
            group = groups.setdefault((head_of(name), _signature(kind, metric)), MetricGroup(kind, [], []))
            group.names.append(name)
            group.metrics.append(metric)
        self.groups = list(groups.values())
        for metric in metrics.values():
            alone(metric)
        for group in self.groups:
            for metric in group.metrics:
                if group.kind == "regression" and device.type != "mps":
                    metric.set_dtype(torch.float64)
        self.to(device)

    def to(self, device: torch.device) -> None:
        """Move all states."""
        for group in self.groups:
            for metric in group.metrics:
                metric.to(device)

    def metrics(self) -> dict[str, Any]:
        """Return all of them by name."""
        return {name: metric for group in self.groups for name, metric in zip(group.names, group.metrics)}

    def find(self, name: str) -> Any:
        """Return the metric that gives a value of this name; None where there is none."""
        return next((metric for own, metric in self.metrics().items() if f"{name}/".startswith(f"{own}/")), None)

    def update(self, preds: Any, target: Any, *, of_batches: bool | None = None, **kwargs: Any) -> None:
        """Count a block of samples.

        Args:
            preds: Raw output of the model, samples in dimension 0; or a list of texts.
            target: Targets.
            of_batches: Only those that may have no batches joined, or only the others; all by default.
            **kwargs: What else metrics may take, samples in dimension 0; each gets what its `update` has.

        Raises:
            UserError: A metric does not take these values.
        """
        converted: dict[Any, tuple[Any, Any]] = {}
        for group in self.groups:
            if of_batches is not None and group.takes_batches is not of_batches:
                continue
            leader = group.metrics[0]
            more = _parameters(_taking(leader).__class__)[2:]
            needed = [item for item in more if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]
            lacking = {item.name for item in needed if item.default is item.empty} - kwargs.keys()
            if lacking:
                raise self._unserved(group.names[0], sorted(lacking), sorted(kwargs))
            try:
                head = head_of(group.names[0]) if isinstance(preds, Mapping) else None
                if (head, group.kind) not in converted:
                    own = (preds, target) if head is None else (preds[head], target[head])
                    converted[head, group.kind] = convert(group.kind, *own, self.decode)
                leader.update(*converted[head, group.kind], **_taking(leader)._filter_kwargs(**kwargs))
            except Exception as error:
                if is_out_of_memory(error) or is_dead_worker(error):
                    raise
                raise self._unfit(group.names[0], error, {"output": preds, "target": target, **kwargs}) from error
            leader.validate_args = False  # checked once; every further check would wait for the device

    def _key(self, name: str) -> str:
        """Return where a metric stands in the configuration; those of a collection stand in it."""
        return f"{self.key}.{name.partition('/')[0]}"

    def _member(self, name: str) -> str:
        return f"{name.partition('/')[2]}: " if "/" in name else ""

    def _unfit(self, name: str, error: Exception, given: Mapping[str, Any]) -> UserError:
        """Make the error of a metric that does not take what the model gives."""
        shapes = ", ".join(f"{what} {_shape(value)}" for what, value in given.items())
        fix = "choose metrics for this kind of target, such as metrics=multiclass, binary, multilabel or regression, or"
        if isinstance(error, OSError):  # a file that is not on this machine
            fix = "arguments of it that need no file from elsewhere, or"
        return UserError(
            f"{self._member(name)}the metric does not take what the model gives: {error}",
            key=self._key(name),
            received=shapes,
            origin=user_frame(error),
            fix=f"{fix} leave it out: ~{self._key(name)}",
        )

    def _unserved(self, name: str, lacking: list[str], given: list[str]) -> UserError:
        """Make the error of a metric that takes values which the task does not give."""
        words = " and ".join(lacking)
        fix = f"a task of your own that returns StepOutput(loss, preds, target, {{{lacking[0]!r}: ...}})"
        if lacking == ["indexes"]:
            fix = f"{_RETRIEVAL} for samples (x, y, indexes), or {fix}"
        return UserError(
            f"{self._member(name)}the metric takes {words} besides output and target, which the task does not give",
            key=self._key(name),
            received=f"preds, target{''.join(f', {known}' for known in given)}",
            fix=fix,
        )

    def compute(self) -> dict[str, Any]:
        """Return every metric's result by name, in the order given; those that have seen nothing are left out."""
        results = {}
        for group in self.groups:
            leader = group.metrics[0]
            if not has_counted(leader):
                continue
            for name, metric in zip(group.names, group.metrics):
                if metric is not leader:
                    share(leader, metric)
                results[name] = self.result(name, metric)
        return {name: results[name] for name in self.names if name in results}

    def result(self, name: str, metric: Any) -> Any:
        """Compute the result of a metric; NaN where it is not defined.

        Args:
            name: Its name.
            metric: The metric, with the state that counts.

        Raises:
            UserError: The metric cannot be computed; it is named.
        """
        try:
            if type(metric).__name__ == "ClasswiseWrapper" and type(metric.metric).__name__ in _RANKING:
                return metric._convert_output(self.result(name, metric.metric))
            ranked = _ranked_rows(metric)
            bare = ranked == 0
            if self.strict:
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    try:
                        found = metric.compute()
                    except ValueError:  # of torchmetrics, as of fewer than two rows
                        return torch.tensor(torch.nan)
                lacking = any(" samples " in str(one.message) for one in told)  # of torchmetrics, of a class
                return torch.full_like(found, torch.nan) if lacking or bare.any() else found
            if not bare.any():
                return metric.compute()
            if name not in self._undefined:
                numbers = ", ".join(map(str, bare.nonzero()[:, 0].tolist()))
                what = ", as all rows are of one class: it is nan then"
                what = what if bare.all() else f" for class {numbers}, which no row or every row has: it is left out"
                _LOG.warning("%s.%s is not defined%s", self.key, name, what)
            self._undefined.add(name)
            return _over_ranked(metric, ranked)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            what = f"{self._member(name)}the metric cannot be computed: {in_short(error)}"
            fix = f"its arguments, or leave it out: ~{self._key(name)}"
            raise UserError(what, key=self._key(name), origin=user_frame(error), fix=fix) from error

    def reset(self) -> None:
        """Forget everything counted."""
        for group in self.groups:
            for metric in group.metrics:
                metric.reset()

    def state_dict(self) -> dict[str, Any]:
        """Copy the state of each group, under the name of its first metric: tensors and plain values only."""
        return {group.names[0]: state_of(group.metrics[0]) for group in self.groups}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore a state.

        Args:
            state: What `state_dict` gave.
            device: Where the tensors belong.

        Raises:
            UserError: It was written by other metrics.
        """
        names = [group.names[0] for group in self.groups]
        if set(state) != set(names):
            raise UserError(
                "the checkpoint was written in the middle of an epoch with other metrics",
                key=self.key,
                expected=", ".join(state),
                received=", ".join(names),
                fix="resume with the metrics of the run and change them afterwards",
                family="checkpoint-misfit",
            )
        for group in self.groups:
            load(group.metrics[0], state[group.names[0]], device)


def head_of(name: str) -> str | None:
    """Return the output that a metric is of, where there are several by name: `size` of `size/mae`; None for all."""
    return name.partition("/")[0] if "/" in name else None


def _ranked_rows(metric: Any) -> Tensor:
    """Count the rows of each class that a metric ranks above the others, `(C,)`; 0 where there are none of one kind."""
    kind = type(metric).__name__
    if kind not in _RANKING or getattr(metric, "average", None) == "micro":
        return torch.ones(1)
    if metric.thresholds is not None:
        without, having = metric.confmat[0].sum(-1).unbind(-1)
    else:
        targets = torch.cat([*map(torch.atleast_1d, metric.target)])
        if kind.startswith("Multiclass"):
            targets = (targets[:, None] == torch.arange(metric.num_classes, device=targets.device)).long()
        without, having = (targets == 0).sum(0), (targets == 1).sum(0)
    return torch.atleast_1d(having * (without > 0) if kind.endswith("AUROC") else having)


def _over_ranked(metric: Any, ranked: Tensor) -> Any:
    """Compute such a metric over the classes that have rows of both kinds; torchmetrics counts 0 for the others."""
    average = getattr(metric, "average", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchmetrics' own, of the same
        if average is not None:
            metric.average, metric._computed = "none", None
        found = metric.compute()
    if average is not None:
        metric.average, metric._computed = average, None
    found = found.where(ranked.view_as(found) > 0, torch.nan)
    if average == "weighted":
        return (found.nan_to_num() * ranked).sum() / ranked.sum()
    return found.nanmean() if average == "macro" else found


def _shape(value: Any) -> str:
    """Say what a metric got, of a list what its first item is."""
    if isinstance(value, list) and value and not isinstance(value[0], Tensor):
        return f"{len(value)} of {type(value[0]).__name__}"
    return shape_of(value)


def _members(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Put the metrics inside of collections in their place."""
    found: dict[str, Any] = {}
    for name, metric in metrics.items():
        # A class of torchmetrics is told by its name, so that a run without metrics need not import it.
        is_collection = any(base.__name__ == "MetricCollection" for base in type(metric).__mro__)
        inner = _members(dict(metric.items(keep_base=False))) if is_collection else {"": metric}
        found |= {f"{name}/{own}" if own else name: one for own, one in inner.items()}
    return found


@cache
def _parameters(kind: type) -> tuple[inspect.Parameter, ...]:
    """Return the arguments of a class's `update`."""
    return tuple(inspect.signature(kind.update).parameters.values())[1:]  # type: ignore[attr-defined]


def _taking(metric: Any) -> Any:
    """Find the metric that decides what `update` takes: of a wrapper that hands all of it on, the one inside."""
    inner = wrapped(metric)
    hands_on = any(item.kind is item.VAR_KEYWORD for item in _parameters(metric.__class__))
    return _taking(inner) if inner is not None and hands_on else metric


def _signature(kind: str, metric: Any) -> Any:
    """Make a key that is equal for two metrics whose `update` counts the same."""
    update = type(metric).update
    if kind in ("retrieval", "graded") and update.__module__.startswith("torchmetrics.retrieval."):
        return kind, update, metric.ignore_index
    if not update.__module__.startswith(_SHARED_FROM) or type(metric).__module__.startswith("torchmetrics.wrappers"):
        return id(metric)
    own = {**vars(metric), **dict(metric.named_buffers())}
    arguments = {
        name: value.tolist() if isinstance(value, Tensor) else value
        for name, value in own.items()
        if not name.startswith("_")
        and name not in metric._defaults
        and name not in _OUTPUT_ONLY
        and not callable(value)
    }
    if "average" in arguments:
        arguments["average"] = arguments["average"] == "micro"
    shapes = {name: getattr(default, "shape", "list") for name, default in metric._defaults.items()}
    return kind, update, repr(sorted(arguments.items())), repr(sorted(shapes.items()))


def alone(metric: Any) -> Any:
    """Keep a metric from exchanging anything with other processes: it gets the results of all."""
    for part in metric.modules():
        if hasattr(part, "metric_state"):
            part.sync_on_compute = part._to_sync = False
    return metric


WINDOW = "_num_vals_seen"
"""Where a wrapper of torchmetrics counts the batches of its window."""
_RANKING = (
    "BinaryAUROC",
    "BinaryAveragePrecision",
    "MulticlassAUROC",
    "MultilabelAUROC",
    "MulticlassAveragePrecision",
    "MultilabelAveragePrecision",
)
_BESIDE = (WINDOW, "min_val", "max_val")
"""What wrappers of torchmetrics keep beside their states: batches in a window, the extremes of all epochs."""


def has_counted(metric: Any) -> bool:
    """Tell whether a metric, or one inside a wrapper that does not count its updates, has been updated."""
    return any(
        part.update_called or getattr(part, WINDOW, 0) for part in metric.modules() if hasattr(part, "metric_state")
    )


def share(leader: Any, follower: Any) -> None:
    """Let a metric see the state of its group's first, as torchmetrics' own collection does."""
    for name in leader._defaults:
        setattr(follower, name, getattr(leader, name))
    follower._update_count, follower._computed = leader._update_count, None


def outlasts(metric: Any) -> bool:
    """Tell whether a metric keeps something when it is reset: the extremes of all epochs."""
    return any(hasattr(part, "min_val") for part in metric.modules())


def keeps_more(metric: Any) -> bool:
    """Tell whether a metric keeps something beside its states."""
    return any(hasattr(part, name) for part in metric.modules() for name in _BESIDE)


def state_of(metric: Any) -> dict[str, Any]:
    """Copy the state of a metric and of the metrics inside it, by module path."""
    return {
        path: {
            "updates": module._update_count,
            "values": {
                name: value.detach().clone() if isinstance(value, Tensor) else [v.detach().clone() for v in value]
                for name, value in module.metric_state.items()
            },
            **_beside(module),
        }
        for path, module in metric.named_modules()
        if hasattr(module, "metric_state")
    }


def _beside(module: Any) -> dict[str, Any]:
    """Copy what a wrapper keeps beside its states."""
    kept = {name: getattr(module, name) for name in _BESIDE if hasattr(module, name)}
    return {"beside": {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in kept.items()}} if kept else {}


def load(metric: Any, state: Mapping[str, Any], device: torch.device) -> None:
    """Put a state from `state_of` into a metric, copied to the device."""
    modules = dict(metric.named_modules())
    for path, saved in state.items():
        module = modules[path]
        for name, value in saved["values"].items():
            copied = (
                value.to(device, copy=True) if isinstance(value, Tensor) else [v.to(device, copy=True) for v in value]
            )
            setattr(module, name, copied)
        for name, value in saved.get("beside", {}).items():
            setattr(module, name, value.to(device, copy=True) if isinstance(value, Tensor) else value)
        module._update_count, module._computed = saved["updates"], None
