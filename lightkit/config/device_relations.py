"""Rules between keys of `device` and others: what does not go together, before PyTorch is imported.

What a device cannot make use of is no mistake: it is told when the run begins, so that `device=cpu` works everywhere.
"""

from __future__ import annotations

import re

from lightkit.common.strategies import ELSEWHERE, EXPECTED_GPUS, WITH_PROCESSES, read_gpus, strategy_of
from lightkit.config.schema.device import DeviceConfig
from lightkit.config.schema.finetune import FinetuneConfig
from lightkit.config.schema.learning import DataConfig, OptimConfig
from lightkit.config.schema.running import TrainerConfig
from lightkit.config.signatures import read_known
from lightkit.config.tree import Node, Report, rules_in

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def use_of_processes(device: DeviceConfig, report: Report) -> None:
    """Refuse several processes where nothing shares a run between them."""
    if device.nproc > 1 and not strategy_of(device.parallel).processes:
        what = f"several processes share a run only with device.parallel={' or '.join(WITH_PROCESSES)}"
        fix = "device.parallel=ddp, or device.nproc=1"
        report.add(("device", "nproc"), what, received=device.nproc, fix=fix)


def device_of_processes(device: DeviceConfig, report: Report) -> None:
    """Refuse one device for several processes."""
    name = device.name
    if device.nproc > 1 and (name == "mps" or name.startswith("cuda:")):
        what = "one device cannot be that of several processes; each takes the GPU of its own number"
        report.add(("device", "name"), what, received=name, choices=("auto", "cuda", "cpu"))


def gpus_of_processes(device: DeviceConfig, report: Report) -> None:
    """Refuse several processes on parts of GPUs."""
    count, gpus = device.nproc, device.gpus
    if count > 1 and "MIG-" in str(gpus):
        what = f"{count} processes (device.nproc) need a whole GPU each: NVIDIA connects no MIG instances"
        report.add(("device", "gpus"), what, received=gpus, fix="device.nproc=1 device.parallel=none")


def awaited_gpus(device: DeviceConfig, report: Report) -> None:
    """Refuse to wait for GPUs that nobody names, or in several processes."""
    if not device.wait:
        return
    if device.gpus is None and device.name not in ("cpu", "mps"):
        what = "device.gpus=null takes all GPUs, whoever uses them, so there is none to wait for"
        report.add(("device", "wait"), what, received=True, fix="device.gpus=auto:1, or device.wait=false")
    if device.nproc > 1:
        what = "each process would wait for itself, and the others for it"
        report.add(("device", "wait"), what, received=True, fix="device.wait=false, or device.nproc=1")


def samples_of_processes(data: DataConfig, device: DeviceConfig, report: Report) -> None:
    """Refuse batches with fewer samples than processes."""
    count = device.nproc if strategy_of(device.parallel).splits_batches else 1
    for name in ("batch_size", "eval_batch_size"):
        size = getattr(data, name, None)
        if size is not None and size < count:
            what = f"{count} processes (device.nproc) share each batch, and some would never have a sample"
            report.add(("data", name), what, expected=f"at least {count}", received=size)


def features_of_strategy(
    device: DeviceConfig, finetune: FinetuneConfig, trainer: TrainerConfig, report: Report
) -> None:
    """Refuse what does not go with the way in which several devices are used."""
    searched = getattr(trainer, "find_batch_size", None)
    features = vars(device) | {"peft": getattr(finetune, "peft", None), "batch_size": searched}
    for name, why in strategy_of(device.parallel).refused(features):
        received = None if isinstance(features[name], Node) else features[name]
        key = tuple(ELSEWHERE.get(name, f"device.{name}").split("."))
        report.add(key, why.what, received=received, fix=why.fix)


def static_graph(device: DeviceConfig, trainer: TrainerConfig, report: Report) -> None:
    """Refuse to add up gradients over batches in a static graph."""
    if device.ddp.static_graph and trainer.accumulate > 1:
        what = "PyTorch cannot add up gradients over batches in a static graph"
        report.add(("device", "ddp", "static_graph"), what, received=True, fix="trainer.accumulate=1")


def device_name(device: DeviceConfig, report: Report) -> None:
    """Refuse a device that cannot be."""
    if not _DEVICE.fullmatch(device.name):
        choices = ("auto", "cpu", "cuda", "cuda:0", "cuda:1", "mps")
        report.add(("device", "name"), "no such device", received=device.name, choices=choices, family="no-such-device")


def visible_gpus(device: DeviceConfig, report: Report) -> None:
    """Refuse a choice of GPUs that is none, and a device that is not among them."""
    gpus = device.gpus
    if gpus is None:
        return
    try:
        found = read_gpus(gpus)
    except ValueError as error:
        report.add(("device", "gpus"), str(error), expected=EXPECTED_GPUS, received=gpus, family="no-such-device")
        return
    count, name = found if isinstance(found, int) else len(found), device.name
    if name.startswith("cuda:") and name[5:].isdigit() and int(name[5:]) >= count:
        what = f"device.gpus={gpus} leaves {count} to see, counted from 0"
        fix = "the number among those, not that of nvidia-smi; device.name=cuda is the first"
        report.add(("device", "name"), what, received=name, fix=fix, family="no-such-device")


def timed_convolutions(device: DeviceConfig, report: Report) -> None:
    """Refuse to choose convolutions by timing them in a deterministic run."""
    if device.deterministic and device.cudnn_benchmark:
        what = "taking the fastest algorithm of the day is not deterministic"
        fix = "device.cudnn_benchmark=false or device.deterministic=false"
        report.add(("device", "cudnn_benchmark"), what, received=True, fix=fix)


def convolutions_without_cudnn(device: DeviceConfig, report: Report) -> None:
    """Refuse to let cuDNN try its algorithms where it is not used."""
    if not device.cudnn and device.cudnn_benchmark:
        what, fix = "cuDNN is not used (device.cudnn=false)", "device.cudnn_benchmark=false or device.cudnn=true"
        report.add(("device", "cudnn_benchmark"), what, received=True, fix=fix)


def output_of_threads(device: DeviceConfig, report: Report) -> None:
    """Refuse a device for joined outputs where none are joined."""
    if device.dp_output is not None and "dp_output" not in strategy_of(device.parallel).keys.values():
        what, fix = "only device.parallel=dp joins outputs", "device.parallel=dp or device.dp_output=null"
        report.add(("device", "dp_output"), what, received=device.dp_output, fix=fix)


def timed_kernels(device: DeviceConfig, report: Report) -> None:
    """Refuse to choose compiled kernels by timing them in a deterministic run."""
    if device.deterministic and device.compile == "max-autotune":
        what, fix = "the kernels are chosen by timing them, which is not deterministic", "device.compile=default"
        report.add(("device", "compile"), what, received="max-autotune", fix=fix)


def exact_products(device: DeviceConfig, report: Report) -> None:
    """Refuse exact matrix products where rounded ones are asked for."""
    if device.precision == "tf32" and device.matmul == "highest":
        what = "this is not what device.precision=tf32 asks for"
        report.add(("device", "matmul"), what, received="highest", fix="device.matmul=auto or device.precision=fp32")


def double_precision(device: DeviceConfig, report: Report) -> None:
    """Refuse double precision on Apple's GPU."""
    if device.precision == "fp64" and device.name == "mps":
        what, fix = "Apple's GPUs have no float64", "device=cpu or device.precision=fp32"
        report.add(("device", "precision"), what, received="fp64", fix=fix)


def step_of_optimizer(optim: OptimConfig, device: DeviceConfig, report: Report) -> None:
    """Refuse an implementation that is chosen in two places, or that the optimizer does not have."""
    wanted, target, key = device.optimizer, optim._target_, ("device", "optimizer")
    if wanted == "auto":
        return
    given = [name for name in ("fused", "foreach") if getattr(optim, name, None) is not None]
    if given:
        what = f"optim.{given[0]} chooses as well"
        report.add(key, what, received=wanted, fix="device.optimizer=auto")
    signature = read_known(target)
    names = None if signature is None or signature.open else signature.names()
    if names is not None and ("fused" if wanted == "fused" else "foreach") not in names:
        by_argument = {"foreach": ("foreach", "loop"), "fused": ("fused",)}
        choices = [choice for name, choices in by_argument.items() if name in names for choice in choices]
        report.add(key, f"{target} has none of these", received=wanted, choices=["auto", *choices])


def shards_of_state(optim: OptimConfig, device: DeviceConfig, report: Report) -> None:
    """Refuse optimizers whose state PyTorch cannot share out: tensors of 4 or 8 bits, of a class of their own."""
    if str(optim._target_).startswith("torchao.") and strategy_of(device.parallel).shards_parameters:
        what, fix = "its state cannot be gathered from processes that hold parts of it", "device.parallel=ddp"
        report.add(("optim", "_target_"), what, received=optim._target_, fix=f"{fix}, or optim=adamw")


def split_of_batches(device: DeviceConfig, trainer: TrainerConfig, report: Report) -> None:
    """Refuse to split batches in a static graph."""
    if trainer.find_batch_size == "auto" and device.ddp.static_graph:
        what = "the batch may be split, and PyTorch cannot add up gradients over batches in a static graph"
        report.add(("trainer", "find_batch_size"), what, received="auto", fix="device.ddp.static_graph=false")


DEVICE_RULES = rules_in(globals())
