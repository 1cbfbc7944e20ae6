"""A model before it trains: its layers, its parameters, what it computes, and what memory a step of training takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, user_frame
from lightkit.common.text import counted, format_bytes
from lightkit.diagnostics.flops import Flops, ModuleRule, count_flops
from lightkit.diagnostics.footprint import activations, bytes_of, enlarged, measured, state_bytes
from lightkit.diagnostics.layers import Call, Layer, Shape, first_call, layers_of, runs_of_alike
from lightkit.finetune.tables import format_percent

TITLES = ("layer", "class", "×", "output", "parameters", "trains", "MACs", "share %")
RIGHT = (2, 4, 6, 7)
"""Columns of numbers."""
DEPTH = 3
"""Levels below the model that are shown unless told otherwise."""
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SHOWN = 6
"""Operators that are named, the largest first."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a step of training takes, one process, without what libraries take."""

    samples: int
    """Samples that are computed at once."""
    parts: Mapping[str, int | None]
    """By what it is for: `weights`, `gradients`, `optimizer`, `average`, `activations`, `batch`; None: not known."""

    @property
    def total(self) -> int:
        """Return all that is known."""
        return sum(count or 0 for count in self.parts.values())


@dataclass(frozen=True)
class ModelSummary:
    """What is known of a model."""

    layers: Layer
    """The model with all that is in it."""
    inputs: tuple[Shape, ...]
    """Shapes of the tensors that it was run on."""
    flops: Flops
    """Operations of one pass forward, of these inputs."""
    training: Flops | None = None
    """Operations of one pass forward and backward, of `memory.samples` samples; None where it is not known."""
    memory: StepMemory | None = None
    """What a step of training takes; None where none was asked for."""
    notes: tuple[str, ...] = field(default_factory=tuple)
    """What could not be found out, and why."""

    def __str__(self) -> str:
        """Write it for a notebook."""
        from lightkit.loggers.wording import plain_table

        titles, rows = self.table()
        return "\n".join([plain_table("", titles, rows), "", *(f"{label:<12}{text}" for label, text in self.lines())])

    def table(self, *, depth: int = DEPTH, every: bool = False) -> tuple[list[str], list[list[str]]]:
        """Return column heads and cells: a row for each layer, with the numbers of one of several alike.

        Args:
            depth: Levels below the model.
            every: Show each of several layers that are alike.
        """
        rows: list[list[str]] = []

        def add(alike: Sequence[Layer], level: int) -> None:
            layer = alike[0]
            label = layer.label if len(alike) == 1 else f"{layer.label} … {alike[-1].label}"
            share = f"{100 * layer.flops * len(alike) / self.flops.total:.1f}" if layer.flops else ""
            rows.append(
                [
                    "  " * level + (label or "model"),
                    layer.kind,
                    str(len(alike) * layer.calls) if len(alike) * layer.calls > 1 else "",
                    "" if layer.output is None else str(layer.output),
                    f"{layer.parameters:,}" if layer.parameters else "",
                    _trains(layer),
                    in_units(layer.flops / 2) if layer.flops else "",
                    share,
                ]
            )
            if level < depth:
                runs = [[child] for child in layer.children] if every else runs_of_alike(layer.children)
                for run in runs:
                    add(run, level + 1)

        add([self.layers], 0)
        return list(TITLES), rows

    def lines(self) -> list[tuple[str, str]]:
        """Return labels and lines about the whole."""
        model, flops = self.layers, self.flops
        share = format_percent(model.trainable, model.parameters)
        found = [
            ("input", ", ".join(map(str, self.inputs))),
            ("parameters", f"{model.parameters:,}, of which {model.trainable:,} train ({share})"),
            ("forward", f"{in_units(flops.total)} FLOPs, {in_units(flops.macs)} MACs, of this input"),
        ]
        if flops.total:
            largest = [f"{name} {in_units(count)}" for name, count in [*flops.operators.items()][:_SHOWN]]
            found.append(("counted", ", ".join(largest)))
        found += _lines_of_uncounted(flops)
        if self.training is not None and self.memory is not None:
            each = self.training.total / self.memory.samples
            whole = f"{in_units(self.training.total)} FLOPs for {counted(self.memory.samples, 'sample')}"
            found.append(("training", f"{in_units(each)} FLOPs a sample, forward and backward; {whole}"))
        if self.memory is not None:
            known = [
                f"{name} {'unknown' if n is None else format_bytes(n)}"
                for name, n in self.memory.parts.items()
                if n != 0
            ]
            found.append(
                ("memory", f"{format_bytes(self.memory.total)} in a step of {counted(self.memory.samples, 'sample')}")
            )
            found.append(("", ", ".join(known)))
        return [*found, *(("note", note) for note in self.notes)]

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        flops, training, memory = self.flops, self.training, self.memory
        return {
            "inputs": [list(shape) for shape in self.inputs],
            "parameters": self.layers.parameters,
            "trainable": self.layers.trainable,
            "forward": {
                "flops": flops.total,
                "macs": flops.macs,
                "operators": dict(flops.operators),
                "not_counted": [op._asdict() for op in flops.uncounted],
                "measured": flops.measured,
            },
            "training": training and memory and {"flops": training.total, "samples": memory.samples},
            "memory": memory and {"samples": memory.samples, "total": memory.total, **memory.parts},
            "layers": [
                {
                    "name": layer.name,
                    "class": layer.kind,
                    "depth": depth,
                    "input": layer.input and list(layer.input),
                    "output": layer.output and list(layer.output),
                    "calls": layer.calls,
                    "parameters": layer.parameters,
                    "trainable": layer.trainable,
                    "flops": layer.flops,
                }
                for depth, layer in self.layers.walk()
            ],
            "notes": list(self.notes),
        }


def summarize(model: nn.Module, *args: Any, **kwargs: Any) -> ModelSummary:
    """Look at a model and what it computes of these inputs, in evaluation; nothing of it changes.

        print(summarize(torchvision.models.resnet50(), torch.rand(1, 3, 224, 224)))

    Args:
        model: The network.
        *args: What it is called with.
        **kwargs: Arguments by name.

    Raises:
        UserError: The model cannot be run on them.
    """
    return _summary(model, Call(args, kwargs), {})


@dataclass(frozen=True)
class TrainingSetup:
    """How a model trains, as far as memory and operations are concerned."""

    optimizer: Optimizer
    """Steps over its parameters."""
    step: Callable[[nn.Module, Any], Tensor]
    """Computes the loss of a model and a batch."""
    batch: Any
    """A small batch on the CPU."""
    samples: int
    """How many samples are computed at once."""
    small: int = 2
    """The samples of the small batch."""
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Of the forward pass, such as autocast."""
    recomputed: Sequence[str] = ()
    """Patterns of modules that compute their activations again in the backward pass."""
    average: Any = None
    """State of the average of the weights."""
    rules: Mapping[str, ModuleRule] = field(default_factory=dict)
    """As `count_flops` takes them."""


def summarize_training(model: nn.Module, training: TrainingSetup) -> ModelSummary:
    """Look at a model, what it computes of one sample, and what a step of training takes; nothing of it changes.

    Args:
        model: The network without wrappers, on the CPU.
        training: How it trains.

    Raises:
        UserError: The model cannot be run on such a batch.
    """
    try:
        call = first_call(model, lambda given: training.step(given, training.batch))
    except Exception as error:
        raise _cannot_run(error) from error
    small, notes = training.small, list[str]()
    args, kwargs = enlarged((call.args, dict(call.kwargs)), small, 1)
    found = _summary(model, Call(args, kwargs), training.rules)
    sized: dict[str, Any] = {"samples": small, "size": training.samples, "recomputed": training.recomputed}
    flops = kept = None
    try:
        large = enlarged(training.batch, small, training.samples)
        options: dict[str, Any] = {"recomputed": training.recomputed, "sample": training.batch, "rules": training.rules}
        flops = count_flops(model, training.step, large, backward=True, **options)
        if flops.measured:  # with the small batch
            flops = replace(flops, total=flops.total * training.samples // small)
    except Exception as error:
        notes.append(f"what training computes is not known: {in_short(error)}")
    try:
        cpu = torch.device("cpu")
        kept = activations(model, training.batch, training.step, device=cpu, context=training.context, **sized)
    except Exception:
        try:
            kept = measured(model, training.batch, training.step, **sized)
        except Exception as error:
            notes.append(f"the memory of activations is not known: {in_short(error)}")
    parts = {
        **state_bytes(model, training.optimizer, training.average),
        "activations": None if kept is None else sum(kept.values()),
        "batch": bytes_of(training.batch) * training.samples // small,
    }
    memory = StepMemory(training.samples, parts)
    return replace(found, training=flops, memory=memory, notes=(*found.notes, *notes))


def _summary(model: nn.Module, call: Call, rules: Mapping[str, ModuleRule]) -> ModelSummary:
    """Run the model; see `summarize`."""
    given = call.args, dict(call.kwargs)
    try:
        flops = count_flops(model, lambda model, arguments: Call(*arguments).run(model), given, rules=rules)
        layers = layers_of(model, call).counted(flops.modules)
    except Exception as error:
        raise _cannot_run(error) from error
    notes = ("the model looks at values: it was run with some, on the CPU",) if flops.measured else ()
    shapes = tuple(tuple(leaf.shape) for leaf in tree_leaves(given) if isinstance(leaf, Tensor))
    return ModelSummary(layers, shapes, flops, notes=notes)


def _cannot_run(error: Exception) -> UserError:
    if isinstance(error, UserError):
        return error
    cause = error.__cause__ if type(error) is RuntimeError and isinstance(error.__cause__, Exception) else error
    what = f"the model cannot be run on such inputs: {in_short(cause)}"
    return UserError(what, key="model", origin=user_frame(cause), family="model-misfit")


def in_units(count: float) -> str:
    """Write a large number with three digits and a letter: `4.09 G`."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}" if count / size < 999.5 else f"{count / size:.0f} {unit}"
    return f"{count:.0f}"


def _trains(layer: Layer) -> str:
    if not layer.parameters:
        return ""
    return "yes" if layer.trainable == layer.parameters else "part" if layer.trainable else "no"


def _lines_of_uncounted(flops: Flops) -> list[tuple[str, str]]:
    """Return lines about operators without a rule."""
    minor, found = [op for op in flops.uncounted if op.minor], list[tuple[str, str]]()
    if flops.unknown:
        names = ", ".join(f"{op.name} ({op.calls} ×)" for op in flops.unknown)
        found.append(("no rule for", f"{names}: what these compute is missing in all numbers above"))
    if minor:
        names = ", ".join(f"{op.name} ({op.calls} ×)" for op in minor[:_SHOWN])
        more = f" and {len(minor) - _SHOWN} more" if len(minor) > _SHOWN else ""
        share = f" ({100 * flops.minor / flops.total:.2g} %)" if flops.total else ""
        found.append(("not counted", f"{names}{more}"))
        found.append(("", f"about {in_units(flops.minor)} FLOPs{share}, at one for each value"))
    return found
