"""What the loop trains: a network with its loss, optimizer, schedule, data and counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from lightkit.checkpoint.fitting import LoadReport
from lightkit.checkpoint.store import CheckpointStore
from lightkit.data import Data
from lightkit.device import Engine
from lightkit.finetune.head import Head
from lightkit.finetune.prepare import Prepared
from lightkit.metrics import SharedMetrics, SplitMetrics
from lightkit.optim.schedulers import Schedule
from lightkit.trainer.average import NoAverage
from lightkit.trainer.callbacks import Callback
from lightkit.trainer.state import State, Timetable
from lightkit.trainer.tasks import Criterion, Task


@dataclass(frozen=True)
class Shared:
    """What all models of a process have in common."""

    engine: Engine
    """Device, precision and seeds."""
    data: Data
    """Splits and facts about them."""


@dataclass(frozen=True)
class Network:
    """A network and how it came to be."""

    model: nn.Module
    """The network, without wrappers."""
    report: LoadReport | None = None
    """What was loaded from a file; None where nothing was."""
    head: Head | None = None
    """The output layer; None where there is none, and in plain training."""
    tuning: Mapping[str, object] | None = None
    """Settings of the fine-tuning, each with its value; None in plain training."""
    prepared: Prepared | None = None
    """What fine-tuning made of it; None in plain training."""
    depths: Mapping[str, int] | None = None
    """Layer of each parameter, 0 at the input, where rates or phases go by it."""
    order_notes: tuple[str, ...] = ()
    """Layers of which it cannot be told when they run."""

    @property
    def fresh(self) -> tuple[str, ...]:
        """Names of the tensors that neither a file nor a package of models had pretrained weights for."""
        own: tuple[str, ...] | None = getattr(self.model, "fresh_parameters", None)
        if self.report is None:
            return own or ()
        without = (*self.report.missing, *self.report.reshaped, *self.report.left)
        return without if own is None else tuple(name for name in without if name in own)

    loaded: Mapping[str, str] = field(default_factory=dict)
    """A checksum of each tensor that was loaded from a file, by its name in the network."""


@dataclass(frozen=True)
class Evaluable:
    """A model and how it runs over batches."""

    network: nn.Module
    """What is called: the model, wrapped for several GPUs or for its precision where asked for."""
    task: Task
    """How a batch becomes outputs and a loss."""
    criterion: Criterion
    """The loss."""
    engine: Engine
    """Device, precision and seeds."""


@dataclass(frozen=True)
class Learner(Evaluable):
    """One model and everything that trains it; a run trains one, an ensemble several."""

    data: Data
    """The splits it learns from and is judged on."""
    model: nn.Module
    """The network without any wrapper: its parameter names are the saved ones."""
    optimizer: Optimizer
    """Steps over named parameter groups."""
    scheduler: Schedule
    """Learning rates over time."""
    timetable: Timetable
    """Lengths and intervals."""
    metrics: Mapping[str, SplitMetrics | SharedMetrics]
    """Metrics of each split: `train`, `val` and `test`."""
    made: Network
    """How the model came to be: pretrained weights, head, what was injected."""
    average: NoAverage = field(default_factory=NoAverage)
    """Average of the weights to evaluate with."""
    callbacks: Mapping[str, Callback] = field(default_factory=dict)
    """Hooks by name, in the order in which they are called."""
    store: CheckpointStore | None = None
    """The checkpoints; None when none are written."""
    state: State = field(default_factory=State)
    """Counters of its training, which the loop advances."""
