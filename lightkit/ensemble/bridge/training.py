"""Training by torchensemble: its classes and their `fit`, with networks, batches, loss and optimizers of a run.

What it would do by itself and get wrong is handed over: networks that differ from the first step on, the number of
classes, which rows each member of a bagging learns from, and optimizers with their groups and their schedule.
"""

from __future__ import annotations

import copy
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torchensemble
from torch import Tensor, nn
from torch.optim import Optimizer
from torchensemble import adversarial_training, bagging, snapshot_ensemble, voting
from torchensemble.utils import set_module

from lightkit.common.errors import UserError
from lightkit.common.exit_codes import NOT_FINITE
from lightkit.ensemble.bridge.containers import CLASSES, TASKS

_BESIDE = ("Voting", "Bagging", "AdversarialTraining")
"""Classes that train one epoch of each network in turn."""
_JOINT = ("Fusion", "SoftGradientBoosting")
_LOSS = re.compile(r"Loss: (\S+)")
_NOISE = "None"
"""What its snapshots print where there is no TensorBoard."""


@dataclass(frozen=True)
class Given:
    """What a training by torchensemble is given."""

    method: str
    """A class of `lightkit.ensemble.methods`."""
    task: str
    """`multiclass` or `regression`."""
    outputs: int
    """Classes, or numbers that are predicted."""
    device: torch.device
    """Where the networks are."""
    networks: Sequence[nn.Module]
    """Those that are trained, on the device. Of methods that keep copies of one network, that one."""
    size: int
    """Networks of the ensemble."""
    epochs: Sequence[int]
    """Of each member of the run."""
    length: int
    """Batches of an epoch."""
    batches: Callable[[int, int], Iterable[tuple[Tensor, Tensor]]]
    """Gives those of a member in an epoch."""
    criterion: Callable[[Tensor, Tensor], Tensor]
    """The loss, of methods that have one."""
    optimizer: Callable[[int], Optimizer]
    """Builds the optimizer of a member, with its schedule."""
    made: Mapping[str, Any]
    """Further arguments of the class."""
    fitted: Mapping[str, Any]
    """Further arguments of its `fit`."""


@dataclass(frozen=True)
class Fitted:
    """What came of a training."""

    container: Any
    """The ensemble of torchensemble."""
    start: dict[str, Tensor] | None
    """The weights that the cycles of `FastGeometric` begin with."""
    losses: list[list[float]]
    """Of each member of the run the mean loss of each epoch, as torchensemble told it."""


def passes(kind: str, epochs: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Return member and epoch of each pass over the rows, in the order in which torchensemble makes them.

    Args:
        kind: Name of the class without the kind of target.
        epochs: Of each member of the run.
        size: Networks of the ensemble.
    """
    if kind in _BESIDE:
        return [(member, epoch) for epoch in range(epochs[0]) for member in range(size)]
    if kind != "FastGeometric":
        return [(member, epoch) for member, own in enumerate(epochs) for epoch in range(own)]
    half = epochs[1] // 2  # it keeps its networks in the middle of its cycles, where the rate is lowest
    cycles = [divmod(number, epochs[1]) for number in range(half, size * epochs[1])]
    return [*((0, epoch) for epoch in range(epochs[0])), *((1 + cycle, epoch) for cycle, epoch in cycles)]


class TorchEnsembleFit:
    """One training by torchensemble.

    Args:
        given: What it trains, and with what.
        told: Called with member, epochs done and the mean loss after each pass over the rows.
        tell: Called with any other line that torchensemble writes.

    Raises:
        UserError: It ended the training, or a loss was no longer finite.
    """

    dataset = None
    """What torchensemble would count the classes of."""

    def __init__(
        self, given: Given, told: Callable[[int, int, float], None], tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self.given, self.told, self.tell = given, told, tell
        self.kind = CLASSES[given.method]
        self.losses: list[list[float]] = [[] for _ in given.epochs]
        self._passes = iter(passes(self.kind, given.epochs, given.size))
        self._made = self._optimizers = 0
        self._current: list[float] = []
        self._start: dict[str, Tensor] | None = None

    def run(self) -> Fitted:
        """Train."""
        given, kind = self.given, self.kind
        made = {"n_jobs": 1} if kind in _BESIDE else {}
        fitted = {"use_reduction_sum": False} if kind.endswith("GradientBoosting") else {}
        container = getattr(torchensemble, f"{kind}{TASKS[given.task]}")(
            estimator=nn.Module, n_estimators=given.size, cuda=False, **made, **given.made
        )
        container.device, container.tb_logger, container.logger = given.device, None, _logger(self._line)
        container._make_estimator, container._decide_n_outputs = self._network, lambda loader: given.outputs
        container.set_optimizer("Adam")  # a name is wanted; the optimizer is the one that is handed over
        if not kind.endswith("GradientBoosting"):
            container.set_criterion(given.criterion)
        epochs = sum(given.epochs) if kind == "SnapshotEnsemble" else given.epochs[0]
        with self._replaced():
            try:
                container.fit(self, epochs=epochs, log_interval=1, save_model=False, **fitted, **given.fitted)
            except UserError:
                raise
            except ValueError as error:
                what = f"torchensemble ended the training: {error}"
                raise UserError(what, key="ensemble.engine", received="torchensemble", family="ensemble") from error
        return Fitted(container, self._start, self.losses)

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        """Let torchensemble print to the run's log, and take its optimizers and the rows of a bagging from the run."""
        printing = (voting, bagging, adversarial_training, snapshot_ensemble)
        loaders: Any = lambda loader, size: [loader] * size  # noqa: E731
        with ExitStack() as stack:
            for module in printing:
                stack.enter_context(_swapped(module, "print", self._line))
            stack.enter_context(_swapped(bagging, "_get_bagging_dataloaders", loaders))
            stack.enter_context(_swapped(set_module, "set_optimizer", self._optimizer))
            yield

    def _network(self) -> nn.Module:
        """Give the next network, where torchensemble would make one; a copy, for weights to be kept in, after the last.

        Copies of an instance would all start equal.
        """
        number, networks = self._made, self.given.networks
        self._made += 1
        return networks[number] if number < len(networks) else copy.deepcopy(networks[-1])

    def _optimizer(self, model: nn.Module, name: str, **arguments: Any) -> Optimizer:
        number = self._optimizers
        self._optimizers += 1
        return self.given.optimizer(number)

    def __len__(self) -> int:
        return self.given.length

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of the next pass over the rows."""
        member, epoch = next(self._passes)
        self._before(member)
        self._current = []
        yield from self.given.batches(member, epoch)
        loss = math.fsum(self._current) / max(1, len(self._current))
        if not math.isfinite(loss):
            what = f"the loss is no longer finite in epoch {epoch + 1} of member {member:02}"
            raise UserError(what, received=loss, fix="a lower optim.lr", exit_code=NOT_FINITE, family="not-finite")
        self.losses[member].append(loss)
        self.told(member, len(self.losses[member]), loss)

    def _before(self, member: int) -> None:
        if self.kind == "GradientBoosting":
            # Else earlier networks would go on to change their running statistics, and to drop units.
            for earlier in self.given.networks[:member]:
                earlier.eval().requires_grad_(False)
        if self.kind == "FastGeometric" and member and self._start is None:
            self._start = copy.deepcopy(self.given.networks[0].state_dict())

    def _line(self, text: str) -> None:
        """Take in a line that torchensemble writes."""
        found = _LOSS.search(text)
        if found:
            self._current.append(float(found[1]))
        elif text != _NOISE:
            self.tell(text)


@contextmanager
def _swapped(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Put another object into a module."""
    before = vars(module).get(name)
    setattr(module, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(module, name)
        else:
            setattr(module, name, before)


def _logger(line: Callable[[str], None]) -> logging.Logger:
    """Return a logger that is not known to `logging`, in the place of the root logger."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line(record.getMessage())

    logger = logging.Logger("torchensemble")
    logger.addHandler(Lines())
    return logger
