"""Rules between the keys of `device`: what does not go together, before PyTorch is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lightkit.common.gpu_choice import EXPECTED, read_gpus
from lightkit.config.signatures import TargetError, read

if TYPE_CHECKING:
    from lightkit.config.check import Report

_NAME = re.compile(r"auto|cpu|mps|cuda(:\d+)?")
_IMPLEMENTATIONS = ("fused", "foreach")


def devices(tree: Mapping[str, Any], report: Report) -> None:
    """Report a device that cannot be, and switches that exclude each other.

    What a device cannot make use of is no mistake: it is told when the run begins, so that `device=cpu` works
    everywhere.
    """
    device = tree.get("device")
    if not isinstance(device, dict):
        return
    _name(device.get("name"), report)
    _gpus(device, report)
    _exactness(device, report)
    _compiled(device, report)
    _optimizer(device, tree.get("optim"), report)
    _batches(device, report)


def _name(name: Any, report: Report) -> None:
    if isinstance(name, str) and not _NAME.fullmatch(name):
        choices = ("auto", "cpu", "cuda", "cuda:0", "cuda:1", "mps")
        report.add(("device", "name"), "no such device", received=name, choices=choices)


def _gpus(device: Mapping[str, Any], report: Report) -> None:
    wanted, name = device.get("gpus"), device.get("name")
    if not isinstance(wanted, (str, list)):
        return
    try:
        found = read_gpus(wanted)
    except ValueError as error:
        report.add(("device", "gpus"), str(error), expected=EXPECTED, received=wanted)
        return
    count = found if isinstance(found, int) else len(found)
    if isinstance(name, str) and name.startswith("cuda:") and int(name[5:]) >= count:
        what = f"device.gpus={wanted} leaves {count} to see, counted from 0"
        fix = "the number among those, not that of nvidia-smi; device.name=cuda is the first"
        report.add(("device", "name"), what, received=name, fix=fix)


def _exactness(device: Mapping[str, Any], report: Report) -> None:
    exact, precision = device.get("deterministic") is True, device.get("precision")
    if exact and device.get("cudnn_benchmark") is True:
        what = "taking the fastest algorithm of the day is not deterministic"
        fix = "device.cudnn_benchmark=false or device.deterministic=false"
        report.add(("device", "cudnn_benchmark"), what, received=True, fix=fix)
    if exact and device.get("compile") == "max-autotune":
        what, fix = "the kernels are chosen by timing them, which is not deterministic", "device.compile=default"
        report.add(("device", "compile"), what, received="max-autotune", fix=fix)
    if precision == "tf32" and device.get("matmul") == "highest":
        what = "this is not what device.precision=tf32 asks for"
        report.add(("device", "matmul"), what, received="highest", fix="device.matmul=auto or device.precision=fp32")
    if precision == "fp64" and device.get("name") == "mps":
        what = "Apple's GPUs have no float64"
        report.add(("device", "precision"), what, received=precision, fix="device=cpu or device.precision=fp32")


def _compiled(device: Mapping[str, Any], report: Report) -> None:
    if device.get("parallel") != "dp":
        return
    for key, off in (("compile", "none"), ("cuda_graphs", False)):
        value = device.get(key, off)
        if value != off:
            what = "this does not go with DataParallel, whose copies of the model run in threads"
            fix = f"device.{key}={str(off).lower()} or device.parallel=none"
            report.add(("device", key), what, received=value, fix=fix)


def _optimizer(device: Mapping[str, Any], optim: Any, report: Report) -> None:
    """An implementation that this optimizer does not have, or that is chosen in two places."""
    wanted = device.get("optimizer")
    target = optim.get("_target_") if isinstance(optim, dict) else None
    if wanted not in ("fused", "foreach", "loop") or not isinstance(target, str):
        return
    given = [name for name in _IMPLEMENTATIONS if optim.get(name) is not None]
    if given:
        what, fix = f"optim.{given[0]} chooses as well", "device.optimizer=auto"
        report.add(("device", "optimizer"), what, received=wanted, fix=fix)
    argument, known = "fused" if wanted == "fused" else "foreach", _arguments(target)
    if known is not None and argument not in known:
        choices = [
            "auto",
            *(("foreach", "loop") if "foreach" in known else ()),
            *(("fused",) if "fused" in known else ()),
        ]
        report.add(("device", "optimizer"), f"{target} has none of these", received=wanted, choices=choices)


def _arguments(target: str) -> Iterable[str] | None:
    """Arguments of a target; None where its source does not tell, or there is no such thing, which others report."""
    try:
        signature = read(target)
    except TargetError:
        return None
    return None if signature is None or signature.open else signature.names()


def _batches(device: Mapping[str, Any], report: Report) -> None:
    """A search for the largest batch that cannot be made, or whose outcome would not work."""
    asked, ddp = device.get("batch_size"), device.get("ddp")
    if asked not in ("auto", "max"):
        return
    key = ("device", "batch_size")
    if device.get("parallel") == "fsdp":
        what = "each process holds a part of the model, and cannot find out by itself what fits"
        report.add(key, what, received=asked, fix="device.batch_size=null or device.parallel=ddp")
    if asked == "auto" and isinstance(ddp, dict) and ddp.get("static_graph") is True:
        what = "the batch may be split, and PyTorch cannot add up gradients over batches in a static graph"
        report.add(key, what, received=asked, fix="device.ddp.static_graph=false")
