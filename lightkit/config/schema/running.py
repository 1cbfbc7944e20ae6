"""How a run goes: training loop, checkpoints, loggers, resuming."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional, Union

from lightkit.config.schema.base import GRANTS, Target, number


@dataclass
class EarlyStoppingConfig:
    """Ends training when the monitored value no longer improves."""

    patience: Optional[int] = number(None, low=1)
    """Validations without improvement before training ends; null never stops early."""
    min_delta: float = number(0.0, low=0)
    """Smallest change that counts as an improvement, in units of the monitored metric."""


@dataclass
class EmaConfig:
    """Exponential moving average of the weights, used for validation, test and the saved model."""

    decay: Optional[float] = number(None, above=0, below=1)
    """Share of the average kept at each optimizer step, such as 0.999; null keeps no average."""


@dataclass
class NonfiniteConfig:
    """What happens when a training loss is NaN or infinite."""

    action: Literal["stop", "skip", "rollback"] = "stop"
    """End the run, skip the step, or go back to an earlier one. `stop` ends the run (exit status 3) before the weights
    are touched, `skip` leaves out the optimizer step (a GPU is waited for at every step), `rollback` goes back to an
    earlier step and on with lower learning rates."""
    limit: int = number(3, low=1)
    """Steps that may be skipped, or times the run may go back, before it ends after all. A run that has gone back three
    times in succession from the same step ends too, as lower learning rates do not help there."""
    every: int = number(100, low=1)
    """Optimizer steps between two states kept in memory to go back to, for `rollback`."""
    factor: float = number(0.5, above=0, high=1)
    """Factor on all learning rates each time the run goes back, for `rollback`."""


@dataclass
class WatchConfig:
    """What is looked at while a model trains: whether all that trains moves, and nothing else."""

    every: Optional[int] = number(200, low=1)
    """Optimizer steps between two looks; the last step is looked at too, and null never looks. A look finds out whether
    what trains has moved and what is frozen has not, the optimizer has taken one step for each window of batches, all
    processes hold the same weights, and a validation left all as it was. It changes nothing, but waits for a GPU."""
    action: Literal["warn", "stop"] = "warn"
    """Tell what does not hold, once, or end the run with exit status 6."""


@dataclass
class OverfitConfig:
    """A check that the model can learn at all: a few samples, without all that makes learning them by heart harder."""

    samples: Optional[int] = number(None, low=1)
    """Training samples to learn by heart; null trains as usual. `trainer=overfit` takes 8. Augmentation, mixup,
    dropout, label smoothing, weight decay, the schedule of the rate and averages of the weights are off then, and the
    run fails where the loss of the samples does not come down to zero."""
    steps: int = number(1000, low=1)
    """Optimizer steps by which that must have happened; the run ends as soon as it has."""
    loss: float = number(0.01, above=0, below=1)
    """Loss that counts as zero, as a share of the first one."""


@dataclass
class TrainerConfig:
    """The training loop."""

    epochs: Optional[int] = number(20, low=1)
    """Passes over the training split; ignored when `steps` is set."""
    steps: Optional[int] = number(None, low=1)
    """Optimizer steps to train for, in place of `epochs`."""
    stop_at: Optional[Union[int, str]] = None
    """Where the run pauses: after this many epochs, or `300 steps`; null trains to the end. It saves a checkpoint, and
    `lightkit resume` goes on with another `stop_at`. Nothing else depends on it: what was trained is the beginning of
    the whole run, to the bit. The final test comes at the end only."""
    accumulate: int = number(1, low=1)
    """Batches whose gradients are added up for one optimizer step. A last partial window is stepped too."""
    clip_norm: Optional[float] = number(None, above=0)
    """Largest total norm of the gradients; larger ones are scaled down."""
    clip_type: Union[float, str] = 2.0
    """Order of the norm that `clip_norm` limits, or `inf` for the largest absolute value. `grad/norm` is logged in it
    where `clip_norm` is set."""
    clip_value: Optional[float] = number(None, above=0)
    """Largest absolute value of a gradient element."""
    validate_every: int = number(1, low=1)
    """Validations happen every this many `validate_unit`s, and after the last step."""
    validate_unit: Literal["epoch", "step"] = "epoch"
    """What `validate_every` counts: epochs or optimizer steps."""
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)
    """When to end before the last epoch."""
    ema: EmaConfig = field(default_factory=EmaConfig)
    """Moving average of the weights."""
    nonfinite: NonfiniteConfig = field(default_factory=NonfiniteConfig)
    """What happens when a training loss is NaN or infinite."""
    watch: WatchConfig = field(default_factory=WatchConfig)
    """What is looked at while a model trains."""
    task: Target = field(default_factory=lambda: Target("lightkit.trainer.tasks.Supervised"))
    """How a batch becomes a loss and the inputs of the metrics. A subclass of `lightkit.trainer.tasks.Task`."""
    callbacks: dict[str, Target] = field(default_factory=dict)
    """Further callbacks by name: subclasses of `lightkit.trainer.callbacks.Callback`."""
    test: Literal["best", "last", "none"] = "best"
    """Weights for the final test, of the best validation or the last step."""
    find_lr: bool = False
    """Look for a learning rate before the run begins, and take it for `optim.lr`, as `lightkit find lr` suggests it.
    Found by steps in a process of its own. The run's `config.yaml` has what was found; nothing is looked for again."""
    smoke: bool = False
    """Run from end to end in seconds: few samples, and few steps of everything. `trainer=smoke` sets it. Two short
    epochs with validation, checkpoints and the final test; warm-ups, phases, cycles, folds and members are cut down
    with them. Batches keep their size, so that a step needs the memory it will need."""
    overfit: OverfitConfig = field(default_factory=OverfitConfig)
    """A check that the model can learn a few samples by heart."""


@dataclass
class CheckpointConfig:
    """What is saved, how often and how many are kept."""

    enabled: bool = True
    """Write checkpoints at all."""
    every_epochs: Optional[int] = number(1, low=1)
    """Save after every this many epochs; null saves at the end only."""
    every_steps: Optional[int] = number(None, low=1)
    """Save also after every this many optimizer steps."""
    keep_last: int = number(2, low=1)
    """Number of newest checkpoints kept; the one before the last is there when the last is damaged."""
    keep_best: int = number(1, low=0)
    """Number of best checkpoints kept by `metrics.monitor`; 0 keeps none."""
    keep_every: Optional[int] = number(None, low=1)
    """Keep for good the first checkpoint at or after every this many optimizer steps. Null keeps none for that."""
    asynchronous: bool = True
    """Write while training goes on, which then waits for a copy of the state in host memory only."""
    export: Literal["none", "weights", "safetensors", "model", "adapter"] = "none"
    """Write the best weights once more at the end. The files are for others to read: `weights.pt` (a state dict),
    `weights.safetensors`, or `model.pt` (the model with its class, a pickle), all with low-rank updates merged; or
    `adapter.pt`, only the tensors that differ from the pretrained weights."""
    pickle_protocol: int = number(2, low=2, high=5)
    """Protocol of pickle of `weights.pt` and `model.pt`, as of `torch.save`. With 3 and more `torch.load` opens them
    for certain only with `weights_only=False`; what lightkit reads itself, such as checkpoints, has 2 in any case."""


@dataclass
class ConsoleConfig:
    """What is seen while a run goes on."""

    style: Literal["auto", "bar", "lines", "quiet"] = "auto"
    """Progress bar or plain lines; `auto` takes the bar on a terminal."""
    every_seconds: float = number(5.0, above=0)
    """Seconds between two plain lines."""


@dataclass
class TensorBoardConfig:
    """What goes into the TensorBoard directory of the run."""

    enabled: bool = True
    """Write TensorBoard events."""
    graph: bool = False
    """Add the graph of the model, traced on one sample."""
    images: int = number(0, low=0)
    """Number of training images shown; 0 shows none."""


@dataclass
class SystemConfig:
    """Statistics of the machine while training: GPUs of the run, processors, memory, disk."""

    enabled: bool = True
    """Watch the machine in a thread of its own."""
    every_seconds: float = number(10.0, above=0)
    """Seconds between two samples. Their means since the last one are logged with the training values."""


@dataclass
class ProfileConfig:
    """What is recorded with `profile: true`."""

    skip_steps: int = number(10, low=0)
    """Optimizer steps before anything is recorded; a run that is too short for them skips fewer."""
    warmup_steps: int = number(3, low=0)
    """Steps after them that are recorded and thrown away, as the first ones under a profiler are slow."""
    steps: int = number(5, low=0)
    """Steps after these that are kept; 0 only counts time and sets NVTX ranges, as for nsys."""
    memory: bool = False
    """Record what each operator takes and gives back of memory."""
    stacks: bool = False
    """Record the lines of Python that called each operator; slow."""
    shapes: bool = False
    """Record the shapes of the inputs of each operator."""


@dataclass
class LoggerConfig:
    """Where numbers go."""

    every_steps: Optional[int] = number(None, low=1)
    """Optimizer steps between two logged values; null takes 50, or those of an epoch if fewer. The device is only
    waited for at these steps."""
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    """Terminal output."""
    tensorboard: TensorBoardConfig = field(default_factory=TensorBoardConfig)
    """TensorBoard output."""
    system: SystemConfig = field(default_factory=SystemConfig)
    """Statistics of the machine: GPUs of the run, processors, memory, disk."""
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    """What is recorded with `profile: true`."""
    flops: dict[str, Target] = field(default_factory=dict)
    """Functions that count the operations of modules of other packages, for `lightkit summary`, by the name of the
    class: `DeformConv2d: {_target_: my_rules.count_deform, _partial_: true}`."""


@dataclass
class ResumeConfig:
    """Going on with a run that was stopped."""

    mode: Literal["none", "auto"] = "none"
    """Start anew, or go on with the newest unfinished run of the same configuration. Where there is none, `auto` starts
    anew."""
    file: Optional[str] = None
    """Checkpoint of another program that a new run starts from: `{model, optimizer, epoch}`. Rates, schedule and length
    are those of the configuration. `lightkit resume FILE` sets it."""
    epoch: Optional[int] = number(None, low=0)
    """Epochs that are done in `file`; null goes by what the file says."""
    trust: bool = field(default=False, metadata=GRANTS)
    """Open a `file` of Python objects, which runs the code in it. Only for files whose origin is known."""
    override: list[str] = field(default_factory=list, metadata={"patterns": ()})
    """Keys, or patterns of keys, to change although the checkpoint was trained with others: `[optim.lr]`. A node
    (`optim`) stands for all below it."""
