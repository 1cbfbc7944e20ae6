"""Adapting a pretrained model: weights, head, what trains when and how fast, LoRA, adapters, prefixes, a teacher.

For patterns see `lightkit.common.patterns`. Labels stand for parts that every model has: `@head`, `@body` (all but the
head), `@norm`, `@bias`, `@tuned` (what LoRA, adapters and prefixes brought in), and layers by kind: `@linear`, `@conv`,
`@embedding`, `@attention`, `@blocks`. None of the latter stands for the head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional

from lightkit.config.schema.base import GRANTS, RuleConfig, Target


@dataclass
class WeightsConfig:
    """The weights to start from."""

    path: Optional[str] = None
    """Folder of a run of lightkit (its best checkpoint is taken), or a checkpoint, state dict, safetensors file or
    training file of others; null starts from the weights that the model has by itself."""
    adapter: Optional[str] = None
    """Adapter file that an earlier fine-tuning wrote, put on top of the base it was written for; null puts none."""
    key: Optional[str] = None
    """Where in the file the weights are (`model`, `ema.weights`); null looks in the usual places."""
    mapping: dict[str, Optional[str]] = field(default_factory=dict)
    """New names of the file's tensors: pattern to replacement, applied in order. Each `*` of a replacement is what that
    of the pattern stood for; null in place of a name leaves the tensors out."""
    strict: Literal["exact", "complete", "matching"] = "complete"
    """`exact`: the file and the model have the same tensors; `complete`: every tensor of the model gets its weights,
    what else is in the file is left out; `matching`: layers that fit are taken. The head is apart from that."""
    head: Literal["keep", "reset", "refuse"] = "keep"
    """The output layer in the file: `keep` takes it where it fits, and starts a new one where it does not or where the
    file is that of a run with other classes; `reset` starts a new one in any case; `refuse` does not train with one
    that does not fit."""
    trust: bool = field(default=False, metadata=GRANTS)
    """Open a pickle of Python objects, which runs the code in it: only for files whose origin is known. What the file
    of a run from elsewhere says here counts for nothing."""


@dataclass
class HeadConfig:
    """The output layer."""

    name: Optional[str] = None
    """Its path in the model, that of a part that ends in it (`classifier`), or the name of a parameter; null takes what
    a forward pass computes the outputs with."""
    replace: Literal["never", "auto", "always"] = "auto"
    """Put a new one in its place: `auto` when its outputs are not as many as the data asks for; `never` also keeps that
    of a base with other classes."""
    init: Literal["default", "zeros", "normal"] = "default"
    """How a new one starts: as PyTorch starts such a layer, at zero, or normal with standard deviation 0.01."""
    lr: Optional[float] = None
    """Learning rate of the head, in place of the optimizer's; null takes the optimizer's."""
    lr_scale: Optional[float] = None
    """Factor on the optimizer's learning rate for the head; null is 1."""
    weight_decay: Optional[float] = None
    """Weight decay of the head; null takes the optimizer's."""


@dataclass
class ScheduleConfig:
    """What begins or stops to train at a moment of the run."""

    epoch: Optional[int] = None
    """At the start of this epoch, counted from 0; give one of this, `step` and `share`."""
    step: Optional[int] = None
    """Before this optimizer step, counted from 0."""
    share: Optional[float] = None
    """After this share of the run's optimizer steps, 0 to 1."""
    unfreeze: list[str] = field(default_factory=list)
    """Patterns of parameters that train from then on."""
    freeze: list[str] = field(default_factory=list)
    """Patterns of parameters that rest from then on."""


@dataclass
class GradualConfig:
    """Unfreezing layer by layer from the head down (Howard and Ruder 2018, https://arxiv.org/abs/1801.06146)."""

    every_epochs: Optional[int] = None
    """Epochs between two unfreezings. With this, `every_steps` and `share` at null nothing is unfrozen gradually."""
    every_steps: Optional[int] = None
    """The same in optimizer steps."""
    share: Optional[float] = None
    """Or: unfreezings at equal distances, so that all is unfrozen after this share of the run, 0 to 1."""
    layers: int = 1
    """Layers unfrozen at a time."""
    first: Optional[int] = None
    """Epoch or optimizer step, counted from 0, of the first unfreezing; null waits as long as between two."""


@dataclass
class LoraConfig:
    """Low-rank updates beside frozen weights (Hu et al. 2021, https://arxiv.org/abs/2106.09685)."""

    match: list[str] = field(default_factory=list)
    """Patterns of the layers that get one (`layer4.*`, @linear, @conv, @embedding, @attention); [] is no LoRA. The head
    is only meant by its name, and by @head."""
    rank: int = 8
    """Rank of the update."""
    alpha: float = 16.0
    """Scale: the update is multiplied with alpha / rank."""
    dropout: float = 0.0
    """Dropout in front of the update, 0 to below 1."""
    rslora: bool = False
    """Multiply with alpha / √rank, which keeps large ranks learning (https://arxiv.org/abs/2312.03732)."""
    ranks: dict[str, int] = field(default_factory=dict)
    """Other ranks by pattern, for some of the layers of `match`."""
    impl: Literal["parametrize", "wrap"] = "parametrize"
    """`parametrize` adds the update to the weight, `wrap` computes it beside the layer."""
    lr_ratio: Optional[float] = None
    """Learning rate of the second matrix relative to the first (LoRA+, https://arxiv.org/abs/2402.12354); null gives
    both the same."""


@dataclass
class AdapterConfig:
    """Small bottleneck layers put into a frozen network."""

    match: list[str] = field(default_factory=list)
    """Patterns of the blocks that get one (@blocks); [] is no adapter."""
    kind: Literal["houlsby", "pfeiffer", "parallel"] = "pfeiffer"
    """Where: `houlsby` after attention and feed-forward of each block, `pfeiffer` at its end, `parallel` beside it."""
    width: Optional[int] = None
    """Width of the bottleneck; null divides that of the block by `reduction`."""
    reduction: int = 8
    """Width of the block relative to that of the bottleneck."""
    activation: Literal["relu", "gelu", "silu", "leaky_relu", "elu", "selu", "tanh", "sigmoid", "identity"] = "gelu"
    """Activation in the bottleneck."""
    dropout: float = 0.0
    """Dropout of what the adapter adds, 0 to below 1."""
    scale: float = 1.0
    """Factor on what the adapter adds."""


@dataclass
class PrefixConfig:
    """Learnt positions in front of a frozen attention network."""

    match: list[str] = field(default_factory=list)
    """Patterns of the attention layers (`prefix`: @attention), or of the blocks, lists of blocks or encoders (`prompt`:
    @blocks) that get positions of their own; [] is none."""
    kind: Literal["prefix", "prompt"] = "prefix"
    """`prefix`: keys and values of attention layers (https://arxiv.org/abs/2101.00190); `prompt`: positions in front of
    the input of an encoder (https://arxiv.org/abs/2104.08691) or block (https://arxiv.org/abs/2203.12119)."""
    length: int = 16
    """Number of learnt positions."""
    softmax: Literal["own", "joint"] = "own"
    """Of a prefix: `own` reads learnt positions apart from the others and adds what it read, and starts as the plain
    network; `joint` shares one softmax with them, as in the original, and takes attention away from them at once."""
    init_std: Optional[float] = None
    """Standard deviation they start with; null takes 1 for the keys of a prefix, and 0.02 for a prompt."""


@dataclass
class DistillConfig:
    """Learning also from the outputs of a trained model (Hinton et al. 2015, https://arxiv.org/abs/1503.02531)."""

    teacher: Optional[str] = None
    """Folder of the teacher's run; null has none."""
    temperature: float = 2.0
    """Both outputs are divided by it before they are compared, above 0; a higher one tells more of the unlikely
    classes."""
    weight: float = 0.5
    """Share of the teacher in the loss, 0 to 1; the rest is that of the targets."""


@dataclass
class FinetuneConfig:
    """Adapting a pretrained model; `none` trains all parameters from where the model starts."""

    weights: WeightsConfig = field(default_factory=WeightsConfig)
    """The weights to start from."""
    head: HeadConfig = field(default_factory=HeadConfig)
    """The output layer."""
    freeze: list[str] = field(default_factory=list)
    """What does not train from the start, parameters or modules with all parameters in them: globs that fit a whole
    name (`conv1`, `layer4.*`, `*`), `re:` and a regular expression that is searched in it, or labels: @head, @body (all
    but the head), @norm, @bias, @linear, @conv, @embedding, @attention, @blocks. What LoRA, adapters and prefixes bring
    in (@tuned) trains all the same."""
    train: list[str] = field(default_factory=list)
    """Patterns of exceptions from `freeze`: these train."""
    bn: Literal["frozen", "stats", "train"] = "frozen"
    """Norm layers with running statistics in frozen parts: `frozen` holds them as they are, `stats` lets the statistics
    go on, `train` trains their weights too. One is frozen where its weight is, also when its bias trains. With `frozen`
    layers that keep other numbers which training changes, such as those of spectral norm, rest too."""
    dropout: Literal["keep", "off"] = "keep"
    """Dropout in frozen parts: as the model has it, or off."""
    schedule: list[ScheduleConfig] = field(default_factory=list)
    """What begins or stops to train later."""
    gradual: GradualConfig = field(default_factory=GradualConfig)
    """Unfreezing layer by layer."""
    rules: list[RuleConfig] = field(default_factory=list)
    """Settings by pattern or label. Two rules that set the same of one parameter are refused."""
    layer_decay: Optional[float] = None
    """Factor on the learning rate per layer counted from the output, 0 to 1; null gives all layers the same rate."""
    slices: list[float] = field(default_factory=list)
    """Factors on the learning rate from input to output, such as [0.01, 0.1, 1.0]: the layers are cut into as many
    slices; [] leaves the rates alone."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Low-rank updates."""
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    """Bottleneck layers."""
    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    """Learnt positions."""
    peft: Optional[Target] = None
    """Any method of Hugging Face's peft: its configuration as a node with `_target_` (needs the extra `peft`)."""
    distill: DistillConfig = field(default_factory=DistillConfig)
    """Learning from a teacher."""
    audit: Literal["fail", "warn", "none"] = "fail"
    """Look after each phase whether all that should have moved did, and nothing else, and after each epoch whether the
    optimizer is as planned; `fail` ends the run if not."""
