"""Which members can train at once: what they have to have in common, and proof on one batch that nothing is shared."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.failures import in_short
from lightkit.common.modules import kept_modes, trains
from lightkit.data.tensors import Taker
from lightkit.diagnostics.spans import NoSpans
from lightkit.ensemble.stack import Stack, StackMember
from lightkit.ensemble.unlike import SETTINGS
from lightkit.ensemble.vectorized import VectorStepper
from lightkit.ensemble.vmapped import seeders
from lightkit.metrics import SplitMetrics
from lightkit.optim.schedulers import Schedule
from lightkit.optim.wrapped import Torch
from lightkit.trainer.average import Ema, NoAverage
from lightkit.trainer.callbacks import EarlyStopping
from lightkit.trainer.guard import Guard, Kept
from lightkit.trainer.learner import Learner
from lightkit.trainer.step import PlainStepper

ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop", "ASGD")
"""Optimizers of PyTorch's that treat every element of a parameter by itself."""
PRECISIONS = ("fp32", "tf32", "bf16", "fp64")
_TOLERANCES = {"fp64": 1e-6, "bf16": 0.2}
_TOLERANCE = 2e-2
_SMALL = 100_000
"""Parameters of a model below which a stack pays wherever it was measured."""
_SHARE = 0.02
"""Largest share of a run that measuring may take."""
_MEASURED = 6
"""Steps that measuring takes about as long as."""


def refusal(learner: Learner) -> str:
    """Return why a member cannot train at once with others like it; empty where nothing speaks against it."""
    return _first_of([*_of_machine(learner), *_of_parts(learner)])


def unlikeness(learners: Sequence[Learner]) -> str:
    """Return in what members are so unlike that they cannot train at once; empty where they are alike."""
    first, *others = learners
    return _first_of([check for other in others for check in _unlike(first, other)])


def _first_of(checks: Iterable[tuple[bool, str]]) -> str:
    return next((reason for stands_against, reason in checks if stands_against), "")


def _of_machine(learner: Learner) -> tuple[tuple[bool, str], ...]:
    """Return what may stand against it in the device, each with the reason."""
    engine = learner.engine
    precision = f"device.precision={engine.precision.name} scales losses or rounds weights for each model by itself"
    return (
        (engine.ranks.size > 1, "several processes train together"),
        (learner.network is not learner.model, "the model is compiled or spread over several devices"),
        (engine.precision.name not in PRECISIONS, precision),
    )


def _of_parts(learner: Learner) -> tuple[tuple[bool, str], ...]:
    """Return what may stand against it in what trains a member, and in its data."""
    schedule, kind, metrics = learner.scheduler, type(learner.optimizer), learner.metrics
    whole = not kind.__module__.startswith("torch.optim") or kind.__name__ not in ELEMENTWISE
    watched = isinstance(schedule, Torch) or schedule.monitored or type(schedule).epoch_end is not Schedule.epoch_end
    own = next((name for name, part in learner.callbacks.items() if type(part) not in (EarlyStopping, Kept)), None)
    stops = learner.timetable.validate_unit == "step" and "early_stopping" in learner.callbacks
    taken = all(isinstance(loader.source, Taker) for loader in learner.data.loaders().values())
    single = {key: part.for_one_model() for key, part in metrics.items() if isinstance(part, SplitMetrics)}
    name = next((f"{key}.{found}" for key, found in single.items() if found), None)
    return (
        (learner.made.prepared is not None, "the members are fine-tuned"),
        (whole, f"{kind.__name__} may look at a whole tensor, which is that of all members here"),
        (watched, "the schedule goes by the values of one model, or is PyTorch's"),
        (own is not None, f"trainer.callbacks.{own} looks at one model"),
        (stops, "early stopping may end a member in the middle of an epoch"),
        (type(learner.average) not in (NoAverage, Ema), "the average of the weights is of another kind"),
        (bool(learner.data.more), "the sets of data.more are measured by one model at a time"),
        (not taken, "the data are read sample by sample"),
        (learner.data.train.options.weights is not None, "rows have weights"),
        (trains(learner.criterion), "the loss has parameters that train"),
        (len(single) < len(metrics), "the metrics are shared by several processes"),
        (name is not None, f"metrics.{name} is for one model at a time"),
    )


def _unlike(first: Learner, other: Learner) -> tuple[tuple[bool, str], ...]:
    """Return in what a member may differ from the first."""
    own, keeps_rates = other.optimizer is not first.optimizer, isinstance(first.optimizer, torch.optim.ASGD)
    lengths = [(one.timetable, one.data.train.options.batch_size) for one in (first, other)]
    rows = [len(one.data.rows.get("val", _NONE)) for one in (first, other)]
    mine, yours = _tensors(first.criterion), _tensors(other.criterion)
    return (
        (_shape(first.model) != _shape(other.model), "the models differ in their tensors"),
        (lengths[0] != lengths[1], "the members train for different numbers of steps"),
        (own and (keeps_rates or _groups(first) != _groups(other)), "the optimizers differ"),
        (
            bool(first.data.more) and other.data.source is not first.data.source,
            "each member prepares further sets (data.more) in its own way",
        ),
        (rows[0] != rows[1], "the members are judged on different numbers of rows"),
        (
            mine.keys() != yours.keys() or not all(mine[name].equal(yours[name]) for name in mine),
            "the losses have other weights",
        ),
        (bool(first.state.step or other.state.step), "a member has begun by itself"),
    )


_NONE = torch.zeros(0, dtype=torch.int64)
"""The rows of a split that is not there."""


def _shape(model: nn.Module) -> dict[str, Any]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: (tuple(t.shape), t.dtype, t.requires_grad) for name, t in tensors.items()}


def _groups(learner: Learner) -> list[Any]:
    names = {parameter: name for name, parameter in learner.model.named_parameters()}
    return [
        ({key: value for key, value in group.items() if key not in SETTINGS}, [names[p] for p in group["params"]])
        for group in learner.optimizer.param_groups
    ]


def _tensors(criterion: Any) -> dict[str, Tensor]:
    return dict(criterion.state_dict()) if isinstance(criterion, nn.Module) else {}


def difference(stack: Stack) -> str:
    """Compute a batch in the stack and its first and last member's part alone, and return in what they differ.

    Losses, gradients and buffers are compared, in training and in evaluation. Nothing is left behind: no gradient, no
    buffer, no random number.
    """
    one = next(iter(stack.loader.loaders[0].epoch(0)), None)
    if one is None:
        return "there is no batch"
    if not (isinstance(one, tuple) and len(one) == 2 and all(isinstance(part, Tensor) for part in one)):
        return "the batches are no pairs of tensors"
    try:
        batch = next(stack.loader.epoch(0))
        with _undisturbed(stack):
            return _compared(stack, stack.learner.engine.move(batch))
    except Exception as error:
        return f"it cannot be computed for all members at once: {in_short(error)}"


def _compared(stack: Stack, batch: tuple[Tensor, Tensor]) -> str:
    engines = [member.learner.engine for member in stack.active]
    limit = _TOLERANCES.get(engines[0].precision.name, _TOLERANCE)
    for training in (True, False):
        stack.model.train(training)
        before = {name: tensor.clone() for name, tensor in stack.model.states.items()}
        with engines[0].autocast():
            found = stack.computation(batch, seeds=seeders(engines, 0, 0))
        weights = {name: weight for name, weight in stack.model.weights.items() if weight.requires_grad}
        grads = torch.autograd.grad(found.loss.sum(), [*weights.values()], allow_unused=True, materialize_grads=True)
        for row in range(len(engines)) if stack.computation.networks else {0, len(engines) - 1}:
            wrong = _alone(stack, row, batch, before, training=training)
            together = {
                "loss": found.loss[row],
                **{name: grad[row] for name, grad in zip(weights, grads)},
                **{name: tensor[row] for name, tensor in stack.model.states.items()},
            }
            bad = next((name for name, value in wrong.items() if not _close(together[name], value, limit)), None)
            if bad is not None:
                what = "training" if training else "evaluation"
                return f"{bad} of member {stack.active[row].name} comes out differently in {what} than alone"
    with engines[0].autocast():
        stack.computation([part[0] for part in batch], shared=True)  # of rows that all are judged by
    return ""


def _alone(
    stack: Stack, row: int, batch: tuple[Tensor, Tensor], buffers: Mapping[str, Tensor], *, training: bool
) -> dict[str, Tensor]:
    """Compute a member's part of a batch by its own model; returns loss, gradients and buffers by name."""
    learner = stack.active[row].learner
    model, task, criterion = copy.deepcopy((learner.model, learner.task, learner.criterion))
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name][row])
    model.train(training)
    learner.engine.seed(0, 0)
    with learner.engine.autocast():
        loss = task.step(model, tuple(part[row] for part in batch), criterion).loss
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    grads = torch.autograd.grad(loss, [*weights.values()], allow_unused=True, materialize_grads=True)
    return {"loss": loss.detach(), **dict(zip(weights, grads)), **dict(model.named_buffers())}


def _close(one: Tensor, other: Tensor, limit: float) -> bool:
    """Tell whether two tensors are the same but for rounding, which a chain of layers makes larger."""
    if one.shape != other.shape:
        return False
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).norm()) <= limit * max(float(other.norm()), 1e-4)


@contextmanager
def _undisturbed(stack: Stack) -> Iterator[None]:
    """Put back modes, buffers and random generators that are changed inside."""
    device = stack.learner.engine.device
    kept = {name: tensor.clone() for name, tensor in stack.model.states.items()}
    try:
        with kept_modes(stack.model), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        for name, tensor in stack.model.states.items():
            tensor.copy_(kept[name])


def gain(stack: Stack, learners: Sequence[Learner]) -> tuple[float | None, str]:
    """Tell how many times faster the stack is than one member after the other, and how that is known.

    Some steps of both are measured on copies. Where that would take more than 2 % of the run, the size of the model
    decides.

    Args:
        stack: The stack; not changed.
        learners: The members as they were built.
    """
    size = sum(weight[0].numel() for weight in stack.model.parameters())
    steps = stack.learner.timetable.total_steps
    if steps * _SHARE < _MEASURED:
        speed = 2.0 if size <= _SMALL else 0.9
        return speed, f"{size:,} parameters a model, and too few steps to measure"
    own_stack = Stack([StackMember(member.name, member.learner) for member in stack.active])  # which copies the weights
    together = _timed(own_stack.learner, VectorStepper(own_stack, NoSpans()))
    one = _copy(learners[0])
    alone = _timed(one, PlainStepper(one, Guard(one.engine.device), NoSpans()))
    if together is None or alone is None:
        return None, "steps cannot be measured on copies"
    ratio = alone * len(learners) / together
    return (
        ratio,
        f"a step of all {len(learners)} takes {together * 1e3:.2g} ms, one after the other {ratio:.2g} times that",
    )


def _copy(learner: Learner) -> Learner:
    """Copy what a step changes."""
    model, optimizer, criterion, task = copy.deepcopy(
        (learner.model, learner.optimizer, learner.criterion, learner.task)
    )
    metrics = {
        split: part.anew() if isinstance(part, SplitMetrics) else part for split, part in learner.metrics.items()
    }
    schedule = copy.copy(learner.scheduler)
    schedule.optimizer = optimizer
    return replace(
        learner,
        model=model,
        network=model,
        optimizer=optimizer,
        criterion=criterion,
        task=task,
        metrics=metrics,
        scheduler=schedule,
        average=NoAverage(),
    )


def _timed(learner: Learner, stepper: Any) -> float | None:
    """Measure the fastest of the first steps after one that does not count, in seconds."""
    seconds, size = list[float](), learner.timetable.batch_size
    learner.model.train()
    for number, batch in zip(range(3), learner.data.train.epoch(0)):
        began = perf_counter()
        stepper.micro(learner.engine.move(batch), position=number * size, size=size, window=size, more=False)
        stepper.update(usable=True, want_norm=False)
        if learner.engine.device.type == "cuda":
            torch.cuda.synchronize(learner.engine.device)
        seconds.append(perf_counter() - began)
    return min(seconds[1:], default=None)
