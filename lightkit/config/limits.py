"""Ranges of numbers and rules between keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightkit.config.origins import Key

if TYPE_CHECKING:
    from lightkit.config.check import Report


@dataclass(frozen=True)
class Limit:
    """What a number may be; a bound with `open_` in its name is not allowed itself."""

    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    fix: str | None = None

    def holds(self, value: float) -> bool:
        """Whether the number is allowed; infinity and not-a-number never are."""
        if not math.isfinite(value):
            return False
        above = self.low is None or value > self.low or (value == self.low and not self.open_low)
        return above and (self.high is None or value < self.high or (value == self.high and not self.open_high))

    def in_words(self) -> str:
        """`above 0, at most 1`."""
        low = None if self.low is None else f"above {self.low:g}" if self.open_low else f"at least {self.low:g}"
        high = None if self.high is None else f"below {self.high:g}" if self.open_high else f"at most {self.high:g}"
        return "a number " + ", ".join(part for part in (low, high) if part)


_COUNT, _FROM_ZERO, _ABOVE_ZERO = Limit(low=1), Limit(low=0), Limit(low=0, open_low=True)
_SHARE, _PART = Limit(low=0, high=1), Limit(low=0, high=1, open_high=True)
_FACTOR = Limit(low=0, high=1, open_low=True)
_FREEZE = "to keep parameters as they are, freeze them instead of giving them a rate of 0"
_RATE = Limit(low=0, open_low=True, fix=_FREEZE)
_RULE = Limit(low=0, open_low=True, fix=f"{_FREEZE}; if that is what you want, add allow_zero: true to the rule")

LIMITS: dict[str, Limit] = {
    "seed": _FROM_ZERO,
    "data.split.val": _PART,
    "data.split.test": _PART,
    "data.split.seed": _FROM_ZERO,
    "data.split.folds": Limit(low=2),
    "data.split.fold": _FROM_ZERO,
    "data.split.limit": _COUNT,
    "data.split.per_class": _COUNT,
    "data.batch_size": _COUNT,
    "data.eval_batch_size": _COUNT,
    "data.normalize_rows": _COUNT,
    "data.mixup.alpha": _ABOVE_ZERO,
    "data.mixup.probability": _SHARE,
    "data.num_workers": _FROM_ZERO,
    "data.prefetch_factor": _COUNT,
    "data.timeout_seconds": _FROM_ZERO,
    "trainer.nonfinite.limit": _COUNT,
    "trainer.nonfinite.every": _COUNT,
    "trainer.nonfinite.factor": _FACTOR,
    "optim.lr": _RATE,
    "optim.weight_decay": _FROM_ZERO,
    "optim.momentum": _FROM_ZERO,
    "optim.eps": _FROM_ZERO,
    "optim.betas.*": _PART,
    "optim.alpha": _SHARE,
    "optim.lr_decay": _FROM_ZERO,
    "optim.momentum_decay": _FROM_ZERO,
    "optim.initial_accumulator_value": _FROM_ZERO,
    "optim.layer_decay": _FACTOR,
    "optim.rules.*.lr": _RULE,
    "optim.rules.*.lr_scale": _RULE,
    "optim.rules.*.weight_decay": _FROM_ZERO,
    "optim.rules.*.warmup_steps": _FROM_ZERO,
    "scheduler.floor": _SHARE,
    "scheduler.threshold": _FROM_ZERO,
    "scheduler.every_epochs": _ABOVE_ZERO,
    "scheduler.scheduler.gamma": _ABOVE_ZERO,
    "scheduler.warmup_steps": _FROM_ZERO,
    "scheduler.warmup_epochs": _FROM_ZERO,
    "loss.label_smoothing": _SHARE,
    "model.dropout": _SHARE,
    "metrics.*.*.num_classes": _COUNT,
    "metrics.*.*.num_labels": _COUNT,
    "metrics.*.*.top_k": _COUNT,
    "metrics.*.*.k": _COUNT,
    "metrics.*.*.thresholds": Limit(low=2),
    "metrics.*.*.thresholds.*": _SHARE,
    "device.threads": Limit(low=1, high=4096),
    "device.dp_dim": _FROM_ZERO,
    "device.nproc": _COUNT,
    "device.fsdp.min_parameters": _COUNT,
    "device.ddp.bucket_mib": _ABOVE_ZERO,
    "device.ddp.timeout_seconds": Limit(low=0, high=1e9, open_low=True),
    "trainer.epochs": _COUNT,
    "trainer.steps": _COUNT,
    "trainer.accumulate": _COUNT,
    "trainer.clip_norm": _ABOVE_ZERO,
    "trainer.clip_value": _ABOVE_ZERO,
    "trainer.validate_every": _COUNT,
    "trainer.early_stopping.patience": _COUNT,
    "trainer.early_stopping.min_delta": _FROM_ZERO,
    "trainer.ema.decay": Limit(low=0, high=1, open_low=True, open_high=True),
    "checkpoint.every_epochs": _COUNT,
    "checkpoint.every_steps": _COUNT,
    "checkpoint.keep_last": _COUNT,
    "checkpoint.keep_best": _FROM_ZERO,
    "checkpoint.keep_every": _COUNT,
    "logger.every_steps": _COUNT,
    "logger.console.every_seconds": _ABOVE_ZERO,
    "logger.tensorboard.images": _FROM_ZERO,
    "logger.system.every_seconds": _ABOVE_ZERO,
    "logger.profile.skip_steps": _FROM_ZERO,
    "logger.profile.warmup_steps": _FROM_ZERO,
    "logger.profile.steps": _FROM_ZERO,
    "finetune.head.lr": _RATE,
    "finetune.head.lr_scale": _RATE,
    "finetune.head.weight_decay": _FROM_ZERO,
    "finetune.schedule.*.epoch": _FROM_ZERO,
    "finetune.schedule.*.step": _FROM_ZERO,
    "finetune.schedule.*.share": _FACTOR,
    "finetune.gradual.every_epochs": _COUNT,
    "finetune.gradual.every_steps": _COUNT,
    "finetune.gradual.share": _FACTOR,
    "finetune.gradual.layers": _COUNT,
    "finetune.gradual.first": _FROM_ZERO,
    "finetune.rules.*.lr": _RULE,
    "finetune.rules.*.lr_scale": _RULE,
    "finetune.rules.*.weight_decay": _FROM_ZERO,
    "finetune.rules.*.warmup_steps": _FROM_ZERO,
    "finetune.layer_decay": _FACTOR,
    "finetune.slices.*": _RATE,
    "finetune.lora.rank": _COUNT,
    "finetune.lora.ranks.*": _COUNT,
    "finetune.lora.alpha": _ABOVE_ZERO,
    "finetune.lora.dropout": _PART,
    "finetune.lora.lr_ratio": _ABOVE_ZERO,
    "finetune.adapter.width": _COUNT,
    "finetune.adapter.reduction": _COUNT,
    "finetune.adapter.dropout": _PART,
    "finetune.adapter.scale": _ABOVE_ZERO,
    "finetune.prefix.length": _COUNT,
    "finetune.prefix.init_std": _FROM_ZERO,
    "finetune.distill.temperature": _ABOVE_ZERO,
    "finetune.distill.weight": _SHARE,
}
"""Allowed range by key; `*` stands for the number of a list item, for split and name of a metric, and at the end also
for any name."""


def limit_of(key: Key) -> Limit | None:
    """The range of the numbers at a place; None where any number will do."""
    parts = ["*" if isinstance(part, int) else part for part in key]
    if parts[0] == "metrics" and len(parts) > 3:
        parts[1:3] = "*", "*"
    return LIMITS.get(".".join(parts)) or LIMITS.get(".".join([*parts[:-1], "*"]))


def out_of_range(value: Any, key: Key, report: Report) -> None:
    """Report a number, or one of a list, that is outside the limits of its key."""
    for index, item in enumerate(value if isinstance(value, list) else ()):
        out_of_range(item, (*key, index), report)
    limit = limit_of(key)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if limit is not None and is_number and not limit.holds(value):
        expected = limit.in_words() if math.isfinite(value) else f"{limit.in_words()}, and finite"
        report.add(key, "out of range", expected=expected, received=value, fix=limit.fix if value == 0 else None)


def relations(tree: dict[str, Any], report: Report) -> None:
    """Report values that are right on their own and wrong together."""
    _shares(_node(tree, "data", "split"), report)
    _length(_node(tree, "trainer"), report)
    _monitor(_node(tree, "metrics"), report)
    _reduction(_node(tree, "loss"), report)
    _rates(_node(tree, "optim"), report)
    _warmups(_node(tree, "scheduler"), report)
    _processes(_node(tree, "device"), _node(tree, "data"), report)
    _sharded(_node(tree, "device"), _node(tree, "finetune"), report)
    _static(_node(tree, "device", "ddp"), _node(tree, "trainer"), report)
    name = tree.get("name")
    if isinstance(name, str) and (not name.strip() or "/" in name or "\\" in name or name in (".", "..")):
        report.add(("name",), "can't be part of a folder's name", expected="text without slashes", received=name)


def _node(tree: dict[str, Any], *key: str) -> dict[str, Any]:
    node: Any = tree
    for part in key:
        node = node.get(part) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


def _shares(split: dict[str, Any], report: Report) -> None:
    val, test = split.get("val", 0.1), split.get("test", 0.2)
    numbers = all(isinstance(share, (int, float)) for share in (val, test))
    if numbers and split.get("by") in ("stratified", "random", "ordered", None) and max(val, test) < 1 <= val + test:
        what = "val and test leave no training rows"
        report.add(("data", "split"), what, expected="val + test below 1", received=val + test)
    fold, folds = split.get("fold", 0), split.get("folds", 5)
    if isinstance(fold, int) and isinstance(folds, int) and split.get("by") == "fold" and fold >= folds:
        report.add(("data", "split", "fold"), "out of range", expected=f"0 to {folds - 1}", received=fold)


def _length(trainer: dict[str, Any], report: Report) -> None:
    if trainer and trainer.get("epochs", 10) is None and trainer.get("steps") is None:
        report.add(
            ("trainer", "epochs"), "training has no end", expected="a number of epochs or of steps", received="null"
        )


def _monitor(metrics: dict[str, Any], report: Report) -> None:
    monitor = metrics.get("monitor")
    if not isinstance(monitor, str):
        return
    valid = [f"{part}/{name}" for part in ("train", "val", "test") for name in ("loss", *_names(metrics.get(part)))]
    numbers = {name for name in valid if _is_average(metrics, name)}
    if not any(monitor == name or (monitor.startswith(f"{name}/") and name not in numbers) for name in valid):
        report.add(("metrics", "monitor"), "no metric of that name is measured", received=monitor, choices=valid)


def _is_average(metrics: dict[str, Any], name: str) -> bool:
    """Whether a metric gives one number for sure, and so nothing like `val/f1/cat`."""
    part, metric = name.split("/", 1)
    return _node(metrics, part, metric).get("average") in ("micro", "macro", "weighted") or metric == "loss"


def _rates(optim: dict[str, Any], report: Report) -> None:
    """PyTorch takes tensors here too; groups and schedules of ours are made from numbers."""
    for name in ("lr", "weight_decay"):
        if isinstance(optim.get(name), dict):
            report.add(("optim", name), "wrong type", expected="a number", received="a `_target_`")


def _warmups(scheduler: dict[str, Any], report: Report) -> None:
    """The one warm-up of a schedule of ours, which can be given in two ways."""
    ours = str(scheduler.get("_target_")).startswith("lightkit.optim.")
    given = {name: scheduler.get(name) for name in ("warmup_steps", "warmup_epochs")}
    if ours and all(isinstance(value, (int, float)) and value > 0 for value in given.values()):
        received = ", ".join(f"{name}: {value}" for name, value in given.items())
        places = [name for name in given if report.sources.on_command_line(("scheduler", name))]
        fix = "scheduler.warmup_steps=0 or scheduler.warmup_epochs=0"
        report.add(("scheduler", (places or [*given])[-1]), "the warm-up is given twice", received=received, fix=fix)


def _reduction(loss: dict[str, Any], report: Report) -> None:
    """PyTorch's losses take any text here, and one that is no mean would be weighted by samples a second time."""
    value, target = loss.get("reduction"), loss.get("_target_")
    of_torch = isinstance(target, str) and target.startswith("torch.nn.")
    if of_torch and isinstance(value, str) and value not in ("mean", "batchmean"):
        what = "a loss is the mean over the samples of its batch"
        report.add(("loss", "reduction"), what, received=value, fix="loss.reduction=mean")


def _processes(device: dict[str, Any], data: dict[str, Any], report: Report) -> None:
    """Several processes: what they are for, their GPUs, and a sample for each in every batch."""
    count, parallel, name = device.get("nproc", 1), device.get("parallel", "none"), device.get("name")
    if not isinstance(count, int) or count <= 1:
        return
    if parallel in ("none", "dp"):
        what = "several processes share a run only with device.parallel=ddp or fsdp"
        report.add(("device", "nproc"), what, received=count, fix="device.parallel=ddp, or device.nproc=1")
    if name == "mps" or (isinstance(name, str) and name.startswith("cuda:")):
        what = "one device cannot be that of several processes; each takes the GPU of its own number"
        report.add(("device", "name"), what, received=name, choices=("auto", "cuda", "cpu"))
    if "MIG-" in str(device.get("gpus")):
        what = f"{count} processes (device.nproc) need a whole GPU each: NVIDIA connects no MIG instances"
        report.add(("device", "gpus"), what, received=device["gpus"], fix="device.nproc=1 device.parallel=none")
    for key in ("batch_size", "eval_batch_size"):
        size = data.get(key)
        if isinstance(size, int) and 1 <= size < count:
            what = f"{count} processes (device.nproc) share each batch, and some would never have a sample"
            report.add(("data", key), what, expected=f"at least {count}", received=size)


_WHOLE_ONLY = {
    "compile": "code is compiled for a whole model",
    "cuda_graphs": "kernels are recorded for a whole model",
    "channels_last": "PyTorch shares out parameters in their usual order in memory only",
}
"""Why some settings of `device` do not go with `fsdp`."""


def _sharded(device: dict[str, Any], finetune: dict[str, Any], report: Report) -> None:
    """What cannot be done where each process holds a part of the model only."""
    if device.get("parallel") != "fsdp":
        return
    for name, why in _WHOLE_ONLY.items():
        if device.get(name, "none") not in ("none", False):
            what = f"not with fsdp, where each process holds a part of the model: {why}"
            report.add(("device", name), what, received=device[name], fix="device.parallel=ddp")
    if finetune.get("peft"):
        what = "not with fsdp: the layers of peft know nothing of weights that are shared out"
        report.add(("finetune", "peft"), what, fix="finetune.lora, adapter or prefix, or device.parallel=ddp")


def _static(ddp: dict[str, Any], trainer: dict[str, Any], report: Report) -> None:
    count = trainer.get("accumulate", 1)
    if ddp.get("static_graph") and isinstance(count, int) and count > 1:
        what = "PyTorch cannot add up gradients over batches in a static graph"
        report.add(("device", "ddp", "static_graph"), what, received=True, fix="trainer.accumulate=1")


def _names(node: Any) -> list[str]:
    return list(node) if isinstance(node, dict) else []
