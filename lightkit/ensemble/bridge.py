"""Containers and files of torchensemble.

Its loader `torchensemble.utils.io.load` goes by the name of a file.

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
from itertools import count
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
import torchensemble
from torch import Tensor, nn
from torch.optim import Optimizer
from torchensemble import adversarial_training, bagging, snapshot_ensemble, voting
from torchensemble.utils import set_module

from lightkit.checkpoint.export import write_state_dict
from lightkit.common.errors import NOT_FINITE, UserError, writing_to
from lightkit.ensemble.module import Ensemble, Joint, Rule

TASKS = {"multiclass": "Classifier", "regression": "Regressor"}
CLASSES = {
    "Voting": "Voting",
    "Greedy": "Voting",
    "FastGeometric": "FastGeometric",
    "Bagging": "Bagging",
    "Adversarial": "AdversarialTraining",
    "Snapshot": "SnapshotEnsemble",
    "Fusion": "Fusion",
    "GradientBoosting": "GradientBoosting",
    "SoftGradientBoosting": "SoftGradientBoosting",
}
"""The class of torchensemble for each method, without the kind of target that its name ends with."""
_SUMS = {"Fusion", "FastGeometric", "GradientBoosting", "SoftGradientBoosting"}
"""Classes whose outputs, not their probabilities, are added up."""
_FILE = re.compile(r"(?P<kind>[A-Za-z]+?)(?P<task>Classifier|Regressor)_(?P<base>.+)_(?P<size>\d+)_ckpt\.pth")
_ESTIMATORS = "estimators_."


def to_torchensemble(ensemble: Ensemble, *, method: str = "Voting", outputs: int) -> Any:
    """Make a container of torchensemble that predicts what an ensemble predicts; it has the same networks.

    Args:
        ensemble: The ensemble.
        method: Name of the method it was trained by, a class of `lightkit.ensemble.methods`.
        outputs: Classes, or regression targets.

    Raises:
        UserError: torchensemble has no such ensemble.
    """
    estimators, options = list(ensemble), dict[str, Any]()
    if len(estimators) == 1 and isinstance(estimators[0], Joint):
        joint = estimators[0]
        estimators, scales = list(joint.estimators), [joint.scale]
    else:
        scales = ensemble.weights.tolist()
    kind = CLASSES.get(method, "")
    if kind == "FastGeometric" and ensemble.rule != "sum":  # its container averages outputs, and not probabilities
        kind = "Voting"
    _check(estimators, scales, ensemble.task, kind or method)
    if kind in ("GradientBoosting", "SoftGradientBoosting"):
        options["shrinkage_rate"] = scales[0]
    elif ensemble.rule == "hard" and ensemble.task == "multiclass":
        kind, options["voting_strategy"] = "Voting", "hard"
    made = getattr(torchensemble, f"{kind}{TASKS[ensemble.task]}")(
        estimator=type(estimators[0]), n_estimators=len(estimators), cuda=False, **options
    )
    made.estimators_.extend(estimators)
    made.n_outputs = outputs
    return made.eval()


def rule_of(kind: str, *, vote: str = "soft", size: int) -> tuple[Rule, float]:
    """Return how the networks of a class of torchensemble become one, and what each counts.

    Args:
        kind: Name of the class without the kind of target, such as `Voting`.
        vote: `soft` or `hard`, for classes that know both.
        size: Number of networks.
    """
    if kind in _SUMS:
        return "sum", 1.0 if kind.endswith("GradientBoosting") else 1 / size
    return cast("Rule", vote if kind in ("Voting", "SnapshotEnsemble") else "soft"), 1 / size


def write_file(container: Any, folder: Path) -> Path:
    """Write a container under the name that `torchensemble.utils.io.load(model, folder)` looks for.

    Args:
        container: What `to_torchensemble` has made.
        folder: Where to; made if it is not there.

    Raises:
        UserError: It cannot be written; a file of that name is as it was.
    """
    name = f"{type(container).__name__}_{container.base_estimator_.__name__}_{container.n_estimators}_ckpt.pth"
    content = {
        "n_estimators": len(container),
        "model": {name: tensor.detach().cpu() for name, tensor in container.state_dict().items()},
        "_criterion": None,  # an object, which PyTorch no longer reads by itself
        "n_outputs": container.n_outputs,
    }
    with writing_to(folder, "cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
    write_state_dict(content, folder / name)
    return folder / name


@dataclass(frozen=True)
class TorchEnsembleFile:
    """What a file of torchensemble holds."""

    kind: str
    """Class without the kind of target, such as `Voting`."""
    task: str
    """`multiclass` or `regression`."""
    states: list[dict[str, Tensor]]
    """The tensors of each network by name."""


def read_file(path: Path, content: Mapping[str, Any]) -> TorchEnsembleFile:
    """Read a file that torchensemble has written.

    Args:
        path: Its path, whose name tells the class.
        content: What is in it.

    Raises:
        UserError: It is no such file, or there is no such ensemble here.
    """
    named = _FILE.fullmatch(path.name)
    if named is None or named["kind"] not in CLASSES.values():
        expected = f"{{{','.join(dict.fromkeys(CLASSES.values()))}}}{{Classifier,Regressor}}_NETWORK_SIZE_ckpt.pth"
        what = "the name of the file does not tell which ensemble it holds"
        raise UserError(what, key=str(path), received=path.name, expected=expected, family="file")
    try:
        size, state = int(content["n_estimators"]), content["model"]
        prefixes = [f"{_ESTIMATORS}{number}." for number in range(size)]
        states = [
            {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
            for prefix in prefixes
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError("the file is not one of torchensemble", key=str(path), family="file") from error
    if not all(states) or not states:
        raise UserError("the file lacks networks", key=str(path), expected=str(size), family="file")
    task = next(task for task, ending in TASKS.items() if ending == named["task"])
    return TorchEnsembleFile(named["kind"], task, states)


def _check(estimators: Sequence[nn.Module], scales: Sequence[float], task: str, kind: str) -> None:
    """Refuse an ensemble that torchensemble does not have."""
    names = list(dict.fromkeys(type(network).__name__ for network in estimators))
    own = any(type(network).__module__.startswith("lightkit.ensemble.") for network in estimators)
    shapes = {tuple((name, tensor.shape) for name, tensor in one.state_dict().items()) for one in estimators}
    problems = (
        (task not in TASKS, "targets of this kind", task, " or ".join(TASKS)),
        (kind not in CLASSES.values(), "this method", kind, ", ".join(CLASSES)),
        (own, "members that are ensembles, or scale their inputs", ", ".join(names), "single networks"),
        (len(shapes) * len(names) > 1, "unlike members", ", ".join(names), "one kind"),
        (
            max(scales) - min(scales) > 1e-6 * max(scales),
            "members of unlike weight",
            ", ".join(f"{weight:.4g}" for weight in scales),
            "ensemble.weights=uniform",
        ),
    )
    for wrong, what, received, expected in problems:
        if wrong:
            what = f"torchensemble does not know {what}"
            raise UserError(what, key="--to", received=received, expected=expected, family="ensemble")


_BESIDE = ("Voting", "Bagging", "AdversarialTraining")
"""Classes that train one epoch of each network in turn."""
_LOSS = re.compile(r"Loss: (\S+)")
_NOISE = "None"
"""What its snapshots print where there is no TensorBoard."""


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


@dataclass(eq=False)
class TorchEnsembleFit:
    """One training by torchensemble, which takes this for its loader."""

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
    show: Callable[[int, int, float], None]
    """Called with member, epochs done and the mean loss after each pass over the rows."""
    tell: Callable[[str], None]
    """Called with any other line that torchensemble writes."""
    start: dict[str, Tensor] | None = None
    """The weights that the cycles of `FastGeometric` begin with, once it is trained."""
    dataset = None
    """What torchensemble would count the classes of."""

    def __post_init__(self) -> None:
        self.kind = CLASSES[self.method]
        self.losses: list[list[float]] = [[] for _ in self.epochs]  # the mean of each epoch, as torchensemble told it
        self._passes = iter(passes(self.kind, self.epochs, self.size))
        self._networks, self._optimizers, self._current = count(), count(), list[float]()

    def run(self) -> Any:
        """Train, and return the ensemble of torchensemble.

        Raises:
            UserError: It ended the training, or a loss was no longer finite.
        """
        kind = self.kind
        made = {"n_jobs": 1} if kind in _BESIDE else {}
        fitted = {"use_reduction_sum": False} if kind.endswith("GradientBoosting") else {}
        container = getattr(torchensemble, f"{kind}{TASKS[self.task]}")(
            estimator=nn.Module, n_estimators=self.size, cuda=False, **made, **self.made
        )
        container.device, container.tb_logger, container.logger = self.device, None, _logger(self._line)
        container._make_estimator, container._decide_n_outputs = self._network, lambda loader: self.outputs
        container.set_optimizer("Adam")  # a name is wanted; the optimizer is the one that is handed over
        if not kind.endswith("GradientBoosting"):
            container.set_criterion(self.criterion)
        epochs = sum(self.epochs) if kind == "SnapshotEnsemble" else self.epochs[0]
        with self._replaced():
            try:
                container.fit(self, epochs=epochs, log_interval=1, save_model=False, **fitted, **self.fitted)
            except UserError:
                raise
            except ValueError as error:
                what = f"torchensemble ended the training: {error}"
                raise UserError(what, key="ensemble.engine", received="torchensemble", family="ensemble") from error
        return container

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        """Let torchensemble print to the run's log, and take its optimizers and the rows of a bagging from the run."""
        printing = (voting, bagging, adversarial_training, snapshot_ensemble)
        loaders: Any = lambda loader, size: [loader] * size  # noqa: E731
        with ExitStack() as stack:
            for module in printing:
                stack.enter_context(patch.object(module, "print", self._line, create=True))
            stack.enter_context(patch.object(bagging, "_get_bagging_dataloaders", loaders))
            stack.enter_context(patch.object(set_module, "set_optimizer", self._optimizer))
            yield

    def _network(self) -> nn.Module:
        """Give the next network, where torchensemble would make one; a copy, for weights to be kept in, after the last.

        Copies of an instance would all start equal.
        """
        number, networks = next(self._networks), self.networks
        return networks[number] if number < len(networks) else copy.deepcopy(networks[-1])

    def _optimizer(self, model: nn.Module, name: str, **arguments: Any) -> Optimizer:
        return self.optimizer(next(self._optimizers))

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of the next pass over the rows."""
        member, epoch = next(self._passes)
        self._before(member)
        self._current = []
        yield from self.batches(member, epoch)
        loss = math.fsum(self._current) / max(1, len(self._current))
        if not math.isfinite(loss):
            what = f"the loss is no longer finite in epoch {epoch + 1} of member {member:02}"
            raise UserError(what, received=loss, fix="a lower optim.lr", exit_code=NOT_FINITE, family="not-finite")
        self.losses[member].append(loss)
        self.show(member, len(self.losses[member]), loss)

    def _before(self, member: int) -> None:
        if self.kind == "GradientBoosting":
            # Else earlier networks would go on to change their running statistics, and to drop units.
            for earlier in self.networks[:member]:
                earlier.eval().requires_grad_(False)
        if self.kind == "FastGeometric" and member and self.start is None:
            self.start = copy.deepcopy(self.networks[0].state_dict())

    def _line(self, text: str) -> None:
        """Take in a line that torchensemble writes."""
        found = _LOSS.search(text)
        if found:
            self._current.append(float(found[1]))
        elif text != _NOISE:
            self.tell(text)


def _logger(line: Callable[[str], None]) -> logging.Logger:
    """Return a logger that is not known to `logging`, in the place of the root logger."""

    class LineHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line(record.getMessage())

    logger = logging.Logger("torchensemble")
    logger.addHandler(LineHandler())
    return logger
