"""How a run goes: training loop, checkpoints, loggers, resuming."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional, Union

from lightkit.config.schema.base import USER_ONLY, Target, named, number


@dataclass
class EarlyStoppingConfig:
    """Ends training when the monitored value no longer improves, or is good enough."""

    patience: Optional[int] = number(None, low=1)
    """Validations without improvement before training ends; null never stops early."""
    min_delta: float = number(0.0, low=0)
    """Smallest change that counts as an improvement, in units of the monitored metric."""
    target: Optional[float] = None
    """Value of the monitored metric at which training ends: at or above it, or at or below it with
    `metrics.mode=min`. Null waits for none."""
    from_epoch: int = number(1, low=1)
    """First epoch whose validations count, the first of the run being 1. What is measured before it is neither the best
    nor waited for."""


@dataclass
class EmaConfig:
    """Exponential moving average of the weights, used for validation, test and the saved model."""

    decay: Optional[float] = number(None, above=0, below=1)
    """Decay of the average at each optimizer step, such as 0.999; null keeps no average."""


@dataclass
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


@dataclass
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


@dataclass
class WatchConfig:
    """What is looked at while a model trains: whether all that trains moves, and nothing else."""

    every: Optional[int] = number(200, low=1)
    """Optimizer steps between two checks; the last step is always checked, and null never checks. A check verifies that
    trained parameters changed and frozen ones did not, that the optimizer took one step per `accumulate` batches, that
    all processes have the same weights, and that validations change nothing. A check does not change the training, but
    makes it wait for the GPU."""
    action: Literal["warn", "stop"] = "warn"
    """Warn once about a failed check, or end the run with exit status 6."""


@dataclass
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


@dataclass
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
    task: Target = field(default_factory=lambda: Target("lightkit.trainer.tasks.Supervised"))
    """How a batch becomes a loss and the inputs of the metrics. A subclass of `lightkit.trainer.tasks.Task`."""
    callbacks: dict[str, Target] = field(default_factory=dict)
    """Further callbacks by name: subclasses of `lightkit.trainer.callbacks.Callback`."""
    test: Literal["best", "last", "none"] = "best"
    """Weights for the final test: those of the best validation, or those of the last step."""
    find_lr: bool = False
    """Search for a learning rate before the run begins, as `lightkit find lr` does, and use it as `optim.lr`. The
    search runs in a separate process. The run's `config.yaml` stores the rate, and a resume does not search again."""
    smoke: bool = False
    """Test the whole run in seconds, with few samples and few steps. `trainer=smoke` sets it. The run has two short
    epochs with validation, checkpoints and the final test; warm-ups, phases, cycles, folds and members are shortened,
    too. Batches keep their size, so a step needs the same memory as in the real run."""
    overfit: OverfitConfig = field(default_factory=OverfitConfig)
    """Check that the model can memorize a few samples."""


@dataclass
class CheckpointConfig:
    """What is saved, how often and how many are kept."""

    enabled: bool = True
    """Write checkpoints."""
    every_epochs: Optional[int] = number(1, low=1)
    """Number of epochs between two checkpoints; null saves only at the end."""
    every_steps: Optional[int] = number(None, low=1)
    """Number of optimizer steps between two additional checkpoints."""
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
    """Measure the machine in a separate thread."""
    every_seconds: float = number(10.0, above=0)
    """Seconds between two measurements. Their means are logged with the training values."""


@dataclass
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


@dataclass
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
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    """What is recorded with `profile: true`."""
    flops: dict[str, Target] = field(default_factory=dict)
    """Functions that count the operations of modules of other packages, for `lightkit summary`, by class name:
    `DeformConv2d: {_target_: my_rules.count_deform, _partial_: true}`."""
    more: dict[str, Target] = field(default_factory=dict)
    """Further loggers by name: subclasses of `lightkit.Logger`."""


@dataclass
class ResumeConfig:
    """Going on with a run that was stopped."""

    mode: Literal["none", "auto"] = "none"
    """`none` starts a new run. `auto` continues the newest unfinished run of the same configuration; if there is none,
    it starts a new run."""
    file: Optional[str] = None
    """Checkpoint of another program that a new run starts from: `{model, optimizer, epoch}`. The learning rates, the
    schedule and the length are those of the configuration. `lightkit resume FILE` sets it."""
    epoch: Optional[int] = number(None, low=0)
    """Number of finished epochs of `file`; null uses the value in the file."""
    trust: bool = field(default=False, metadata=USER_ONLY)
    """Open a `file` of Python objects, which runs the code in it. Use it only for files whose origin you know."""
    override: list[str] = field(default_factory=list, metadata={"patterns": ()})
    """Keys, or patterns of keys, for which new values are used instead of those of the checkpoint: `[optim.lr]`. A
    group (`optim`) means all its keys."""


@dataclass
class SlurmConfig:
    """Jobs as arrays of Slurm's `sbatch`."""

    time: Union[int, str] = number("60", low=1)
    """Time limit of a job in the format of `sbatch`: minutes, `HH:MM:SS` or `D-HH:MM`. A job that needs longer saves
    before the limit and is queued again."""
    partition: Optional[Union[int, str]] = None
    """Partition to submit to; by default that of the cluster."""
    account: Optional[Union[int, str]] = None
    """Account that is charged."""
    cpus: int = number(1, low=1)
    """Processors of a job."""
    memory: Optional[Union[int, str]] = number(None, low=1)
    """Memory of a job, such as `16G`; a bare number counts megabytes, as `sbatch` does."""
    save_before: int = number(90, low=1)
    """Seconds before the time limit at which a job gets the signal to save; less than `time`."""
    requeues: int = number(20, low=0)
    """How often a job that reached its time limit is queued again."""
    options: list[str] = field(default_factory=list)
    """More options of `sbatch`: `["--constraint=a100", "--exclude=node7"]`."""
    setup: list[str] = field(default_factory=list)
    """Lines of shell before the job, such as `module load cuda`."""
    poll_seconds: float = number(10.0, above=0)
    """Seconds between two queries of the queue."""


@dataclass
class RayConfig:
    """Jobs as tasks of a Ray cluster."""

    address: Optional[str] = None
    """Address of a running cluster, such as `10.0.0.5:6379` or `auto`; by default Ray starts only on this machine, and
    accepts no connections from outside."""
    cpus: float = number(1.0, above=0)
    """Processors that a job needs."""
    lost_nodes: int = number(3, low=0)
    """How often a job continues on another node after its node failed."""


@dataclass
class HalvingConfig:
    """The jobs of a sweep pause at rungs, and only the best go on."""

    method: Optional[Literal["successive", "hyperband"]] = None
    """Which jobs continue after a rung. `successive`: the best one in `eta`. `hyperband`: the same for several groups
    of jobs, whose first rungs come later and later; for values that are misleading early in the training. Null trains
    all jobs to the end, unless `rungs` is set."""
    rungs: Optional[list[int]] = None
    """Where the jobs pause, such as `[1, 3, 9]`; jobs that continue after the last rung train to the end. Null takes
    `first` as the first rung, and makes each further rung `eta` times the one before."""
    unit: Literal["epoch", "step"] = "epoch"
    """What rungs count: epochs or optimizer steps."""
    first: int = number(1, low=1)
    """The first rung, if `rungs` is null."""
    eta: int = number(3, low=2)
    """One in this many jobs continues after a rung, rounded down, but at least one."""


@dataclass
class SweepConfig:
    """How the jobs of a sweep are run (`lightkit train -m`); no job is another one for it, so it is not swept over."""

    engine: str = named("sweep.engine", "local")
    """Where the jobs run. `local` uses slots on this machine; `slurm` submits them to Slurm; `ray` uses the nodes of a
    Ray cluster. A project or a package can add others."""
    slots: Optional[int] = number(None, low=1, high=4096)
    """Number of jobs that run at once. Null takes one for each free GPU, or for each `gpus_per_job` GPUs. On the CPU,
    null takes as many as fit with `device.threads` each, or one if `device.threads` is null, because each job then uses
    all processors."""
    gpus_per_job: Optional[float] = number(None, low=0, high=1024)
    """Number of GPUs for each job. Null is one (or `device.nproc`) on this machine, and none with Slurm or Ray. With
    0.5, two jobs share a GPU; 0 hides all GPUs."""
    retries: int = number(0, low=0, high=1000)
    """How often a failed job is started again, from its last checkpoint. A job that ran out of memory while others ran
    is repeated once when no other job runs; that does not count as a retry."""
    on_error: Literal["continue", "stop", "stop_if_first"] = "continue"
    """What happens after a job failed. `continue` starts the other jobs. `stop` starts no further job. `stop_if_first`
    starts no further job if no job has finished yet, because then probably all jobs have the same mistake. Running jobs
    always continue."""
    time_limit: Optional[Union[float, str]] = None
    """How long a job may run after each start: seconds, or a text such as `30m` or `2h`. After that it saves and counts
    as failed, and `retries` does not start it again. Null sets no limit."""
    stall_limit: Optional[Union[float, str]] = None
    """How long a running job may make no step and log no value: seconds, or a text such as `30m`. After that it gets
    the signal to save, is killed if it does not, and counts as failed; `retries` starts it again. Set it longer than a
    job needs to load data, to compile or to save. Null sets no limit."""
    budget: Optional[Union[float, str]] = None
    """How long the sweep may run after each start: seconds, or a text such as `12h`. After that no further job starts,
    and running jobs save and end; `lightkit sweep resume` continues them. Null sets no limit."""
    warm: bool = True
    """Fork local jobs from a process that has already imported PyTorch and other packages, so that each job starts
    faster. The results are the same. This works only on Linux; on other systems, and with false, every job is a fresh
    process."""
    halving: HalvingConfig = field(default_factory=HalvingConfig)
    """Successive halving: jobs pause at rungs, and only the best continue."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """Resources and options of Slurm."""
    ray: RayConfig = field(default_factory=RayConfig)
    """The Ray cluster, and the resources of a job."""
