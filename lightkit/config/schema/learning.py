"""What is learnt, from what, and how it is measured: data, model, loss, optimizer, schedule, ensemble, metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Optional, Union

from lightkit.common.argument_checks import Range
from lightkit.config.schema.base import FREEZE, INTERNAL, RuleConfig, Target, number, section


@section
class SplitConfig:
    """How the rows of a data set become train, val and test."""

    by: Literal["stratified", "random", "ordered", "time", "file", "fold", "time_fold"] = "random"
    """How the rows are split. `random` shuffles them; `stratified` also keeps the shares of the classes; `ordered` cuts
    them without shuffling; `time` puts the oldest rows into train and the newest into test; `file` uses the splits of
    the data set; `fold` uses fold number `fold` of `folds` as the test split; `time_fold` does so in the order
    of time: of `folds + 1` parts, the test split is the part after the first `fold + 1`, and training uses the rows
    before it, as `TimeSeriesSplit` of scikit-learn does."""
    val: float = number(0.1, low=0, below=1)
    """Share of all rows for validation; 0 makes no validation split. With `time_fold`, it is a share of the rows before
    the test split, the last ones of these."""
    test: float = number(0.2, low=0, below=1)
    """Share of all rows for the test; ignored with folds, and if the data set defines a test split."""
    seed: int = number(0, low=0)
    """Seed of the split. It is separate from `seed`, so that runs with different seeds have the same split."""
    folds: int = number(5, low=2)
    """Number of folds for `by: fold` and `by: time_fold`."""
    fold: int = number(0, low=0)
    """Which fold is the test split, 0 to folds - 1."""
    per_class: Optional[int] = number(None, low=1)
    """Use at most this many training rows of each class; null takes all."""
    limit: Optional[int] = number(None, low=1)
    """Use at most this many training rows; null takes all."""
    limit_seed: Optional[int] = number(None, low=0)
    """Seed of the draw of these rows. Those of a smaller limit are among those of a larger one, with the shares of the
    classes where the split keeps them. Null takes the first rows of the order that `seed` has drawn."""
    val_limit: Optional[int] = number(None, low=1)
    """Evaluate at most this many validation rows, drawn with `data.split.seed`; null takes all. The run says at its end
    that only a part was evaluated."""
    test_limit: Optional[int] = number(None, low=1)
    """Test on at most this many rows, drawn in the same way; null takes all."""
    groups: Optional[str] = "groups"
    """Keep rows of one group, such as one patient, together in splits and folds. It names an attribute of the data set
    (`groups` is used if it exists) or a feature of a table. null ignores groups. For a CSV file, set
    `data.dataset.group_column`."""
    time: Optional[str] = "times"
    """The time of each row, for `by: time` and `by: time_fold`. It names an attribute of the data set or a
    feature of a table: numbers, or dates such as `2024-01-31T12:00`. For a CSV file, set `data.dataset.time_column`.
    Rows of the same time are in the same split."""
    files: dict[str, str] = field(default_factory=dict)
    """Files that say which rows belong to which split: `{train: train.txt, test: test.txt}`. Each line is the name of a
    row (of a picture, its path below the folder of the data) or its number, from 0. Splits that have no file are drawn
    from the training rows."""


@section
class CvConfig:
    """Cross-validation: a run for each fold of the rows, and one result over all of them. `cv=5` sets `cv.folds=5`."""

    folds: Optional[int] = number(None, low=2)
    """Number of folds; each row is a test row once, and the metrics of the test count all rows. Null trains one model.
    Of `data.split`, the keys `by`, `folds`, `fold` and `test` do nothing then."""
    repeats: int = number(1, low=1)
    """How often the rows are dealt out into folds anew. Metrics are means over the repeats."""
    by: Optional[Literal["time"]] = None
    """`time`: each fold is tested by a model that has learnt from older rows only. Null deals the rows out at random,
    with the shares of the classes."""
    groups: Optional[str] = None
    """What names the group of each row, which one fold holds whole; null takes `data.split.groups`."""
    refit: bool = False
    """Train one more model on all rows, which then predicts new rows. False: the mean of the folds' models does."""
    engine: Literal["auto", "vectorized", "sequential", "processes"] = "auto"
    """How the folds are trained: `vectorized` all at once in one process, `sequential` one after the other, `processes`
    side by side, `auto` what is fastest here."""
    slots: Optional[int] = number(None, low=1)
    """Processes side by side for `processes`; null takes one for each GPU, or as many as processors allow."""


@section
class MixupConfig:
    """Mixing pairs of training samples and their targets.

    Mixup (Zhang et al. 2018, https://arxiv.org/abs/1710.09412), CutMix (Yun et al. 2019,
    https://arxiv.org/abs/1905.04899), or both in turn.
    """

    alpha: Optional[float] = number(None, above=0)
    """Parameter of Beta(alpha, alpha), such as 0.2; null switches mixup off."""
    probability: float = number(1.0, low=0, high=1)
    """Share of the batches that are mixed, 0 to 1."""
    cutmix_alpha: Optional[float] = number(None, above=0)
    """Parameter of Beta(alpha, alpha) for the area that CutMix takes from another picture, such as 1.0; null switches
    CutMix off."""
    switch_probability: float = number(0.5, low=0, high=1)
    """Share of the mixed batches that CutMix mixes, if `alpha` and `cutmix_alpha` are both set."""


@section
class DataConfig:
    """Data set, splits, preparation and batches."""

    dataset: Target
    """The data set: a class or function of `lightkit.data` or of your project, or a `torch.utils.data.Dataset`."""
    split: SplitConfig = field(default_factory=SplitConfig)
    """How the rows become train, val and test."""
    more: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further sets to evaluate, by name: `{shifted: {dataset: {path: b.csv}}}`. Each entry holds the keys of `data`
    that differ for this set. Scaling, imputed values, categories, classes, words and target transforms are those of the
    training rows. A set is measured with each validation and in the final test, by the metrics of `metrics.val`, as
    `shifted/accuracy`. All rows count; of a data set that brings a split `test`, those of that. An entry with `split`
    draws the rows: those of its test split count."""
    batch_size: int = number(64, low=1)
    """Samples per training batch, in all processes together; each process computes a part of the batch."""
    eval_batch_size: Optional[int] = number(None, low=1)
    """Samples per batch in validation and test; null takes `batch_size`. No result depends on it."""
    normalize: Literal["none", "standard", "minmax", "image", "base"] = "none"
    """Scaling, fitted on training rows only. `standard` and `minmax` scale each feature, `image` each channel;
    `base` uses the scaling of the run in `finetune.weights.path`. A run stores its scaling for `resume`, `eval` and
    `predict`."""
    normalize_rows: Optional[int] = number(None, low=1)
    """Fit the scaling on at most this many training rows, evenly spaced; null takes all. The loader processes read data
    that is not in memory once for this, before the run begins."""
    augment: list[Target] = field(default_factory=list)
    """Random transforms of the training samples, applied in this order, and seeded for each sample. Transforms of
    `lightkit.data.transforms` take a whole batch of scaled inputs. Any other callable, such as a transform of
    torchvision, gets the input of one sample as a tensor: pictures in [0, 1], not scaled, where such come first.
    `lightkit.data.crops.RandomResizedCrop`, as the first, cuts out of the whole picture of an image file."""
    augment_on_device: bool = False
    """Augment whole batches on the device of the model, not samples in the loader processes. Each sample draws the same
    random numbers. Transforms of one sample at a time are refused; but `lightkit.data.crops.RandomResizedCrop`
    may be the first, and is applied where samples are read."""
    leak_check: bool = True
    """Look for leaks on a sample of the rows when a run starts, for a moment; what is found is one line, and stays in
    `leaks.json` of the run's folder."""
    weights: Optional[str] = "weights"
    """How much each row counts in the loss, 0 or more. It names an attribute of the data set (`weights` is used if it
    exists) or a feature of a table. null ignores weights. For a CSV file, set `data.dataset.weight_column`. Losses of
    all splits are weighted means; metrics count all rows alike."""
    sampler: Optional[Union[str, Target]] = field(default=None, metadata={"door": "data.sampler"})
    """Which rows an epoch takes, and in which order. `shuffle` (or null) takes each row once; `none` does so in the
    order of the data set; `balanced` draws each class as often as any other, and `weighted` draws rows by their
    weights, both with replacement; `length` puts samples of similar lengths (attribute `lengths`) next to each other.
    Or a `torch.utils.data.Sampler` over the training split: it may take `targets`, `weights` and `lengths` (those of
    the split), `num_samples` (its rows), `data_source`, and `shards` (where among the rows each shard begins).
    `shuffle` keeps no list of a million rows or more: the place of a row is computed. `lightkit.data.orders.Windows`
    mixes rows within few shards at a time."""
    collate: Optional[Target] = None
    """What makes a batch of a list of samples: a function, or a class whose objects are called with the list, such as
    `lightkit.data.collates.listed`; null stacks the samples, or takes `collate_fn` of the data set."""
    mixup: MixupConfig = field(default_factory=MixupConfig)
    """Mixup and CutMix of training batches."""
    drop_last: bool = False
    """Skip the last training batch if it is smaller than the others."""
    num_workers: int = number(0, low=0)
    """Number of loader processes, for data that is read sample by sample. Data in memory needs none. It does not change
    the results."""
    pin_memory: Optional[bool] = None
    """Page-locked host memory for faster copies to a GPU; null switches it on when a GPU is used."""
    persistent_workers: bool = True
    """Keep loader processes alive between epochs."""
    prefetch_factor: int = number(2, low=1)
    """Batches each loader process prepares ahead."""
    cache: Optional[Literal["ram", "disk"]] = None
    """Keep decoded samples, so that only the first epoch decodes them: `ram` in memory that the loader processes share,
    `disk` in the user's cache folder, for later runs too. It is for data that is read sample by sample, and does not
    change the results. Pictures that `lightkit.data.crops.RandomResizedCrop` cuts out of files are not kept."""
    timeout_seconds: Optional[float] = number(None, low=0)
    """Longest wait for a batch of the loader processes; after it, the run ends with status 1 (`timeout` of PyTorch's
    `DataLoader`). Null or 0 waits without a limit. In both cases, the run warns after a minute and says what the
    processes are doing."""


@section
class ModelConfig(Target):
    """The network. Any `_target_` that builds a `torch.nn.Module`; sizes such as `num_classes` are filled in."""


@section
class LossConfig(Target):
    """The objective: a callable `(output, target) -> mean loss over the batch`."""


@section
class PartConfig(Target):
    """One of several optimizers."""

    match: Union[str, list[str]] = field(metadata={"patterns": ()}, kw_only=True)
    """Pattern or list of patterns of the parameters that it trains, or of modules with all parameters in them. Each
    parameter that trains has to be in one optimizer."""
    every: int = field(default=1, metadata={"range": Range(low=1)}, kw_only=True)
    """It steps after each so many windows of batches; the first optimizer steps after each."""
    clip_norm: Optional[float] = field(default=None, metadata={"range": Range(above=0)}, kw_only=True)
    """Largest total norm of its gradients; null takes `trainer.clip_norm` or `trainer.clip_value`."""
    schedule: Optional[Target] = field(default=None, kw_only=True)
    """Its learning rate over time, a function of the step such as `lightkit.optim.Cosine`; null takes `scheduler`."""


@section
class OptimConfig(Target):
    """The optimizer and the rules that give parameters their own settings."""

    rules: list[RuleConfig] = field(default_factory=list)
    """Settings by pattern of parameters or modules, or by label: `[{match: head, lr_scale: 10}, {match: "@norm",
    weight_decay: 0}]`. If several rules match a parameter, the last one wins, for each attribute."""
    no_decay: bool = False
    """No weight decay on biases, norm layers and other one-dimensional parameters."""
    layer_decay: Optional[float] = number(None, above=0, high=1)
    """Factor on the learning rate per layer from the output, such as 0.75; null: the same rate."""
    parts: dict[str, PartConfig] = field(default_factory=dict)
    """Several optimizers by name, for `optim=several`: `{g: {_target_: torch.optim.Adam, match: g, lr: 0.1}}`."""


@section
class SchedulerConfig(Target):
    """The learning rate over time, as a factor on each group's own rate."""


@dataclass
class MemberConfig:
    """What a run is among the members of an ensemble; lightkit writes it. The defaults are those of a run alone."""

    rows: Literal["all", "bootstrap", "folds", "predicted"] = "all"
    """Training rows of this member: all, as many drawn with replacement, all but one fold, or those that the files of
    predictions which are its `features` call training rows."""
    draw: int = number(0, low=0)
    """Seed of that draw, which all members have in common."""
    index: int = number(0, low=0)
    """Number of the draw with replacement."""
    folds: int = number(5, low=2)
    """Number of folds."""
    fold: int = number(0, low=0)
    """The fold that is left out."""
    repeat: int = number(0, low=0)
    """How often the folds were dealt out anew before."""
    weights_of: Optional[str] = None
    """Name of the member whose last weights it starts with; null starts with its own."""
    adds_to: Optional[list[str]] = None
    """Names of the members to whose sum it adds, none for the first: it learns what that leaves. Null learns alone."""
    shrinkage: float = number(1.0, above=0)
    """Factor of every member in such a sum."""
    epsilon: Optional[float] = number(None, above=0)
    """Size of the adversarial change of inputs it learns from too; null learns from the inputs as they are."""
    computed_from: list[str] = field(default_factory=list)
    """Names of the members from whose weights its own are computed; none starts with its own."""
    computed_by: dict[str, Any] = field(default_factory=dict)
    """What computes them, a `_target_` with its arguments. It is called with the weights of these members, a dict of
    tensors by name each, and returns those of this one."""
    joint: Optional[Literal["fusion", "soft_gradient_boosting", "own"]] = None
    """Its network is a whole ensemble, whose networks are trained together in this way; null: a single network. `own`:
    `trainer.task` gets the outputs of all in training, `(batch, networks, ...)`."""
    networks: int = number(1, low=1)
    """Number of these networks."""
    solved: Optional[float] = number(None, above=0)
    """Strength of the penalty with which the weights of a linear network are solved for as it begins, so that training
    leaves them as they are; null trains them."""
    holdout: float = number(0.0, low=0, high=0.5)
    """Share of the training rows that is cut off before anything else, by `draw`, and only predicted."""
    features: list[list[str]] = field(default_factory=list)
    """Names of the members whose predictions are its inputs: for each base those of its folds, whose mean counts."""
    refits: list[str] = field(default_factory=list)
    """For each base the member trained on all rows, which predicts validation and test in the place of the folds."""
    passthrough: bool = False
    """Whether the inputs of the data are inputs of this one, too."""


@section
class EnsembleConfig(Target):
    """Several models as one; `none` trains a single model."""

    _target_: str = "lightkit.ensemble.methods.NoEnsemble"
    """The method: a class of `lightkit.ensemble.methods`. All keys but those below are its arguments."""
    members: list[dict[str, Any]] = field(default_factory=list)
    """Different members: for each one a mapping of the keys that differ, as on the command line, such as `[{model:
    mlp}, {model: cnn, optim.lr: 0.01}]`. Empty: members that differ only in their seed."""
    meta: dict[str, Any] = field(default_factory=dict)
    """The meta-model of `stacking`: a mapping of the keys of its run that differ, like an entry of `members`."""
    member: MemberConfig = field(default_factory=MemberConfig, metadata=INTERNAL)
    """What this run is among the members of an ensemble; lightkit writes it."""


@section
class MetricsConfig:
    """torchmetrics by name, per split, and the value that decides what is best."""

    monitor: str
    """Metric that ranks checkpoints, stops early and is the sweep's objective, as logged (`val/accuracy`)."""
    mode: Optional[Literal["min", "max"]] = None
    """Whether a smaller or a larger value of `monitor` is better. Null uses the metric's own `higher_is_better`;
    smaller losses are better. A mode must not contradict this. Metrics that do not define it need a mode."""
    train: dict[str, Optional[Target]] = field(default_factory=dict)
    """Metrics of the training batches, by name; null removes one that another file set."""
    val: dict[str, Optional[Target]] = field(default_factory=dict)
    """Metrics of the validation, by name; null removes one that another file set."""
    test: dict[str, Optional[Target]] = field(default_factory=dict)
    """Metrics of the final test, by name; null removes one that another file set."""
    figures: list[Literal["confusion_matrix", "per_class", "roc", "pr", "ensemble"]] = field(default_factory=list)
    """Figures drawn after the final evaluation, to TensorBoard and as PNG files. `ensemble` draws the figures of an
    ensemble; its members have no figures."""


ARGUMENT_RANGES: dict[str, dict[str, Range]] = {
    "model": {
        "dropout": Range(low=0, high=1),
        "depth": Range(low=1),
        "k": Range(low=1),
        "penalty": Range(low=0),
    },
    "loss": {"label_smoothing": Range(low=0, high=1)},
    "optim": {
        "lr": Range(above=0, instead_of_zero=FREEZE),
        "weight_decay": Range(low=0),
        "momentum": Range(low=0),
        "eps": Range(low=0),
        "betas[]": Range(low=0, below=1),
        "alpha": Range(low=0, high=1),
        "lr_decay": Range(low=0),
        "momentum_decay": Range(low=0),
        "initial_accumulator_value": Range(low=0),
        "rho": Range(low=0),
        "max_iter": Range(low=1),
        "history_size": Range(low=1),
    },
    "ensemble": {
        "size": Range(low=1),
        "slots": Range(low=1),
        "folds": Range(low=2),
        "repeats": Range(low=1),
        "shrinkage": Range(above=0, high=1),
        "patience": Range(low=1),
        "epsilon": Range(above=0),
        "cycle_epochs": Range(low=1),
        "rounds": Range(low=1),
        "layers": Range(low=1),
        "holdout": Range(low=0, high=0.5),
    },
    "scheduler": {
        "floor": Range(low=0, high=1),
        "threshold": Range(low=0),
        "every_epochs": Range(above=0),
        "decay_share": Range(above=0, high=1),
        "timescale": Range(low=1),
        "scheduler.gamma": Range(above=0),
        "warmup_steps": Range(low=0),
        "warmup_epochs": Range(low=0),
    },
    "metrics": {
        "num_classes": Range(low=1),
        "num_labels": Range(low=1),
        "top_k": Range(low=1),
        "k": Range(low=1),
        "thresholds": Range(low=2),
        "thresholds[]": Range(low=0, high=1),
    },
}
"""The numbers that arguments of targets may be, by group and name: those of PyTorch check few of theirs, or check them
after the data is loaded. `[]` stands for the items of a list."""
