"""How a run goes: training loop, checkpoints, loggers, resuming."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal, Optional, Union, cast

from lightkit.config.schema.base import INTERNAL, USER_ONLY, Target, number, section


@section
class EarlyStoppingConfig:
    """Ends training when the monitored value no longer improves, or is good enough."""

    patience: Optional[int] = number(None, low=1)
    """Validations without improvement before training ends; null never stops early."""
    min_delta: float = number(0.0, low=0)
    """Smallest change that counts as an improvement, in units of the monitored metric."""
    target: Optional[float] = number(None)
    """Value of the monitored metric at which training ends: at or above it, or at or below it with
    `metrics.mode=min`. Null waits for none."""
    from_epoch: int = number(1, low=1)
    """First epoch whose validations count, the first of the run being 1. What is measured before it is neither the best
    nor waited for."""


@section
class EmaConfig:
    """Exponential moving average of the weights, used for validation, test and the saved model."""

    decay: Optional[float] = number(None, above=0, below=1)
    """Decay of the average at each optimizer step, such as 0.999; null keeps no average."""


@section
class SwaConfig:
    """Stochastic weight averaging (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407).

    The mean of the weights at the ends of epochs, used for validation, test and the saved model.
    """

    from_epoch: Optional[int] = number(None, low=1)
    """First epoch whose weights are averaged, the first of the run being 1; null averages none. Before its end, the
    weights in training are evaluated. Usual is the last quarter of a run, at a constant or cyclic learning rate."""
    update_bn: bool = True
    """Compute the statistics of batch norm for the averaged weights, which costs a forward pass over the training rows
    after each of these epochs. A model without batch norm needs none."""


@section
class NonfiniteConfig:
    """What happens when a training loss is NaN or infinite."""

    action: Literal["stop", "skip", "rollback"] = "stop"
    """End the run, skip the step, or go back to an earlier step. `stop` ends the run (exit status 3) before the weights
    change. `skip` skips the optimizer step; on a GPU this makes every step wait. `rollback` goes back to an earlier
    step and continues with lower learning rates."""
    limit: int = number(3, low=1)
    """Number of skipped steps, or of rollbacks, after which the run ends. It also ends after three rollbacks in a row
    from the same step, because lower learning rates do not help there."""
    every: int = number(100, low=1)
    """Optimizer steps between two states that are kept in memory for `rollback`."""
    factor: float = number(0.5, above=0, high=1)
    """Factor on all learning rates each time the run goes back, for `rollback`."""


@section
class WatchConfig:
    """What is looked at while a model trains: whether all that trains moves, and nothing else."""

    every: Optional[int] = number(200, low=1)
    """Optimizer steps between two checks; the last step is always checked, and null never checks. A check verifies that
    trained parameters changed and frozen ones did not, that the optimizer took one step per `accumulate` batches, that
    all processes have the same weights, and that validations change nothing. A check does not change the training, but
    makes it wait for the GPU."""
    action: Literal["warn", "stop"] = "warn"
    """Warn once about a failed check, or end the run with exit status 6."""


@section
class OverfitConfig:
    """A check that the model can learn at all: a few samples, without all that makes learning them by heart harder."""

    samples: Optional[int] = number(None, low=1)
    """Number of training samples to memorize; null trains as usual, and `trainer=overfit` sets 8. Augmentation, mixup,
    dropout, label smoothing, weight decay, the learning rate schedule and weight averages are then off. The run fails
    if the loss of the samples does not reach zero."""
    steps: int = number(1000, low=1)
    """Optimizer steps in which the loss must reach zero; the run ends as soon as it does."""
    loss: float = number(0.01, above=0, below=1)
    """Loss that counts as zero, as a share of the first one."""


@section
class TrainerConfig:
    """The training loop."""

    epochs: Optional[int] = number(20, low=1)
    """Epochs to train for, each a pass over the training split unless `epoch_steps` is set; ignored when `steps` is
    set."""
    steps: Optional[int] = number(None, low=1)
    """Optimizer steps to train for, in place of `epochs`."""
    epoch_steps: Optional[int] = number(None, low=1)
    """Optimizer steps of an epoch, for data of which one pass is too long or too short; null makes an epoch one pass.
    The next epoch goes on where the one before it ended, and each pass has an order of its own. Everything that counts
    epochs counts these: `epochs`, validation, checkpoints, schedules."""
    stop_at: Optional[Union[int, str]] = None
    """Pause the run after this many epochs, or after `300 steps`; null trains to the end. The run saves a checkpoint,
    and `lightkit resume` continues it with another `stop_at`. Nothing else depends on this key, so the result has the
    same bits as without a pause. The final test runs only at the end."""
    max_time: Optional[Union[float, str]] = None
    """End training after this time, such as `90m` or `3h`: seconds, or a text with d, h, m and s; null sets no limit.
    All parts of a resumed run count; validations count, the final test and what comes before the first step do not.
    The run ends as by early stopping: validated, tested, finished. Of an ensemble or of folds each model has this
    time."""
    accumulate: int = number(1, low=1)
    """Number of batches whose gradients are added up for one optimizer step. The last step of an epoch may have
    fewer."""
    clip_norm: Optional[float] = number(None, above=0)
    """Largest total norm of the gradients; larger ones are scaled down."""
    clip_type: Union[float, str] = 2.0
    """Order of the norm that `clip_norm` limits, or `inf` for the largest absolute value. If `clip_norm` is set,
    `grad/norm` is logged in this norm."""
    clip_value: Optional[float] = number(None, above=0)
    """Largest absolute value of a gradient element."""
    validate_every: int = number(1, low=1)
    """Number of `validate_unit`s between two validations. There is always a validation after the last step."""
    validate_unit: Literal["epoch", "step"] = "epoch"
    """What `validate_every` counts: epochs or optimizer steps."""
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)
    """When to end the training early."""
    ema: EmaConfig = field(default_factory=EmaConfig)
    """Moving average of the weights."""
    swa: SwaConfig = field(default_factory=SwaConfig)
    """Mean of the weights at the ends of epochs."""
    nonfinite: NonfiniteConfig = field(default_factory=NonfiniteConfig)
    """What happens when a training loss is NaN or infinite."""
    watch: WatchConfig = field(default_factory=WatchConfig)
    """Checks while a model trains."""
    task: Target = field(default_factory=cast(Any, {"_target_": "lightkit.trainer.tasks.Supervised"}.copy))
    """How a batch becomes a loss and the inputs of the metrics. A subclass of `lightkit.trainer.tasks.Task`."""
    callbacks: dict[str, Target] = field(default_factory=dict)
    """Further callbacks by name: subclasses of `lightkit.trainer.callbacks.Callback`."""
    test: Literal["best", "last", "none"] = "best"
    """Weights for the final test: those of the best validation, or those of the last step."""
    find_lr: bool = False
    """Search for a learning rate before the run begins, as `lightkit find lr` does, and use it as `optim.lr`. The
    search runs in a separate process. The run's `config.yaml` stores the rate, and a resume does not search again."""
    find_batch_size: Optional[Literal["auto", "max"]] = None
    """Search for the largest batch that fits: `auto` splits data.batch_size, `max` sets it. Null takes
    `data.batch_size` as it is. Found by steps in a process of its own before the run begins. `auto` keeps the samples
    of an optimizer step, `data.batch_size` times `trainer.accumulate`, and splits them into the fewest equal parts that
    fit; `max` sets `data.batch_size` to the largest that fits, and so changes what the learning rate means. The run's
    `config.yaml` has what was found in its place; nothing is looked for again."""
    smoke: bool = False
    """Test the whole run in seconds, with few samples and few steps. `trainer=smoke` sets it. The run has two short
    epochs with validation, checkpoints and the final test; warm-ups, phases, cycles, folds and members are shortened,
    too. Batches keep their size, so a step needs the same memory as in the real run."""
    overfit: OverfitConfig = field(default_factory=OverfitConfig)
    """Check that the model can memorize a few samples."""


@section
class CheckpointConfig:
    """What is saved, how often and how many are kept."""

    enabled: bool = True
    """Write checkpoints."""
    every_epochs: Optional[int] = number(1, low=1)
    """Number of epochs between two checkpoints; null saves only at the end."""
    every_steps: Optional[int] = number(None, low=1)
    """Number of optimizer steps between two additional checkpoints."""
    every_minutes: Optional[float] = number(None, above=0)
    """Minutes after which an additional checkpoint is saved, at the end of the optimizer step; null saves none by the
    clock."""
    keep_last: int = number(2, low=1)
    """Number of newest checkpoints to keep; an older one replaces the newest if that is damaged."""
    keep_best: int = number(1, low=0)
    """Number of best checkpoints (by `metrics.monitor`) to keep; 0 keeps none."""
    keep_every: Optional[int] = number(None, low=1)
    """Permanently keep the first checkpoint at or after every multiple of this many optimizer steps. Null keeps no
    additional checkpoints."""
    asynchronous: bool = True
    """Write in the background while training continues; training waits only until the state is copied to host
    memory."""
    export: Literal["none", "weights", "safetensors", "model", "adapter"] = "none"
    """Also write the best weights at the end, for other programs: `weights.pt` (a state dict), `weights.safetensors`,
    or `model.pt` (the model with its class, a pickle), all with low-rank updates merged; or `adapter.pt`, only the
    tensors that differ from the pretrained weights."""
    pickle_protocol: int = number(2, low=2, high=5)
    """Pickle protocol of `weights.pt` and `model.pt`, as in `torch.save`. With 3 or more, `torch.load` may need
    `weights_only=False`. Files that lightkit reads itself, such as checkpoints, always have protocol 2."""


@section
class ConsoleConfig:
    """What is seen while a run goes on."""

    style: Literal["auto", "bar", "lines", "quiet"] = "auto"
    """Progress bar or plain lines; `auto` takes the bar on a terminal."""
    every_seconds: float = number(5.0, above=0)
    """Seconds between two plain lines."""


@section
class TensorBoardConfig:
    """What goes into the TensorBoard directory of the run."""

    enabled: bool = True
    """Write TensorBoard events."""
    graph: bool = False
    """Add the graph of the model, traced on one sample."""
    images: int = number(0, low=0)
    """Number of training images shown, and of validation pictures with their masks or boxes; 0 shows none."""
    histograms: Optional[int] = number(None, low=0)
    """Optimizer steps between two histograms of the parameters that train and of their gradients; null or 0 logs none.
    The run waits for the device at these steps."""


@section
class SystemConfig:
    """Statistics of the machine while training: GPUs of the run, processors, memory, disk."""

    enabled: bool = True
    """Measure the machine in a separate thread."""
    every_seconds: float = number(10.0, above=0)
    """Seconds between two measurements. Their means are logged with the training values."""
    peak_tflops: Optional[float] = number(None, above=0)
    """Peak of one device in TFLOP/s, in the precision of the run, by which the MFU (model FLOPs utilisation) is
    computed. Null takes that of the data sheet of well-known GPUs; for other devices there is no MFU."""


@section
class ProfileConfig:
    """What is recorded with `profile: true`."""

    skip_steps: int = number(10, low=0)
    """Optimizer steps before the recording starts; a short run skips fewer."""
    warmup_steps: int = number(3, low=0)
    """Steps after these that are recorded and discarded, because the first recorded steps are slow."""
    steps: int = number(5, low=0)
    """Steps after these that are kept; 0 only counts time and sets NVTX ranges, as for nsys."""
    memory: bool = False
    """Record the memory that each operator allocates and frees."""
    stacks: bool = False
    """Record the lines of Python that called each operator; slow."""
    shapes: bool = False
    """Record the shapes of the inputs of each operator."""


@section
class LoggerConfig:
    """Where numbers go."""

    every_steps: Optional[int] = number(None, low=1)
    """Optimizer steps between two logged values; null takes 50, or an epoch if that is shorter. The run waits for the
    device only at these steps."""
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    """Terminal output."""
    tensorboard: TensorBoardConfig = field(default_factory=TensorBoardConfig)
    """TensorBoard output."""
    system: SystemConfig = field(default_factory=SystemConfig)
    """Statistics of the machine: GPUs of the run, processors, memory, disk."""
    trace: Optional[int] = number(None, low=1)
    """Optimizer steps between two lines of `trace.jsonl`: the loss, and hashes of the rows of the batches, of gradients
    and of weights, from which `lightkit why` tells the first step that differs; null writes none. The run waits for the
    device at these steps."""
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    """What is recorded with `profile: true`."""
    flops: dict[str, Target] = field(default_factory=dict)
    """Functions that count the operations of modules of other packages, for `lightkit summary`, by class name:
    `DeformConv2d: {_target_: my_rules.count_deform, _partial_: true}`."""
    more: dict[str, Target] = field(default_factory=dict)
    """Further loggers by name: subclasses of `lightkit.Logger`."""


@section
class ResumeConfig:
    """Going on with a run that was stopped."""

    mode: Literal["none", "auto"] = field(default="none", metadata=INTERNAL)
    """`resume=none` and `resume=auto` set it. `none` starts a new run. `auto` continues the newest unfinished run of
    the same configuration; if there is none, it starts a new run."""
    file: Optional[str] = field(default=None, metadata=INTERNAL)
    """Checkpoint of another program that a new run starts from: `{model, optimizer, epoch}`. The learning rates, the
    schedule and the length are those of the configuration. `lightkit resume FILE` sets it."""
    epoch: Optional[int] = number(None, low=0)
    """Number of finished epochs in the file of `lightkit resume FILE`; null uses the value in it."""
    trust: bool = field(default=False, metadata=USER_ONLY)
    """Open a file of Python objects (`lightkit resume FILE`), which runs the code in it. Use it only for files whose
    origin you know."""
    override: list[str] = field(default_factory=list, metadata={"patterns": ()})
    """Keys, or patterns of keys, for which new values are used instead of those of the checkpoint: `[optim.lr]`. A
    group (`optim`) means all its keys."""
