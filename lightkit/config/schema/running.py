"""How a run goes: device, training loop, checkpoints, loggers, resuming."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional, Union

from lightkit.config.schema.base import Target


@dataclass
class DdpConfig:
    """Several processes with a copy of the model each (`device.parallel=ddp`)."""

    sync_batchnorm: bool = False
    """Batch norms take mean and variance over the whole batch instead of each process's part of it; GPUs only."""
    bucket_mib: float = 25.0
    """Gradients are exchanged in pieces of this many MiB while others are still being computed."""
    find_unused: bool = False
    """Look in every step for parameters that take no part in the loss, which else is an error; costs time."""
    static_graph: bool = False
    """Every step uses the same parameters in the same way: lets some activation checkpointing work, and saves time. Not
    with `trainer.accumulate`."""
    timeout_seconds: float = 600.0
    """A process that keeps the others waiting for so long counts as lost, and the run ends."""


@dataclass
class FsdpConfig:
    """Several processes with a part of the model each (`device.parallel=fsdp`)."""

    min_parameters: int = 100_000
    """Layers of a sequence with fewer parameters are not gathered by themselves, but with what is around them."""
    reshard: bool = True
    """Give gathered weights back after the forward pass and gather them again for the backward pass: less memory."""


@dataclass
class DeviceConfig:
    """Where and how the numbers are computed."""

    name: str = "auto"
    """`auto` (a GPU when there is one), `cpu`, `cuda`, `cuda:1` (the second one that is visible), `mps`."""
    gpus: Optional[Union[str, list[Union[int, str]]]] = None
    """GPUs that the run may see, `[0, 2]`, by the numbers of `nvidia-smi`: the first of them is `cuda:0`, the main one.
    `auto:2` takes the two with the most free memory. A GPU that is split by MIG is used by one of its instances, named
    by its UUID (`[MIG-…]`, see `lightkit gpus`); `auto` takes the freest of whole GPUs and instances. Null sees all;
    the CPU and Apple's GPU ignore this."""
    precision: Literal["fp32", "tf32", "bf16", "fp16", "bf16-true", "fp64"] = "fp32"
    """Arithmetic. `fp32` is exact; `tf32` rounds matrix products and convolutions on NVIDIA's GPUs from Ampere on;
    `bf16` and `fp16` use autocast and keep weights and losses in fp32, `fp16` with a loss scale; `bf16-true` has
    weights and the optimizer's state in bfloat16 too, for half the memory and less exact steps; `fp64` computes
    everything in double precision. Losses and metrics are never below fp32."""
    parallel: Literal["none", "dp", "ddp", "fsdp"] = "none"
    """`dp` splits each batch over the visible GPUs with `torch.nn.DataParallel`; `ddp` over processes, one a GPU, with
    `DistributedDataParallel`; `fsdp` shares out the model and the state of its optimizer too (FSDP2)."""
    nproc: int = 1
    """Processes to start for `ddp` and `fsdp`; under `torchrun`, which starts them itself, leave it at 1."""
    ddp: DdpConfig = field(default_factory=DdpConfig)
    """Settings of `parallel: ddp`; `timeout_seconds` is for `fsdp` too."""
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    """Settings of `parallel: fsdp`."""
    dp_dim: int = 0
    """Dimension that `dp` splits inputs in, and joins outputs in."""
    channels_last: bool = False
    """Keep images and convolutions with the channels next to each other in memory: faster on GPUs in half precision."""
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = "none"
    """Compile the model with `torch.compile`, in this mode. Where that fails, it runs as it is and says why."""
    cuda_graphs: bool = False
    """Record the kernels of a pass once for each shape and replay them: for small models, whose kernels wait for
    Python. By `torch.compile`, which with `compile=none` leaves the kernels as they are. GPUs only."""
    matmul: Literal["auto", "highest", "high", "medium"] = "auto"
    """Exactness of fp32 matrix products, as in `torch.set_float32_matmul_precision`; `auto` goes by `precision`."""
    cudnn_benchmark: bool = False
    """Let cuDNN try its algorithms for each new shape and take the fastest; not with `deterministic`."""
    optimizer: Literal["auto", "fused", "foreach", "loop"] = "auto"
    """How PyTorch's optimizers step: one kernel for all parameters, one for each operation, or a loop over parameters.
    `auto` takes `fused` on NVIDIA's GPUs and CPUs where the optimizer has it. What `optim` sets itself goes first."""
    activation_checkpointing: list[str] = field(default_factory=list)
    """Patterns of modules (`blocks.*`) whose activations are computed again in the backward pass instead of kept: less
    memory for about a third more time. The gradients are the same to the bit."""
    batch_size: Optional[Literal["auto", "max"]] = None
    """The largest batch that fits into memory, found by steps in a process of its own before the run begins. `auto`
    keeps the samples of an optimizer step, `data.batch_size` times `trainer.accumulate`, and splits them into the
    fewest equal parts that fit; `max` sets `data.batch_size` to the largest that fits, and so changes what the learning
    rate means. The run's `config.yaml` has what was found in its place; nothing is looked for again. Null takes
    `data.batch_size` as it is."""
    deterministic: bool = False
    """Only deterministic algorithms, at some cost in speed. On the same GPU model, versions and number of GPUs, a
    resumed run then has the same bits. What code outside of PyTorch does on a GPU is beyond its reach."""
    threads: Optional[int] = None
    """CPU threads of one operation; null leaves PyTorch's choice."""


@dataclass
class EarlyStoppingConfig:
    """Ends training when the monitored value no longer improves."""

    patience: Optional[int] = None
    """Validations without improvement before training ends; null never stops early."""
    min_delta: float = 0.0
    """Smallest change that counts as an improvement, in units of the monitored metric."""


@dataclass
class EmaConfig:
    """Exponential moving average of the weights, used for validation, test and the saved model."""

    decay: Optional[float] = None
    """Share of the average kept at each optimizer step, 0 to 1; null keeps no average."""


@dataclass
class NonfiniteConfig:
    """What happens when a training loss is NaN or infinite."""

    action: Literal["stop", "skip", "rollback"] = "stop"
    """`stop` ends the run (exit status 3) before the weights are touched, `skip` leaves out the optimizer step (a GPU
    is waited for at every step), `rollback` goes back to an earlier step and on with lower learning rates."""
    limit: int = 3
    """Steps that may be skipped, or times the run may go back, before it ends after all."""
    every: int = 100
    """Optimizer steps between two states kept in memory to go back to, for `rollback`."""
    factor: float = 0.5
    """Factor on all learning rates each time the run goes back, for `rollback`."""


@dataclass
class TrainerConfig:
    """The training loop."""

    epochs: Optional[int] = 20
    """Passes over the training split; ignored when `steps` is set."""
    steps: Optional[int] = None
    """Optimizer steps to train for, in place of `epochs`."""
    accumulate: int = 1
    """Batches whose gradients are added up for one optimizer step; a last partial window is stepped too."""
    clip_norm: Optional[float] = None
    """Largest total norm of the gradients; larger ones are scaled down."""
    clip_value: Optional[float] = None
    """Largest absolute value of a gradient element."""
    validate_every: int = 1
    """Validations happen every this many `validate_unit`s, and after the last step."""
    validate_unit: Literal["epoch", "step"] = "epoch"
    """What `validate_every` counts: epochs or optimizer steps."""
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)
    """When to end before the last epoch."""
    ema: EmaConfig = field(default_factory=EmaConfig)
    """Moving average of the weights."""
    nonfinite: NonfiniteConfig = field(default_factory=NonfiniteConfig)
    """What happens when a training loss is NaN or infinite."""
    task: Target = field(default_factory=lambda: Target("lightkit.trainer.tasks.Supervised"))
    """How a batch becomes a loss and the inputs of the metrics: a subclass of `lightkit.trainer.tasks.Task`."""
    callbacks: dict[str, Target] = field(default_factory=dict)
    """Further callbacks by name: subclasses of `lightkit.trainer.callbacks.Callback`."""
    test: Literal["best", "last", "none"] = "best"
    """Weights for the final test: of the best validation, of the last step, or no test."""


@dataclass
class CheckpointConfig:
    """What is saved, how often and how many are kept."""

    every_epochs: Optional[int] = 1
    """Save after every this many epochs; null saves at the end only."""
    every_steps: Optional[int] = None
    """Save also after every this many optimizer steps."""
    keep_last: int = 2
    """Number of newest checkpoints kept, at least 1."""
    keep_best: int = 1
    """Number of best checkpoints kept by `metrics.monitor`; 0 keeps none."""
    keep_every: Optional[int] = None
    """Keep for good the first checkpoint at or after every this many optimizer steps; null keeps none for that."""
    asynchronous: bool = True
    """Write while training goes on, which then waits for a copy of the state in host memory only."""
    export: Literal["none", "weights", "safetensors", "model", "adapter"] = "none"
    """Write the best weights once more at the end, for others to read: `weights.pt` (a state dict),
    `weights.safetensors`, or `model.pt` (the model with its class, a pickle), all with low-rank updates merged; or
    `adapter.pt`, only the tensors that differ from the pretrained weights."""
    enabled: bool = True
    """Write checkpoints at all."""


@dataclass
class ConsoleConfig:
    """What is seen while a run goes on."""

    style: Literal["auto", "bar", "lines", "quiet"] = "auto"
    """`bar` is a live progress bar, `lines` prints a plain line now and then; `auto` takes the bar on a terminal."""
    every_seconds: float = 5.0
    """Seconds between two plain lines."""


@dataclass
class TensorBoardConfig:
    """What goes into the TensorBoard directory of the run."""

    enabled: bool = True
    """Write TensorBoard events."""
    graph: bool = False
    """Add the graph of the model, traced on one sample."""
    images: int = 0
    """Number of training images shown; 0 shows none."""


@dataclass
class SystemConfig:
    """Statistics of the machine while training: GPUs of the run, processors, memory, disk."""

    enabled: bool = True
    """Watch the machine in a thread of its own."""
    every_seconds: float = 10.0
    """Seconds between two samples. Their means since the last one are logged with the training values."""


@dataclass
class ProfileConfig:
    """What is recorded with `profile: true`."""

    skip_steps: int = 10
    """Optimizer steps before anything is recorded; a run that is too short for them skips fewer."""
    warmup_steps: int = 3
    """Steps after them that are recorded and thrown away: the first ones under a profiler are slow."""
    steps: int = 5
    """Steps after these that are kept. With 0 nothing is recorded, but time is still counted and NVTX ranges are there:
    for profilers that bring their own recording, as `nsys`."""
    memory: bool = False
    """Record what each operator takes and gives back of memory."""
    stacks: bool = False
    """Record the lines of Python that called each operator; slow."""
    shapes: bool = False
    """Record the shapes of the inputs of each operator."""


@dataclass
class LoggerConfig:
    """Where numbers go."""

    every_steps: Optional[int] = None
    """Optimizer steps between two logged training values; null takes 50, or those of an epoch where they are fewer.
    The device is only waited for at these steps."""
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    """Terminal output."""
    tensorboard: TensorBoardConfig = field(default_factory=TensorBoardConfig)
    """TensorBoard output."""
    system: SystemConfig = field(default_factory=SystemConfig)
    """Statistics of the machine."""
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    """What is recorded with `profile: true`."""


@dataclass
class ResumeConfig:
    """Going on with a run that was stopped."""

    mode: Literal["none", "auto"] = "none"
    """`auto` goes on with the newest unfinished run of the same configuration where there is one, else starts anew."""
    override: list[str] = field(default_factory=list)
    """Keys (`optim` with all below it), or patterns of keys, whose new values are taken although the checkpoint was
    trained with others."""
