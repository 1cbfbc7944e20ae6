"""What is learnt, from what, and how it is measured: data, model, loss, optimizer, schedule, ensemble, metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional

from lightkit.config.schema.base import RuleConfig, Target


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
    per_class: Optional[int] = None
    """At most this many training rows of each class, the first of the drawn order; null takes all."""
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
    """Samples per training batch, over all processes of `device.nproc`, each of which computes its part."""
    eval_batch_size: Optional[int] = None
    """Samples per batch in validation and test; null takes `batch_size`. No result depends on it."""
    normalize: Literal["none", "standard", "minmax", "image", "base"] = "none"
    """Scaling fitted on the training rows only: per feature (`standard`, `minmax`) or per channel (`image`). `base`
    takes over that of the run that `finetune.weights.path` is of. A run keeps what it found, for `resume`, `eval` and
    `predict`."""
    normalize_rows: Optional[int] = None
    """Fit the scaling on at most this many training rows, evenly spaced; null takes all. Data that is not in memory is
    read once for it before a run begins, by the loader processes."""
    augment: list[Target] = field(default_factory=list)
    """Random transforms of training samples, in order; seeded per sample. Those of `lightkit.data.transforms` take a
    whole batch; any callable of one argument, as those of torchvision, gets the input of one sample as a tensor."""
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
    timeout_seconds: Optional[float] = None
    """Longest wait for a batch of the loader processes, after which the run ends with status 1 (`timeout` of PyTorch's
    `DataLoader`); null or 0 waits for as long as it takes. Either way a line after a minute tells what they are at."""


@dataclass
class ModelConfig(Target):
    """The network. Any `_target_` that builds a `torch.nn.Module`; sizes such as `num_classes` are filled in."""


@dataclass
class LossConfig(Target):
    """The objective: a callable `(output, target) -> mean loss over the batch`."""


@dataclass
class OptimConfig(Target):
    """The optimizer and the rules that give parameters their own settings."""

    rules: list[RuleConfig] = field(default_factory=list)
    """Settings by pattern. Of several rules for one parameter, the later wins, attribute by attribute."""
    no_decay: bool = False
    """No weight decay on biases, norm layers and other one-dimensional parameters."""
    layer_decay: Optional[float] = None
    """Factor on the learning rate per layer counted from the output, 0 to 1; null gives all layers the same rate."""


@dataclass
class SchedulerConfig(Target):
    """The learning rate over time, as a factor on each group's own rate."""


@dataclass
class EnsembleConfig:
    """Several models as one; `none` trains a single model."""


@dataclass
class MetricsConfig:
    """torchmetrics by name, per split, and the value that decides what is best."""

    monitor: str
    """Metric that ranks checkpoints, stops early and is the sweep's objective, as logged (`val/accuracy`)."""
    mode: Optional[Literal["min", "max"]] = None
    """Whether a smaller or a larger value of `monitor` is better. Null goes by what the metric says of itself
    (`higher_is_better`; of losses smaller values are better), which a mode must not contradict. One that leaves it open
    needs it."""
    train: dict[str, Optional[Target]] = field(default_factory=dict)
    """Metrics of the training batches, by name; null leaves one out that another file set."""
    val: dict[str, Optional[Target]] = field(default_factory=dict)
    """Metrics of validation, by name; null leaves one out that another file set."""
    test: dict[str, Optional[Target]] = field(default_factory=dict)
    """Metrics of the final test, by name; null leaves one out that another file set."""
    figures: list[Literal["confusion_matrix", "per_class", "roc", "pr"]] = field(default_factory=list)
    """Figures drawn after the final evaluation, to TensorBoard and as PNG files."""
