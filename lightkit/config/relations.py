"""Rules between keys of all groups but `finetune`: what does not go together, before PyTorch is imported.

What a device cannot make use of is no mistake: it is told when the run begins, so that `device=cpu` works everywhere.
"""

from __future__ import annotations

import re

from lightkit.common.gpu_choice import EXPECTED, read_gpus
from lightkit.common.lengths import EXPECTED as EXPECTED_LENGTH
from lightkit.common.lengths import read_length
from lightkit.common.strategies import STRATEGIES, WITH_PROCESSES
from lightkit.config.report import Node, Report, Rule
from lightkit.config.schema import Config
from lightkit.config.signatures import read_known

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def shares_of_split(cfg: Config, report: Report) -> None:
    """Refuse shares that leave no training rows."""
    split = cfg.data.split
    if split.by in ("stratified", "random", "ordered") and split.val + split.test >= 1:
        what = "val and test leave no training rows"
        report.add(
            ("data", "split"), what, expected="val + test below 1", received=split.val + split.test, family="split"
        )


def fold_of_split(cfg: Config, report: Report) -> None:
    """Refuse a fold that is not one of the folds."""
    split = cfg.data.split
    if split.by == "fold" and split.fold >= split.folds:
        expected = f"0 to {split.folds - 1}"
        report.add(
            ("data", "split", "fold"), "out of range", expected=expected, received=split.fold, family="wrong-value"
        )


def end_of_training(cfg: Config, report: Report) -> None:
    """Refuse a run without an end."""
    if cfg.trainer.epochs is None and cfg.trainer.steps is None:
        expected = "a number of epochs or of steps"
        report.add(("trainer", "epochs"), "training has no end", expected=expected, received="null")


def pause_of_training(cfg: Config, report: Report) -> None:
    """Refuse to pause at what is no length, and where nothing could go on."""
    key, stop = ("trainer", "stop_at"), cfg.trainer.stop_at
    if stop is None:
        return
    try:
        read_length(stop)
    except ValueError as error:
        report.add(key, str(error), expected=f"{EXPECTED_LENGTH}, or null", received=stop, family="wrong-value")
        return
    if not cfg.checkpoint.enabled:
        report.add(key, "a run without checkpoints cannot go on", received=stop, fix="no checkpoint=none")
    if cfg.ensemble._target_ != "lightkit.ensemble.methods.NoEnsemble":
        what = "an ensemble trains its members to their ends"
        report.add(key, what, received=stop, fix="trainer.stop_at=null, or ensemble=none", family="ensemble")


def one_short_run(cfg: Config, report: Report) -> None:
    """Refuse a run that is both cut down and to learn its samples by heart."""
    samples = cfg.trainer.overfit.samples
    if cfg.trainer.smoke and samples is not None:
        what, fix = "a smoke run is too short to learn samples by heart", "trainer=overfit, or trainer=smoke"
        report.add(("trainer", "overfit", "samples"), what, received=samples, fix=fix)


def monitored_metric(cfg: Config, report: Report) -> None:
    """Refuse to monitor what is not measured: `val/f1` gives parts such as `val/f1/cat` only without an average."""
    monitor, splits = cfg.metrics.monitor, ("train", "val", "test")
    metrics = {f"{split}/{name}": node for split in splits for name, node in getattr(cfg.metrics, split).items()}
    measured = [f"{split}/{name}" for split in splits for name in ("loss", *getattr(cfg.metrics, split))]
    one = [name for name in measured if getattr(metrics.get(name), "average", None) in ("micro", "macro", "weighted")]
    one += [f"{split}/loss" for split in splits]
    if not any(monitor == name or (monitor.startswith(f"{name}/") and name not in one) for name in measured):
        what = "no metric of that name is measured"
        report.add(("metrics", "monitor"), what, received=monitor, choices=measured, family="loss-or-metric")


def mean_of_loss(cfg: Config, report: Report) -> None:
    """Refuse a loss of PyTorch that is no mean: it would be weighted by samples a second time."""
    reduction = getattr(cfg.loss, "reduction", "mean")
    if cfg.loss._target_.startswith("torch.nn.") and reduction not in ("mean", "batchmean"):
        what = "a loss is the mean over the samples of its batch"
        report.add(("loss", "reduction"), what, received=reduction, fix="loss.reduction=mean", family="loss-or-metric")


def rates_of_optimizer(cfg: Config, report: Report) -> None:
    """Refuse tensors, which PyTorch takes too: our groups and schedules are made from numbers."""
    for name in ("lr", "weight_decay"):
        if isinstance(getattr(cfg.optim, name, None), dict):
            report.add(
                ("optim", name), "wrong type", expected="a number", received="a `_target_`", family="wrong-value"
            )


def one_warmup(cfg: Config, report: Report) -> None:
    """Refuse the warm-up of a schedule of ours in both ways in which it can be given."""
    given = {name: getattr(cfg.scheduler, name, None) for name in ("warmup_steps", "warmup_epochs")}
    if cfg.scheduler._target_.startswith("lightkit.optim.") and all(given.values()):
        received = ", ".join(f"{name}: {value}" for name, value in given.items())
        places = [name for name in given if report.sources.on_command_line(("scheduler", name))]
        fix = "scheduler.warmup_steps=0 or scheduler.warmup_epochs=0"
        report.add(("scheduler", (places or [*given])[-1]), "the warm-up is given twice", received=received, fix=fix)


def name_of_run(cfg: Config, report: Report) -> None:
    """Refuse a name that no folder can have."""
    name = cfg.name
    if name is not None and (not name.strip() or "/" in name or "\\" in name or name in (".", "..")):
        report.add(
            ("name",),
            "can't be part of a folder's name",
            expected="text without slashes",
            received=name,
            family="wrong-value",
        )


RULES: tuple[Rule, ...] = (
    shares_of_split,
    fold_of_split,
    end_of_training,
    pause_of_training,
    one_short_run,
    monitored_metric,
    mean_of_loss,
    rates_of_optimizer,
    one_warmup,
    name_of_run,
)


def use_of_processes(cfg: Config, report: Report) -> None:
    """Refuse several processes where nothing shares a run between them."""
    if cfg.device.nproc > 1 and not STRATEGIES[cfg.device.parallel].processes:
        what = f"several processes share a run only with device.parallel={' or '.join(WITH_PROCESSES)}"
        fix = "device.parallel=ddp, or device.nproc=1"
        report.add(("device", "nproc"), what, received=cfg.device.nproc, fix=fix)


def device_of_processes(cfg: Config, report: Report) -> None:
    """Refuse one device for several processes."""
    name = cfg.device.name
    if cfg.device.nproc > 1 and (name == "mps" or name.startswith("cuda:")):
        what = "one device cannot be that of several processes; each takes the GPU of its own number"
        report.add(("device", "name"), what, received=name, choices=("auto", "cuda", "cpu"))


def gpus_of_processes(cfg: Config, report: Report) -> None:
    """Refuse several processes on parts of GPUs."""
    count, gpus = cfg.device.nproc, cfg.device.gpus
    if count > 1 and "MIG-" in str(gpus):
        what = f"{count} processes (device.nproc) need a whole GPU each: NVIDIA connects no MIG instances"
        report.add(("device", "gpus"), what, received=gpus, fix="device.nproc=1 device.parallel=none")


def samples_of_processes(cfg: Config, report: Report) -> None:
    """Refuse batches with fewer samples than processes."""
    count = cfg.device.nproc if STRATEGIES[cfg.device.parallel].splits_batches else 1
    for name in ("batch_size", "eval_batch_size"):
        size = getattr(cfg.data, name, None)
        if size is not None and size < count:
            what = f"{count} processes (device.nproc) share each batch, and some would never have a sample"
            report.add(("data", name), what, expected=f"at least {count}", received=size)


def features_of_strategy(cfg: Config, report: Report) -> None:
    """Refuse what does not go with the way in which several devices are used."""
    for name, refused in STRATEGIES[cfg.device.parallel].refuses.items():
        group = "finetune" if name == "peft" else "device"
        value = getattr(getattr(cfg, group), name, None)
        if value not in (None, "none", False):
            received = None if isinstance(value, Node) else value
            report.add((group, name), refused.what, received=received, fix=refused.fix)


def static_graph(cfg: Config, report: Report) -> None:
    """Refuse to add up gradients over batches in a static graph."""
    if cfg.device.ddp.static_graph and cfg.trainer.accumulate > 1:
        what = "PyTorch cannot add up gradients over batches in a static graph"
        report.add(("device", "ddp", "static_graph"), what, received=True, fix="trainer.accumulate=1")


def device_name(cfg: Config, report: Report) -> None:
    """Refuse a device that cannot be."""
    if not _DEVICE.fullmatch(cfg.device.name):
        choices = ("auto", "cpu", "cuda", "cuda:0", "cuda:1", "mps")
        report.add(
            ("device", "name"), "no such device", received=cfg.device.name, choices=choices, family="no-such-device"
        )


def visible_gpus(cfg: Config, report: Report) -> None:
    """Refuse a choice of GPUs that is none, and a device that is not among them."""
    gpus = cfg.device.gpus
    if gpus is None:
        return
    try:
        found = read_gpus(gpus)
    except ValueError as error:
        report.add(("device", "gpus"), str(error), expected=EXPECTED, received=gpus, family="no-such-device")
        return
    count, name = found if isinstance(found, int) else len(found), cfg.device.name
    if name.startswith("cuda:") and name[5:].isdigit() and int(name[5:]) >= count:
        what = f"device.gpus={gpus} leaves {count} to see, counted from 0"
        fix = "the number among those, not that of nvidia-smi; device.name=cuda is the first"
        report.add(("device", "name"), what, received=name, fix=fix, family="no-such-device")


def timed_convolutions(cfg: Config, report: Report) -> None:
    """Refuse to choose convolutions by timing them in a deterministic run."""
    if cfg.device.deterministic and cfg.device.cudnn_benchmark:
        what = "taking the fastest algorithm of the day is not deterministic"
        fix = "device.cudnn_benchmark=false or device.deterministic=false"
        report.add(("device", "cudnn_benchmark"), what, received=True, fix=fix)


def timed_kernels(cfg: Config, report: Report) -> None:
    """Refuse to choose compiled kernels by timing them in a deterministic run."""
    if cfg.device.deterministic and cfg.device.compile == "max-autotune":
        what, fix = "the kernels are chosen by timing them, which is not deterministic", "device.compile=default"
        report.add(("device", "compile"), what, received="max-autotune", fix=fix)


def exact_products(cfg: Config, report: Report) -> None:
    """Refuse exact matrix products where rounded ones are asked for."""
    if cfg.device.precision == "tf32" and cfg.device.matmul == "highest":
        what = "this is not what device.precision=tf32 asks for"
        report.add(("device", "matmul"), what, received="highest", fix="device.matmul=auto or device.precision=fp32")


def double_precision(cfg: Config, report: Report) -> None:
    """Refuse double precision on Apple's GPU."""
    if cfg.device.precision == "fp64" and cfg.device.name == "mps":
        what, fix = "Apple's GPUs have no float64", "device=cpu or device.precision=fp32"
        report.add(("device", "precision"), what, received="fp64", fix=fix)


def step_of_optimizer(cfg: Config, report: Report) -> None:
    """Refuse an implementation that is chosen in two places, or that the optimizer does not have."""
    wanted, target, key = cfg.device.optimizer, cfg.optim._target_, ("device", "optimizer")
    if wanted == "auto":
        return
    given = [name for name in ("fused", "foreach") if getattr(cfg.optim, name, None) is not None]
    if given:
        what = f"optim.{given[0]} chooses as well"
        report.add(key, what, received=wanted, fix="device.optimizer=auto")
    signature = read_known(target)
    names = None if signature is None or signature.open else signature.names()
    if names is not None and ("fused" if wanted == "fused" else "foreach") not in names:
        by_argument = {"foreach": ("foreach", "loop"), "fused": ("fused",)}
        choices = [choice for name, choices in by_argument.items() if name in names for choice in choices]
        report.add(key, f"{target} has none of these", received=wanted, choices=["auto", *choices])


def split_of_batches(cfg: Config, report: Report) -> None:
    """Refuse to split batches in a static graph."""
    if cfg.device.batch_size == "auto" and cfg.device.ddp.static_graph:
        what = "the batch may be split, and PyTorch cannot add up gradients over batches in a static graph"
        report.add(("device", "batch_size"), what, received="auto", fix="device.ddp.static_graph=false")


DEVICE_RULES: tuple[Rule, ...] = (
    use_of_processes,
    device_of_processes,
    gpus_of_processes,
    samples_of_processes,
    features_of_strategy,
    static_graph,
    device_name,
    visible_gpus,
    timed_convolutions,
    timed_kernels,
    exact_products,
    double_precision,
    step_of_optimizer,
    split_of_batches,
)
