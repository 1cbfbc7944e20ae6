"""Metrics that are updated together: those that count the same thing count it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightkit.common.blame import in_short
from lightkit.common.errors import UserError
from lightkit.common.lost import is_dead_worker
from lightkit.common.memory import is_out_of_memory
from lightkit.metrics.inputs import CONVERTERS, convert, kind_of

_OUTPUT_ONLY = {"beta", "zero_division", "normalize", "validate_args", "k", "empty_target_action"}
"""Arguments that shape a metric's result but not what its `update` counts."""
_SHARED_FROM = ("torchmetrics.classification.", "lightkit.metrics.")


class Group(NamedTuple):
    """Metrics with one common state, kept by the first.

    Args:
        kind: Which conversion of the model's output they take.
        names: Their names.
        metrics: The metrics, in the same order.
    """

    kind: str
    names: list[str]
    metrics: list[Any]


class Collection:
    """A set of metrics with names, grouped by what they count.

    torchmetrics' own grouping compares states after the first batch, and so merges metrics that agreed on it by chance
    (top-1 and top-5 accuracy of a model that got everything right); here the classes and arguments decide.

    Args:
        metrics: The metrics by name.
        key: Where they stand in the configuration (`metrics.val`), for errors.
        device: Where their states live.
    """

    def __init__(self, metrics: Mapping[str, Any], *, key: str, device: torch.device) -> None:
        self.key, self.names = key, list(metrics)
        self.groups = _grouped(metrics, key)
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

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a block of samples.

        Args:
            preds: Raw output of the model, samples in dimension 0.
            target: Targets.

        Raises:
            UserError: A metric does not take these values.
        """
        converted: dict[str, tuple[Tensor, Tensor]] = {}
        for group in self.groups:
            try:
                if group.kind not in converted:
                    converted[group.kind] = convert(group.kind, preds, target)
                group.metrics[0].update(*converted[group.kind])
            except (ValueError, RuntimeError, TypeError, IndexError) as error:
                if is_out_of_memory(error) or is_dead_worker(error):
                    raise
                raise self._unfit(group, error, preds, target) from error
            group.metrics[0].validate_args = False  # checked once; every further check would wait for the device

    def _unfit(self, group: Group, error: Exception, preds: Tensor, target: Tensor) -> UserError:
        shapes = f"output {tuple(preds.shape)} {preds.dtype}, target {tuple(target.shape)} {target.dtype}"
        return UserError(
            f"the metric does not take what the model gives: {error}",
            key=f"{self.key}.{group.names[0]}",
            received=shapes.replace("torch.", ""),
            fix="choose metrics for this kind of target, such as metrics=multiclass, binary, multilabel or regression",
        )

    def compute(self) -> dict[str, Any]:
        """Every metric's result by name, in the order given; those that have seen nothing are left out."""
        results = {}
        for group in self.groups:
            leader = group.metrics[0]
            if not leader.update_called:
                continue
            for name, metric in zip(group.names, group.metrics):
                if metric is not leader:
                    _share(leader, metric)
                results[name] = self._result(name, metric)
        return {name: results[name] for name in self.names if name in results}

    def _result(self, name: str, metric: Any) -> Any:
        try:
            return metric.compute()
        except (ValueError, TypeError, IndexError) as error:
            what, fix = f"the metric cannot be computed: {in_short(error)}", "its arguments, or leave it out"
            raise UserError(what, key=f"{self.key}.{name}", fix=fix) from error

    def reset(self) -> None:
        """Forget everything counted."""
        for group in self.groups:
            for metric in group.metrics:
                metric.reset()

    def state_dict(self) -> dict[str, Any]:
        """The state of each group under the name of its first metric: copies, tensors and plain values only."""
        return {group.names[0]: _state(group.metrics[0]) for group in self.groups}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Take over a state.

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
            )
        for group in self.groups:
            _load(group.metrics[0], state[group.names[0]], device)


def alone(metric: Any) -> Any:
    """The metric, from now on without any exchange of its own with other processes: it gets the results of all."""
    for part in metric.modules():
        if hasattr(part, "metric_state"):
            part.sync_on_compute = part._to_sync = False
    return metric


def flatten(name: str, result: Any, class_names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split a metric's result into single numbers and everything else.

    Args:
        name: Name of the metric.
        result: A number, a vector (one value per class), a dict of these, or anything else.
        class_names: Names for the values of a vector; used where their number fits.

    Returns:
        0-d tensors by name (`f1`, `f1/cat`, `retrieval/map`), and results that are no numbers, such as matrices and
        curves.
    """
    if isinstance(result, Mapping):
        parts = [flatten(f"{name}/{key}", value, class_names) for key, value in result.items()]
        return {k: v for part, _ in parts for k, v in part.items()}, {
            k: v for _, rest in parts for k, v in rest.items()
        }
    if isinstance(result, (int, float)):
        result = torch.tensor(float(result))
    if not isinstance(result, Tensor) or (result.numel() != 1 and result.ndim != 1):
        return {}, {name: result}
    if result.numel() == 1:
        return {name: result.reshape(())}, {}
    labels = class_names if len(class_names) == len(result) else [str(index) for index in range(len(result))]
    return {f"{name}/{label}": value for label, value in zip(labels, result)}, {}


def _grouped(metrics: Mapping[str, Any], key: str) -> list[Group]:
    groups: dict[Any, Group] = {}
    for name, metric in metrics.items():
        if not (hasattr(metric, "update") and hasattr(metric, "metric_state")):
            expected = "a subclass of torchmetrics.Metric"
            raise UserError("not a metric", key=f"{key}.{name}", expected=expected, received=type(metric).__name__)
        kind = kind_of(metric)
        if kind not in CONVERTERS:
            raise UserError("unknown kind of inputs", key=f"{key}.{name}.inputs", received=kind, choices=CONVERTERS)
        group = groups.setdefault(_signature(kind, metric), Group(kind, [], []))
        group.names.append(name)
        group.metrics.append(metric)
    return list(groups.values())


def _signature(kind: str, metric: Any) -> Any:
    """Equal for two metrics whose `update` counts the same."""
    update = type(metric).update
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


def _share(leader: Any, follower: Any) -> None:
    """Let a metric see the state of its group's first, as torchmetrics' own collection does."""
    for name in leader._defaults:
        setattr(follower, name, getattr(leader, name))
    follower._update_count, follower._computed = leader._update_count, None


def _state(metric: Any) -> dict[str, Any]:
    """State of a metric and of the metrics inside it, by module path."""
    return {
        path: {
            "updates": module._update_count,
            "values": {
                name: value.detach().clone() if isinstance(value, Tensor) else [v.detach().clone() for v in value]
                for name, value in module.metric_state.items()
            },
        }
        for path, module in metric.named_modules()
        if hasattr(module, "metric_state")
    }


def _load(metric: Any, state: Mapping[str, Any], device: torch.device) -> None:
    modules = dict(metric.named_modules())
    for path, saved in state.items():
        module = modules[path]
        for name, value in saved["values"].items():
            copied = (
                value.to(device, copy=True) if isinstance(value, Tensor) else [v.to(device, copy=True) for v in value]
            )
            setattr(module, name, copied)
        module._update_count, module._computed = saved["updates"], None
