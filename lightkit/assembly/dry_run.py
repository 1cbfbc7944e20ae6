"""A first batch, and all metrics on a few samples, before the run begins: what does not fit costs no training."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, unlogged, user_frame
from lightkit.common.modules import kept_modes, shape_of
from lightkit.data import Data, Loader
from lightkit.data.loaders import small_batch, whole_batch
from lightkit.data.sources import kept_generators
from lightkit.device import Engine
from lightkit.trainer.tasks import Criterion, StepOutput, Supervised, Task, logits

_MOST_PARAMETERS = 20_000_000


def rehearse(
    data: Data,
    model: nn.Module,
    task: Task,
    criterion: Criterion,
    engine: Engine,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Read two samples of the training split and compute their loss on copies of all parts, on the CPU.

    What fails is tried once more as training would do it: with a whole batch, in training mode, on the device. Only
    what fails there too is refused. Nothing is left behind: no random number, no buffer, no open file. Models that are
    large, or cannot be copied, are let pass; their data is still looked at.

    Args:
        data: The data; only its training split is read.
        model: The network on its device.
        task: How a batch becomes a loss.
        criterion: The loss.
        engine: Device and precision.
        given: What the configuration says of the model, which may contradict the data.

    Raises:
        UserError: The first batch of training would fail; the error itself is the `__cause__`.
    """
    with unnoticed(engine.device):
        failure = _first_failure(data, model, task, criterion, engine)
    if failure is not None:
        raise _contradiction(failure, given, data.info.sizes()) or failure


def _contradiction(failure: UserError, given: Mapping[str, Any], sizes: Mapping[str, Any]) -> UserError | None:
    """Return the error for a size of the model that the data has otherwise; None where no such one is given."""
    name = next((name for name in sizes if name in given and given[name] != sizes[name]), None)
    if name is None or failure.families[0].slug != "model-misfit":
        return None
    what, key = f"this contradicts the data, and so {failure.what}", f"model.{name}"
    expected, fix = f"{name}={sizes[name]}, as the data has it", f"leave {key} out: the model gets it from the data"
    problem = UserError(what, key=key, expected=expected, received=given[name], fix=fix, family="model-misfit")
    return _caused_by(failure.__cause__, problem) if isinstance(failure.__cause__, Exception) else problem


def _first_failure(data: Data, model: nn.Module, task: Task, criterion: Criterion, engine: Engine) -> UserError | None:
    batch, error = attempt(lambda: small_batch(data.train))
    if error is not None:
        # It may be that the data set can only be read by workers.
        if attempt(lambda: whole_batch(data.train))[1] is None:
            return None
        what = f"a first training batch cannot be made: {in_short(error)}"
        return _caused_by(error, UserError(what, key="data", origin=user_frame(error)))
    parts = copies(model, task, criterion) if is_small(model) else None
    if parts is None:
        return None
    seen: list[Any] = []

    def forward() -> StepOutput:
        own_model, own_task, own_criterion = parts
        own_model.to("cpu").eval()
        own_model.register_forward_hook(lambda _module, _inputs, output: seen.append(logits(output)))
        if isinstance(own_criterion, nn.Module):
            own_criterion.to("cpu")
        with torch.no_grad():
            return own_task.step(own_model, batch, own_criterion)

    step, error = attempt(forward)
    wrong = _wrong_weights(criterion, task, data.info.num_classes, seen)
    if wrong is not None:
        return wrong
    if error is None:
        return _no_number(step, task)
    return (
        None if _trains(data, (model, task, criterion), engine) else _misfit(error, data, batch, task, criterion, seen)
    )


def _no_number(step: StepOutput, task: Task) -> UserError | None:
    """Return the error of a loss that is not one number; None where it is one."""
    loss = getattr(step, "loss", None)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return None
    what, expected = "the loss of a batch is not one number", "the mean over the samples, a 0-d tensor"
    key, received = (
        "loss" if type(task) is Supervised else "trainer.task",
        loss if isinstance(step, StepOutput) else step,
    )
    return UserError(what, key=key, expected=expected, received=shape_of(received), family="loss-or-metric")


def _trains(data: Data, parts: tuple[nn.Module, Task, Criterion], engine: Engine) -> bool:
    """Tell whether a training step on a whole batch works; out of memory counts as working, as training reports it."""
    copied = copies(*parts)
    if copied is None:
        return True

    def step() -> None:
        model, task, criterion = copied
        batch = engine.move(whole_batch(data.train))
        model.train()
        with engine.autocast():
            task.step(model, batch, criterion)

    error = attempt(step)[1]
    return error is None or isinstance(error, (MemoryError, torch.OutOfMemoryError))


def attempt(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Call a function, and return its result and the error that it raised; one of them is None."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def is_small(model: nn.Module) -> bool:
    """Tell whether a model can be copied, and quickly."""
    lazy = any(nn.parameter.is_lazy(parameter) for parameter in model.parameters())
    return not lazy and sum(parameter.numel() for parameter in model.parameters()) <= _MOST_PARAMETERS


def copies(*parts: Any) -> Any:
    """Copy parts together, so that their copies share what they share; return None where that fails."""
    return attempt(lambda: copy.deepcopy(parts))[0]


@contextmanager
def unnoticed(device: torch.device) -> Iterator[None]:
    """Put back all random generators, and leave warnings to the run itself, also those that metrics log."""
    devices = [device] if device.type == "cuda" else []
    with kept_generators(), torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with unlogged("lightkit.metrics.collection"):
            yield


def arguments_of(criterion: Criterion) -> list[str]:
    """Return the names of what a loss must be given; two where they are not known."""
    inner = getattr(criterion, "inner", criterion)  # what a precision or a strategy has wrapped
    called = inner.forward if isinstance(inner, nn.Module) else inner
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(called).parameters.values()
        if all(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters):
            return [each.name for each in parameters if each.default is each.empty]
    return ["input", "target"]


def _misfit(error: Exception, data: Data, batch: Any, task: Task, criterion: Criterion, seen: list[Any]) -> UserError:
    usual = type(task) is Supervised
    info = data.info
    batch = data.train.unweighted(batch)
    x, y = batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)
    if seen and usual and not isinstance(seen[-1], Tensor):
        kind = "no tensor" if seen[-1] is None else f"a {type(seen[-1]).__name__}"
        what, expected = (
            f"the model gives {kind}, and the loss takes one tensor",
            "a tensor with the samples in dimension 0",
        )
        fix, received = "a task of your own takes it apart: trainer.task._target_=my_module.MyTask", shape_of(seen[-1])
        facts: dict[str, Any] = {"expected": expected, "received": f"output {received}", "fix": fix}
        return _caused_by(error, UserError(what, key="model", family="model-misfit", **facts))
    names = arguments_of(criterion)
    if usual and len(names) != 2 and isinstance(error, TypeError):
        problem = UserError(
            f"the loss takes {', '.join(names)}, and the plain task gives it an output and a target",
            key="loss",
            fix="trainer.task._target_=lightkit.trainer.ByName gives a loss its arguments by name: "
            "docs/guides/losses-and-optimizers.md",
            family="loss-or-metric",
        )
        return _caused_by(error, problem)
    if seen:
        what = f"the output does not go with the targets: {in_short(error)}"
        received = f"output {shape_of(seen[-1])}" + (f" for targets {shape_of(y)}" if y is not None else "")
    else:
        what = f"a first batch fails: {in_short(error)}"
        received = f"input {shape_of(x)}"
    problem = UserError(
        what,
        key="model" if usual or not seen else "trainer.task",
        expected=f"an output for num_classes={info.num_classes} ({info.task} targets)" if usual and seen else None,
        received=received,
        origin=user_frame(error),
        family="model-misfit",
    )
    return _caused_by(error, problem)


def _caused_by(error: Exception, problem: UserError) -> UserError:
    """Return what an error means to the user; one that says so itself is returned as it is."""
    if isinstance(error, UserError):
        return error
    problem.__cause__ = error
    return problem


def _wrong_weights(criterion: Criterion, task: Task, classes: int | None, seen: list[Any]) -> UserError | None:
    """Return the error of a loss of PyTorch's that has another number of weights than there are outputs, or None.

    Some would not fail: what is one number too many may be as many as there are samples, and be spread over them.
    """
    output = seen[-1] if seen else None
    if type(task) is not Supervised or not type(criterion).__module__.startswith("torch.nn."):
        return None
    if not isinstance(output, Tensor) or output.ndim == 0:
        return None
    binary = isinstance(criterion, (nn.BCELoss, nn.BCEWithLogitsLoss))
    each = output.shape[1:] if binary else output.shape[1:2]
    for name in ("weight", "pos_weight"):
        weights = getattr(criterion, name, None)
        if not isinstance(weights, Tensor) or weights.numel() == classes or weights.ndim > 1:
            continue
        if weights.numel() != (each[-1] if each else 1) and not (binary and weights.numel() == 1):
            count = each[-1] if each else 1
            expected = f"{count} number{'s' * (count != 1)}, one for each output"
            received = f"{weights.numel()}: {[round(value, 6) for value in weights.flatten().tolist()[:20]]}"
            return UserError("not one weight for each output", key=f"loss.{name}", expected=expected, received=received)
    return None


Parts = tuple[nn.Module, Task, Criterion]


class Tried(NamedTuple):
    """Metrics of a split that have counted something, and the values that came out."""

    meter: Any
    values: dict[str, float]


def try_metrics(
    data: Data,
    model: nn.Module,
    task: Task,
    criterion: Criterion,
    engine: Engine,
    metrics: Mapping[str, Any],
    *,
    monitor: str,
) -> dict[str, Tried]:
    """Update and compute metrics made anew for each split, with the outputs for two of its samples.

    What fails there, or does not give the monitored value, is tried once more on the whole split, as its evaluation
    would do it: only what fails there too is refused. Nothing is left behind: no random number, no count, no buffer.
    Where no outputs are to be had (the samples cannot be read here, the model wants more of them, or the task gives
    none), nothing is said.

    Args:
        data: The data.
        model: The network on its device, unwrapped.
        task: How a batch becomes inputs of the metrics.
        criterion: The loss.
        engine: Device and precision.
        metrics: The metrics by split; not changed.
        monitor: Name of the value that decides what is best.

    Returns:
        What came out, by split; nothing of those without outputs.

    Raises:
        UserError: A metric does not take what the model gives, or cannot be computed.
    """
    if not metrics or any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        return {}
    with unnoticed(engine.device):
        own = copies(model, task, criterion) if is_small(model) else None
        parts: Parts = own or (model, task, criterion)
        found = {}
        for split, loader in data.loaders().items():
            # In training, a task of the user's may give something else than outside of it.
            training = split == "train" and type(task) is not Supervised
            if split in metrics and (own or not training):
                found[split] = _tried(loader, metrics[split], parts, engine, training=training, monitor=monitor)
    return {split: tried for split, tried in found.items() if tried is not None}


def _tried(loader: Loader, meter: Any, parts: Parts, engine: Engine, *, training: bool, monitor: str) -> Tried | None:
    """Compute metrics of two samples of the split, or else of all of it; return None where there are no outputs."""
    model = parts[0]
    with kept_modes(model):
        model.train(training)
        few = _first(loader, parts, engine)
        if few is None or (not few.log and (few.preds is None or few.target is None)):
            return None
        with suppress(UserError):
            tried = _counted(meter.anew(), [(few, 2)], engine)
            if monitor in tried.values or not monitor.startswith(f"{meter.prefix}/"):
                return tried
        return _counted(meter.anew(), _all(loader, parts, engine), engine)


def _counted(meter: Any, steps: Iterable[tuple[StepOutput, int]], engine: Engine) -> Tried:
    for step, size in steps:
        meter.update(step.preds, step.target, step.loss, engine.ranks.own(size)[1], step.metric_kwargs, log=step.log)
    return Tried(meter, meter.compute())


def _first(loader: Loader, parts: Parts, engine: Engine) -> StepOutput | None:
    """Return the outputs for a small batch, or else for a whole one; None where both fail."""
    for read in (small_batch, whole_batch):
        step, error = attempt(lambda read=read: _step(read(loader), parts, engine))  # type: ignore[misc]
        if error is None:
            return step if isinstance(step, StepOutput) else None
    return None


def _all(loader: Loader, parts: Parts, engine: Engine) -> Iterator[tuple[StepOutput, int]]:
    """Yield outputs and size of each batch of the split, up to one that fails: that is for the run to report."""
    left, read = loader.num_samples, loader.epoch(0)
    with closing(engine.prefetch(read)) as batches:
        for batch in batches:
            step, error = attempt(lambda batch=batch: _step(batch, parts, engine))  # type: ignore[misc]
            if error is not None:
                return
            yield step, min(loader.batch_size, left)
            left -= loader.batch_size


def _step(batch: Any, parts: Parts, engine: Engine) -> StepOutput:
    model, task, criterion = parts
    with torch.no_grad(), engine.autocast():
        return task.step(model, engine.move(batch), criterion)
