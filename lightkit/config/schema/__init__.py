"""What a configuration may hold: one dataclass per group, one docstring per field.

The checker compares every composed configuration with these classes, and `lightkit config GROUP` prints them. A class
that derives from `Target` describes a node with a `_target_`: its own fields are read by lightkit, every other key is
an argument of the target and is checked against the target's signature.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Optional

from lightkit.config.schema.base import USER_ONLY, number, section
from lightkit.config.schema.device import DeviceConfig
from lightkit.config.schema.finetune import FinetuneConfig
from lightkit.config.schema.learning import (
    CvConfig,
    DataConfig,
    EnsembleConfig,
    LossConfig,
    MetricsConfig,
    ModelConfig,
    OptimConfig,
    SchedulerConfig,
)
from lightkit.config.schema.running import CheckpointConfig, LoggerConfig, ResumeConfig, TrainerConfig
from lightkit.config.schema.sweeping import SweepConfig


@section
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
    sweep: SweepConfig = field(default_factory=SweepConfig)
    """How the jobs of a sweep are run."""
    name: Optional[str] = None
    """Name of the run, and the end of its folder name. Null takes the name of the experiment, or else the options of
    data and model, such as `wine_mlp`."""
    cv: CvConfig = field(default_factory=CvConfig)
    """Cross-validation: `cv=5` trains a model for each of five folds."""
    seed: int = number(0, low=0)
    """Seed of all random decisions in the run, except the data split."""
    profile: bool = False
    """Record some steps with PyTorch's profiler, and show where the run spends its time; the results do not change. The
    files are in `profile/` of the run's folder; `logger.profile` has the details."""
    on_end: list[str] = field(default_factory=list, metadata=USER_ONLY)
    """A command that runs when the run or the sweep ends, with or without success: a list of words, executed without a
    shell. These environment variables describe what happened: `LIGHTKIT_RUN`, `LIGHTKIT_NAME`, `LIGHTKIT_STATUS`,
    `LIGHTKIT_EXIT`, `LIGHTKIT_METRIC`, `LIGHTKIT_BEST`, `LIGHTKIT_REASON`. It does not change the result of the run. It
    is ignored in the file of a run that another user or machine made."""
    trust: list[str] = field(default_factory=list, metadata=USER_ONLY)
    """Packages, modules, classes or functions that a `_target_` may name in addition to those of lightkit, torch,
    torchmetrics, torchvision, timm, peft and your own project; on the command line also plugins of Hydra in your
    project. It is ignored in the file of a run that another user or machine made."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Your own values, for use by interpolation (`${extra.width}`); they are not checked."""
