"""What a configuration may hold: one dataclass per group, one docstring per field.

The checker compares every composed configuration with these classes, and `lightkit config GROUP` prints them. A class
that derives from `Target` describes a node with a `_target_`: its own fields are read by lightkit, every other key is
an argument of the target and is checked against the target's signature.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Optional

SIZES = (
    "input_shape",
    "num_classes",
    "num_labels",
    "in_channels",
    "in_features",
    "vocab_size",
    "context_length",
    "task",
)
"""Arguments a model, a loss or a metric may take without naming them: they come from the data set."""


@dataclass
class Target:
    """A node that names a class or function to build; the other keys are its arguments."""

    _target_: str
    """Dotted path of a class or function, such as `torch.optim.SGD`."""


@dataclass
class SplitConfig:
    """How the rows of a data set become train, val and test."""

    by: Literal["stratified", "random", "ordered", "file", "fold"] = "random"
    """Way of drawing: `stratified` keeps class shares, `ordered` cuts without shuffling, `file` keeps the splits the
    data set brings with it, `fold` takes fold number `fold` of `folds` as test."""
    val: float = 0.1
    """Share of all rows for validation, 0 to 1; 0 leaves the split out."""
    test: float = 0.2
    """Share of all rows for test, 0 to 1; ignored for `fold` and where the data set brings a test split."""
    seed: int = 0
    """Seed of the draw, apart from the run's seed, so that runs with other seeds see the same split."""
    folds: int = 5
    """Number of folds for `by: fold`."""
    fold: int = 0
    """Which fold is the test split, 0 to folds - 1, for `by: fold`."""
    limit: Optional[int] = None
    """At most this many training rows, the first of the drawn order; null takes all."""


@dataclass
class MixupConfig:
    """Mixing pairs of training samples and their targets (Zhang et al. 2018, https://arxiv.org/abs/1710.09412)."""

    alpha: Optional[float] = None
    """Parameter of Beta(alpha, alpha), above 0; null switches mixup off."""
    probability: float = 1.0
    """Share of batches that are mixed, 0 to 1."""


@dataclass
class DataConfig:
    """Data set, splits, preparation and batches."""

    dataset: Target
    """The data set: a class or function under `lightkit.data`, of your own, or a `torch.utils.data.Dataset`."""
    split: SplitConfig
    """How the rows become train, val and test."""
    batch_size: int = 64
    """Samples per training batch."""
    eval_batch_size: Optional[int] = None
    """Samples per batch in validation and test; null takes `batch_size`. No result depends on it."""
    normalize: Literal["none", "standard", "minmax", "image"] = "none"
    """Scaling fitted on the training rows only: per feature (`standard`, `minmax`) or per channel (`image`)."""
    augment: list[Target] = field(default_factory=list)
    """Random transforms of training samples, in order; seeded per sample."""
    mixup: MixupConfig = field(default_factory=MixupConfig)
    """Mixup of training batches."""
    drop_last: bool = False
    """Leave out a last smaller training batch."""
    num_workers: int = 0
    """Loader processes for data that is read sample by sample; in-memory data needs none. No result depends on it."""
    pin_memory: Optional[bool] = None
    """Page-locked host memory for faster copies to a GPU; null switches it on when a GPU is used."""
    persistent_workers: bool = True
    """Keep loader processes alive between epochs."""
    prefetch_factor: int = 2
    """Batches each loader process prepares ahead."""


@dataclass
class ModelConfig(Target):
    """The network. Any `_target_` that builds a `torch.nn.Module`; sizes such as `num_classes` are filled in."""


@dataclass
class LossConfig(Target):
    """The objective: a callable `(output, target) -> mean loss over the batch`."""


@dataclass
class RuleConfig:
    """Settings for the parameters whose names match."""

    match: Any
    """Name pattern or list of patterns: a glob over dotted parameter names, or `re:` and a regular expression."""
    name: Optional[str] = None
    """Name of the group in logs and tables; null takes the pattern."""
    lr: Optional[float] = None
    """Learning rate of these parameters, in place of the optimizer's."""
    lr_scale: Optional[float] = None
    """Factor on the optimizer's learning rate."""
    weight_decay: Optional[float] = None
    """Weight decay of these parameters."""


@dataclass
class OptimConfig(Target):
    """The optimizer and the rules that give parameters their own settings."""

    rules: list[RuleConfig] = field(default_factory=list)
    """Settings by parameter name. Of several rules for one parameter, the later wins, attribute by attribute."""
    no_decay: bool = False
    """No weight decay on biases, norm layers and other one-dimensional parameters."""
    layer_decay: Optional[float] = None
    """Factor on the learning rate per layer counted from the output, 0 to 1; null gives all layers the same rate."""


@dataclass
class SchedulerConfig(Target):
    """The learning rate over time, as a factor on each group's own rate."""


@dataclass
class DeviceConfig:
    """Where and how the numbers are computed."""

    name: str = "auto"
    """`auto` (a GPU when there is one), `cpu`, `cuda`, `cuda:1`, `mps`."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the forward pass; `bf16` and `fp16` use autocast and keep weights and losses in fp32, `fp16` with a
    loss scale."""
    parallel: Literal["none", "dp"] = "none"
    """`dp` splits each batch over the visible GPUs with `torch.nn.DataParallel`."""
    deterministic: bool = False
    """Only deterministic algorithms, at some cost in speed."""
    threads: Optional[int] = None
    """CPU threads of one operation; null leaves PyTorch's choice."""


@dataclass
class FinetuneConfig:
    """Adapting a pretrained model; `none` trains all parameters from where the model starts."""


@dataclass
class EnsembleConfig:
    """Several models as one; `none` trains a single model."""


@dataclass
class MetricsConfig:
    """torchmetrics by name, per split, and the value that decides what is best."""

    monitor: str
    """Metric that ranks checkpoints, stops early and is the sweep's objective, as logged (`val/accuracy`)."""
    mode: Literal["min", "max"]
    """Whether a smaller or a larger value of `monitor` is better."""
    train: dict[str, Optional[Target]] = field(default_factory=dict)
    """Metrics of the training batches, by name; null leaves one out that another file set."""
    val: dict[str, Optional[Target]] = field(default_factory=dict)
    """Metrics of validation, by name; null leaves one out that another file set."""
    test: dict[str, Optional[Target]] = field(default_factory=dict)
    """Metrics of the final test, by name; null leaves one out that another file set."""
    figures: list[Literal["confusion_matrix", "per_class", "roc", "pr"]] = field(default_factory=list)
    """Figures drawn after the final evaluation, to TensorBoard and as PNG files."""


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
    export: Literal["none", "weights", "safetensors", "model"] = "none"
    """Write the best weights once more at the end, for others to read: `weights.pt` (a state dict),
    `weights.safetensors`, or `model.pt` (the model with its class, a pickle)."""
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
class LoggerConfig:
    """Where numbers go."""

    every_steps: int = 50
    """Optimizer steps between two logged training values. The device is only waited for at these steps."""
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    """Terminal output."""
    tensorboard: TensorBoardConfig = field(default_factory=TensorBoardConfig)
    """TensorBoard output."""


@dataclass
class ResumeConfig:
    """Going on with a run that was stopped."""

    mode: Literal["none", "auto"] = "none"
    """`auto` goes on with the newest unfinished run of the same configuration where there is one, else starts anew."""
    override: list[str] = field(default_factory=list)
    """Keys, or patterns of keys, whose new values are taken although the checkpoint was trained with others."""


@dataclass
class Config:
    """A whole run."""

    data: DataConfig
    """Data set, splits, preparation and batches."""
    model: ModelConfig
    """The network."""
    loss: LossConfig
    """The objective."""
    optim: OptimConfig
    """The optimizer and its parameter groups."""
    scheduler: SchedulerConfig
    """The learning rate over time."""
    device: DeviceConfig
    """Where and how the numbers are computed."""
    finetune: FinetuneConfig
    """Adapting a pretrained model."""
    ensemble: EnsembleConfig
    """Several models as one."""
    metrics: MetricsConfig
    """What is measured."""
    trainer: TrainerConfig
    """The training loop."""
    checkpoint: CheckpointConfig
    """What is saved."""
    logger: LoggerConfig
    """Where numbers go."""
    resume: ResumeConfig = field(default_factory=ResumeConfig)
    """Going on with a run that was stopped."""
    name: Optional[str] = None
    """Name of the run; ends the name of its folder. Null takes the name of the experiment, or else
    the options of data and model, such as `wine_mlp`."""
    seed: int = 0
    """Seed of everything random in the run but the data split."""
    trust: list[str] = field(default_factory=list)
    """Packages, modules, classes or functions that a `_target_` may name beside those of lightkit, torch, torchmetrics,
    torchvision, timm and your own project. What the file of a run says here counts for nothing when it is resumed."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Room for values of your own, to be used by interpolation (`${extra.width}`); not checked."""
