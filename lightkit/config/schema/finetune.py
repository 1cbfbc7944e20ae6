"""Adapting a pretrained model: weights, head, what trains when and how fast, LoRA, adapters, prefixes, a teacher.

For patterns see `lightkit.common.patterns`. Labels stand for parts that every model has: `@head`, `@body` (all but the
head), `@norm`, `@bias`, `@tuned` (what LoRA, adapters and prefixes brought in), and layers by kind: `@linear`, `@conv`,
`@embedding`, `@attention`, `@blocks`. None of the latter stands for the head.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal, Optional

from lightkit.common.argument_checks import Range
from lightkit.config.schema.base import (
    FREEZE,
    INTERNAL,
    LABELS,
    LAYER_LABELS,
    USER_ONLY,
    RuleConfig,
    Target,
    former,
    number,
    section,
)

_LAYERS = (*LAYER_LABELS, "@head")


@section
class WeightsConfig:
    """The weights to start from."""

    path: Optional[str] = None
    """Folder of a run (on the command line also its name), or a file or folder of weights; null uses the model's own
    weights. For a run, the best checkpoint is used. A file is a checkpoint, a state dict, a safetensors file, or a
    training file of another program."""
    adapter: Optional[str] = None
    """Adapter file of an earlier fine-tuning, to apply to its base; null: none."""
    key: Optional[str] = None
    """Where in the file the weights are (`model`, `ema.weights`); null looks in the usual places."""
    mapping: dict[str, Optional[str]] = field(default_factory=dict)
    """New names of the file's tensors, pattern to replacement: `{"encoder.*": "body.*", "fc.*": null}`. The patterns
    are applied in order. Each `*` in a replacement stands for what the `*` of the pattern matched. null instead of a
    name drops the tensors."""
    strict: Literal["exact", "complete", "matching"] = "complete"
    """How well file and model must fit. `exact`: both have the same tensors. `complete`: the file has all tensors of
    the model; others in the file are ignored. `matching`: load the layers that fit. `head` sets this for the output
    layer."""
    head: Literal["keep", "reset", "refuse"] = "keep"
    """What to do with the output layer of the file. `keep` loads it if it fits, and starts a new one if it does not,
    or if the run of the file has other classes. `reset` always starts a new one. `refuse` is an error if it does not
    fit."""
    trust: bool = field(default=False, metadata=USER_ONLY)
    """Open a pickle of Python objects, which runs the code in it; use it only for files whose origin you know. It is
    ignored in the file of a run that another user or machine made."""


@section
class HeadConfig:
    """The output layer."""

    name: Optional[str] = None
    """Path of the output layer in the model; null finds it by a forward pass (`lightkit plan` shows it). You can also
    give the path of a part that ends with it (`classifier`), or the name of a parameter."""
    replace: Literal["never", "auto", "always"] = "auto"
    """Replace it by a new one; `auto` does so if its outputs do not fit the data. `never` keeps it, even if the base
    has other classes."""
    init: Literal["default", "zeros", "normal"] = "default"
    """Initial weights of a new output layer: PyTorch's default, zeros, or a normal distribution with standard deviation
    0.01."""
    lr: Optional[float] = number(None, above=0, instead_of_zero=FREEZE)
    """Learning rate of the head; null takes the optimizer's."""
    lr_scale: Optional[float] = number(None, above=0, instead_of_zero=FREEZE)
    """Or: factor on the optimizer's learning rate; null is 1."""
    weight_decay: Optional[float] = number(None, low=0)
    """Weight decay of the head; null takes the optimizer's."""


@section
class ScheduleConfig:
    """What begins or stops to train at a moment of the run."""

    epoch: Optional[int] = number(None, low=0)
    """At the start of this epoch, counted from 0. Give exactly one of `epoch`, `step` and `share`."""
    step: Optional[int] = number(None, low=0)
    """Before this optimizer step, counted from 0."""
    share: Optional[float] = number(None, above=0, high=1)
    """After this share of the run's optimizer steps, 0 to 1."""
    unfreeze: list[str] = field(default_factory=list, metadata={"patterns": LABELS})
    """Patterns of parameters that train from then on."""
    freeze: list[str] = field(default_factory=list, metadata={"patterns": LABELS})
    """Patterns of parameters that are frozen from then on."""


@section
class GradualConfig:
    """Unfreezing layer by layer from the head down (Howard and Ruder 2018, https://arxiv.org/abs/1801.06146)."""

    every_epochs: Optional[int] = number(None, low=1)
    """Epochs between two unfreezings. If this, `every_steps` and `share` are null, nothing is unfrozen gradually."""
    every_steps: Optional[int] = number(None, low=1)
    """Or: the same in optimizer steps."""
    share: Optional[float] = number(None, above=0, high=1)
    """Or: everything is unfrozen after this share of the run, 0 to 1, in equal intervals."""
    layers: int = number(1, low=1)
    """Layers unfrozen at a time."""
    first: Optional[int] = number(None, low=0)
    """Epoch or optimizer step of the first one, counted from 0; null waits as long as between two."""


@section
class LoraConfig:
    """Low-rank updates beside frozen weights (Hu et al. 2021, https://arxiv.org/abs/2106.09685)."""

    match: list[str] = field(default_factory=list, metadata={"patterns": _LAYERS})
    """Patterns of the layers that get an update (`layer4.*`, @linear, @conv, …); [] is no LoRA. The labels are @linear,
    @conv, @embedding, @attention and @blocks. They do not include the head; use its name or @head."""
    rank: int = number(8, low=1)
    """Rank of the update."""
    alpha: float = number(16.0, above=0)
    """Scale: the update is multiplied by alpha / rank."""
    dropout: float = number(0.0, low=0, below=1)
    """Dropout in front of the update, 0 to below 1."""
    rslora: bool = False
    """Multiply by alpha / √rank instead, so that large ranks also learn (https://arxiv.org/abs/2312.03732)."""
    ranks: dict[str, int] = field(default_factory=dict, metadata={"range": Range(low=1), "patterns": _LAYERS})
    """Different ranks for some of the layers of `match`, by pattern: `{"layer4.*": 16}`."""
    impl: Literal["parametrize", "wrap"] = "parametrize"
    """Add the update to the weight, or compute it beside the layer."""
    lr_ratio: Optional[float] = number(None, above=0)
    """Ratio of the learning rates of the second and the first matrix, such as 16; null: the same rate. See LoRA+,
    https://arxiv.org/abs/2402.12354."""


@section
class AdapterConfig:
    """Small bottleneck layers put into a frozen network."""

    match: list[str] = field(default_factory=list, metadata={"patterns": _LAYERS})
    """Patterns of the blocks that get one (@blocks); [] is no adapter."""
    kind: Literal["houlsby", "pfeiffer", "parallel"] = "pfeiffer"
    """Place in a block. `houlsby` is after attention and feed-forward of each, `pfeiffer` at its end, `parallel` beside
    it."""
    width: Optional[int] = number(None, low=1)
    """Width of the bottleneck; null divides that of the block by `reduction`."""
    reduction: int = number(8, low=1)
    """Width of the block relative to that of the bottleneck."""
    activation: Literal["relu", "gelu", "silu", "leaky_relu", "elu", "selu", "tanh", "sigmoid", "identity"] = "gelu"
    """Activation in the bottleneck."""
    dropout: float = number(0.0, low=0, below=1)
    """Dropout of the adapter's output, 0 to below 1."""
    scale: float = number(1.0, above=0)
    """Factor on the adapter's output."""


@section
class PrefixConfig:
    """Keys and values that attention layers learn in front of those of the sequence."""

    match: list[str] = field(default_factory=list, metadata={"patterns": _LAYERS})
    """Patterns of attention layers that get some (@attention); [] is none."""
    length: int = number(16, low=1)
    """Number of learnt positions."""
    init_std: Optional[float] = number(None, low=0)
    """Standard deviation that the keys start with; null takes 1. The values start at zero."""


@section
class DistillConfig:
    """Learning also from the outputs of a trained model (Hinton et al. 2015, https://arxiv.org/abs/1503.02531)."""

    teacher: Optional[str] = None
    """Folder of the teacher's run, on the command line also its name; null has none."""
    temperature: float = number(2.0, above=0)
    """Both outputs are divided by it before they are compared. A higher value gives more weight to unlikely classes."""
    weight: float = number(0.5, low=0, high=1)
    """Share of the teacher in the loss, 0 to 1; the targets have the rest."""


@section
class BodyConfig:
    """All but the output layer."""

    lr_scale: Optional[float] = number(None, above=0, instead_of_zero=FREEZE)
    """Factor on the optimizer's learning rate; null is 1."""


@section
class FinetuneConfig:
    """Adapting a pretrained model; `none` trains all parameters from where the model starts."""

    weights: WeightsConfig = field(default_factory=WeightsConfig)
    """The weights to start from."""
    head: HeadConfig = field(default_factory=HeadConfig)
    """The output layer."""
    body: BodyConfig = field(default_factory=BodyConfig)
    """All but the output layer."""
    freeze: list[str] = field(default_factory=list, metadata={"patterns": LABELS})
    """Patterns of parameters, or of modules with all their parameters, that are frozen from the start. A pattern is a
    glob that fits a whole name (`conv1`, `layer4.*`, `*`), `re:` and a regular expression that is searched in it, or a
    label: @head, @body (all but the head), @norm, @bias, @linear, @conv, @embedding, @attention, @blocks. Parameters
    added by LoRA, adapters and prefixes (@tuned) train anyway."""
    train: list[str] = field(default_factory=list, metadata={"patterns": LABELS})
    """Patterns of exceptions from `freeze`: these train."""
    bn: Literal["frozen", "stats", "train"] = "frozen"
    """Norm layers with running statistics in frozen parts. `frozen` keeps their weights and statistics; `stats`
    updates only the statistics; `train` also trains their weights. A norm layer counts as frozen if its weight is
    frozen, even if its bias trains. `frozen` also keeps the state of other layers that training would change, such
    as spectral norm."""
    dropout: Literal["keep", "off"] = "keep"
    """Dropout in frozen parts: as the model has it, or off."""
    schedule: list[ScheduleConfig] = field(default_factory=list)
    """Parameters that start or stop training later: `[{epoch: 3, unfreeze: ["layer4.*"]}]`."""
    gradual: GradualConfig = field(default_factory=GradualConfig)
    """Unfreezing layer by layer, from the head down."""
    rules: list[RuleConfig] = field(default_factory=list, metadata={**INTERNAL, "now": "optim.rules"})
    """Settings by pattern or label."""
    layer_decay: Optional[float] = former("optim.layer_decay", Range(above=0, high=1))
    """Factor on the learning rate per layer from the output."""
    slices: list[float] = field(default_factory=list, metadata={"range": Range(above=0, instead_of_zero=FREEZE)})
    """Factors on the learning rate from input to output, such as [0.01, 0.1, 1.0]. The layers are divided into as
    many slices; [] does not change the rates."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Low-rank updates."""
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    """Bottleneck layers."""
    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    """Learnt positions."""
    peft: Optional[Target] = None
    """Any method of Hugging Face's peft: `{_target_: peft.LoraConfig, r: 8}` (needs the extra `peft`)."""
    distill: DistillConfig = field(default_factory=DistillConfig)
    """Learning from a teacher."""
    audit: Literal["fail", "warn", "none"] = "fail"
    """Check the fine-tuning against its plan: after each phase, that exactly the planned parameters changed; after each
    epoch, that the optimizer is as planned. `fail` ends the run if not."""
