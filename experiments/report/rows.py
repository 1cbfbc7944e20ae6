"""What is measured: for each page of `experiments/`, its runs, their seeds, and what they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metric:
    """A number that a run comes to.

    Args:
        key: Name of the value in `result.json`.
        label: Its name in tables.
        digits: Digits after the decimal point in tables.
        percent: Whether tables show it in per cent.
        better: Whether `max` or `min` is better.
    """

    key: str
    label: str
    digits: int = 2
    percent: bool = True
    better: str = "max"


@dataclass(frozen=True)
class Variant:
    """Runs that differ in their seed alone.

    Args:
        label: First cell of the row in the table of the page.
        experiment: Name of the experiment.
        seeds: One run each.
        seed_key: Key of the configuration that the seed is given to.
        overrides: Further changes of the configuration.
        column: Head of the column in tables with several; empty for the plain table.
        base: Where the weights come from: key of the configuration, page and variant, whose first seed it is.
        short: Changes that make the first steps of such a run cheap, for its stamp.
    """

    label: str
    experiment: str
    seeds: Sequence[int]
    seed_key: str = "data.split.seed"
    overrides: tuple[str, ...] = ()
    column: str = ""
    base: tuple[str, str, str] | None = None
    short: tuple[str, ...] = ()

    def seeded(self, seed: int) -> list[str]:
        """What to type for one of the runs, but for the weights to start from."""
        return [f"experiment={self.experiment}", *self.overrides, f"{self.seed_key}={seed}"]


@dataclass(frozen=True)
class Page:
    """A folder of `experiments/`: what its table shows.

    Args:
        variants: Runs by the name of their folder below `outputs/measured/PAGE`.
        metrics: Columns of the table; the first one is that of the summary.
        headline: The variant in the summary; empty for a page that has no line there.
        classic: The classic in the summary, by its key in `classics` of the results.
        title: What the summary calls it; None takes the name of the page.
        unit: What is written behind the number in the summary.
        shared: Further files the results depend on.
    """

    variants: dict[str, Variant]
    metrics: tuple[Metric, ...]
    headline: str = "network"
    classic: str = "classic"
    title: str | None = None
    unit: str = ""
    shared: tuple[str, ...] = field(default=())


TEN, TWENTY, FIVE = range(10), range(20), range(5)
ACCURACY = Metric("test/accuracy", "test accuracy")
BITS = Metric("test/bits_per_character", "bits per character", digits=3, percent=False, better="min")
METHODS = {
    "none": "from scratch",
    "head": "head only",
    "full": "full",
    "gradual": "gradual",
    "discriminative": "discriminative",
    "lora": "LoRA",
    "adapter": "adapter",
}
"""Names of the methods of the transfer experiments, in the order of their tables."""
SHAPES_SHORT = ("data.dataset.train=500", "data.dataset.val=20", "data.dataset.test=100")
TEXT_SHORT = ("data.dataset.texts={_target_: experiments.report.stamp.made_up_texts}",)


def transfer(name: str, *, sizes: dict[int, Sequence[int]], short: tuple[str, ...] = ()) -> dict[str, Variant]:
    """Every method of fine-tuning at every number of labelled images, and the network they start from."""
    base = Variant("the network to adapt", f"{name}/pretrain", (0,), seed_key="seed", column="-", short=short)
    made = {"base": base}
    for size, seeds in sizes.items():
        for method, label in METHODS.items():
            made[f"{method}-{size}"] = Variant(
                label,
                name,
                seeds,
                seed_key="seed",
                overrides=(f"finetune={method}", f"data.split.per_class={size}"),
                column=f"{size} a class",
                base=None if method == "none" else ("extra.base", name, "base"),
                short=short,
            )
    return made


def tuned_text(label: str, experiment: str, base: str, *overrides: str) -> Variant:
    """A language model that starts from one that has read Python."""
    weights = ("finetune.weights.path", "char_lm", base)
    return Variant(label, experiment, FIVE, seed_key="seed", overrides=overrides, base=weights, short=TEXT_SHORT)


PAGES = {
    "digits_cnn": Page({"network": Variant("this experiment", "digits_cnn", TEN)}, (ACCURACY,)),
    "digits_mlp": Page({"network": Variant("this experiment", "digits_mlp", TEN)}, (ACCURACY,)),
    "breast_cancer": Page(
        {"network": Variant("this experiment", "breast_cancer", TEN)},
        (ACCURACY, Metric("test/auroc", "AUROC", digits=4, percent=False)),
    ),
    "wine": Page({"network": Variant("this experiment", "wine", TEN)}, (ACCURACY,)),
    "diabetes": Page(
        {"network": Variant("this experiment", "diabetes", TWENTY)},
        (Metric("test/r2", "R²", digits=3, percent=False),),
        unit=" R²",
    ),
    "digits_multilabel": Page(
        {"network": Variant("this experiment", "digits_multilabel", FIVE)},
        (
            Metric("test/f1_macro", "macro F1", digits=4, percent=False),
            Metric("test/subset_accuracy", "images with all eight attributes right"),
        ),
        unit=" macro F1",
    ),
    "shapes": Page(
        {
            "network": Variant(
                "this experiment",
                "shapes",
                FIVE,
                seed_key="data.dataset.seed",
                short=(*SHAPES_SHORT, "scheduler.warmup_steps=10"),
            )
        },
        (ACCURACY,),
    ),
    "char_lm": Page(
        {
            "lstm": Variant("LSTM", "char_lm", FIVE, seed_key="seed", short=TEXT_SHORT),
            "transformer": Variant("transformer", "char_lm/transformer", FIVE, seed_key="seed", short=TEXT_SHORT),
        },
        (BITS,),
        headline="lstm",
        classic="windows",
        unit=" bits per character",
    ),
    "retrieval": Page(
        {
            "network": Variant("this experiment", "retrieval", FIVE),
            "cross_entropy": Variant(
                "cross entropy, ranked by its ten outputs",
                "retrieval",
                FIVE,
                overrides=("loss=cross_entropy", "loss.label_smoothing=0.1", "model.num_classes=10"),
            ),
        },
        (Metric("test/retrieval/map", "mean average precision", digits=4, percent=False),),
        unit=" mAP",
    ),
    "custom_task": Page(
        {
            "network": Variant(
                "right sums among 5,000 test pairs",
                "custom_task",
                FIVE,
                seed_key="data.dataset.seed",
                short=SHAPES_SHORT,
            )
        },
        (ACCURACY, Metric("test/f1", "macro F1 over the 19 sums", digits=4, percent=False)),
    ),
    "transfer_shapes": Page(
        transfer("transfer_shapes", sizes={5: TEN}, short=("data.dataset.test=100",)),
        (Metric("test/accuracy", "test accuracy", digits=1),),
        headline="head-5",
        classic="classic-5",
        title="`transfer_shapes`, 5 labels a class, head only",
    ),
    "transfer_digits": Page(
        transfer("transfer_digits", sizes={5: TEN}),
        (Metric("test/accuracy", "test accuracy", digits=1),),
        headline="gradual-5",
        classic="classic-5",
        title="`transfer_digits`, 5 labels a class, gradual",
        shared=("transfer_shapes/_transfer.yaml",),
    ),
    "transfer_text": Page(
        {
            "scratch": Variant("from scratch", "transfer_text", FIVE, seed_key="seed", short=TEXT_SHORT),
            "full": tuned_text("full fine-tuning", "transfer_text", "lstm", "finetune=full", "optim.lr=1e-3"),
        },
        (BITS,),
        headline="full",
        classic="windows_both",
        title="`transfer_text`, 51,200 characters",
        unit=" bits per character",
    ),
    "finetune_timm": Page(
        {
            "vit": Variant("ViT, full", "finetune_timm", FIVE),
            "resnet": Variant("ResNet-18, full", "finetune_timm/torchvision", FIVE),
        },
        (Metric("test/accuracy", "test accuracy", digits=1),),
        headline="resnet",
        title="`finetune_timm`, ResNet-18 from random weights",
    ),
}
