"""The machine under a run: watched while it trains, and summed up afterwards."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from omegaconf import DictConfig

from lightkit.assembly import Learner, build_console
from lightkit.common import run_files
from lightkit.common.errors import keys_under
from lightkit.config import to_plain
from lightkit.data import Data
from lightkit.data.tensors import Taker
from lightkit.device import Engine
from lightkit.device.about import cuda_uuids
from lightkit.device.visible import waited_for
from lightkit.diagnostics.memory import Memory, memory_of
from lightkit.monitor.monitor import PREFIX, Monitor, NoMonitor, Watch
from lightkit.monitor.peaks import peak_tflops
from lightkit.monitor.usage import Loading, summary
from lightkit.trainer.report import Clock


class Machine:
    """Watches the machine while inside.

    Args:
        cfg: The configuration.
        folder: The run's folder.
        parts: The parts of the run.
        per_sample: See `Clock`.
    """

    def __init__(
        self, cfg: DictConfig, folder: Path, parts: Learner, per_sample: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        self._monitor, self._loading = make_monitor(cfg, folder, parts.engine), loading(parts.data)
        self.memory: Memory = memory_of(parts.engine.parallel.devices)
        """The book that PyTorch keeps of the memory of its devices."""
        self.clock = Clock(self._read, per_sample)
        """For the loop: measures its time, and hands it what was seen."""

    def __enter__(self) -> Machine:
        self._monitor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._monitor.stop()

    def _read(self) -> dict[str, float]:
        return {**self._monitor.read(), **{f"{PREFIX}{name}": value for name, value in self.memory.read().items()}}

    def summary(self) -> dict[str, Any]:
        """Sum up the machine for `result.json`; empty where it was not watched."""
        if type(self._monitor) is NoMonitor:
            return {}
        trained, waited = self.clock.totals()
        totals = self._monitor.totals()
        speed = self.clock.throughput()
        return summary(totals, trained_seconds=trained, waited_seconds=waited, loading=self._loading, speed=speed)


def make_monitor(cfg: DictConfig, folder: Path, engine: Engine) -> NoMonitor:
    """Make the monitor of the machine, where the configuration asks for one.

    Of several processes rank 0 watches, also the GPUs of the others on its machine; all have to call this.

    Args:
        cfg: The configuration.
        folder: The run's folder.
        engine: The GPUs that it and the other processes compute on are watched.
    """
    options = cfg.logger.get("system")  # not in the file of a run that began before there was such a thing
    if options is None or not options.enabled:
        return NoMonitor()
    gpus = local_gpus(engine)
    if not engine.ranks.main:
        return NoMonitor()
    uuids = {number: uuid for number, uuid in gpus.items() if uuid}
    return Monitor(Watch(folder, list(gpus), uuids), options.every_seconds)


def per_sample(cfg: DictConfig, parts: Learner) -> dict[str, float]:
    """Return what else a run tells of its speed, each as how much of it a sample is.

    `tokens_per_second` of language models, and `mfu` (model FLOPs utilisation; Chowdhery et al. 2022,
    https://arxiv.org/abs/2204.02311), the operations of a forward and backward pass as a share of what the devices can
    do at best, where that is known.

    Args:
        cfg: The configuration.
        parts: The parts of the run.
    """
    options, engine = cfg.logger.get("system"), parts.engine
    if options is None or not options.enabled or not engine.ranks.main:
        return {}
    length = parts.data.info.context_length
    found = {} if length is None else {"tokens_per_second": float(length)}
    if peak := options.get("peak_tflops") or known_peak(engine):
        from lightkit.assembly.inspection import training_flops  # PyTorch's counter imports a compiler

        if flops := training_flops(cfg, parts):
            devices = max(engine.ranks.size, len(engine.parallel.devices))
            found["mfu"] = flops / (peak * 1e12 * devices)
    return found


def known_peak(engine: Engine) -> float | None:
    """Return the peak of the device in TFLOP/s in the precision that matrix products are computed in, where known."""
    if engine.device.type != "cuda":
        return None
    kind = engine.precision.name
    if kind in ("fp32", "tf32"):
        level = engine.switches.matmul_level or engine.precision.matmul
        kind = {"highest": "fp32", "high": "tf32", "medium": "bf16"}[level]
    return peak_tflops(torch.cuda.get_device_name(engine.device), kind)


def local_gpus(engine: Engine) -> dict[int, str]:
    """Find the GPUs on the machine of rank 0 that the processes of a run compute on; only rank 0 learns them.

    Every process computes on the GPU that has its number on its machine, and tells once which one that is.

    Args:
        engine: Of this process.

    Returns:
        What CUDA says they are, by number; empty where it says nothing.
    """
    devices = [device for device in engine.parallel.devices if device.type == "cuda"]
    uuids = cuda_uuids(devices)
    own = [[device.index, uuids.get(device.index, "")] for device in devices]
    uuids_by_number: dict[int, str] = {}
    for (machine, gpus), _ in engine.ranks.gather([], (platform.node(), own)):
        for number, uuid in gpus if machine == platform.node() else ():
            uuids_by_number.setdefault(number, uuid)
    return uuids_by_number


def loading(data: Data) -> Loading:
    """Describe how the training batches of these data reach the loop."""
    options = data.train.options
    workers = None if isinstance(data.train.source, Taker) else options.num_workers
    return Loading(options.batch_size, workers, options.pin_memory)


def wait_for_gpus(cfg: DictConfig, folder: Path, stack: ExitStack) -> None:
    """Wait for free GPUs where `device.wait` asks for it, and keep them until the stack ends.

    Args:
        cfg: The configuration.
        folder: The run's folder; where it is there already, a file tells whoever looks that the run waits.
        stack: Gives them back.

    Raises:
        UserError: There are no such GPUs.
    """
    if not cfg.device.wait or cfg.device.name in ("cpu", "mps"):
        return
    console, mark = build_console(cfg), folder / run_files.WAITING

    def tell(line: str) -> None:
        console.message(line)
        with suppress(OSError):
            mark.touch()

    try:
        with keys_under("device"):
            stack.enter_context(waited_for(to_plain(cfg.device.gpus), tell=tell))
    finally:
        with suppress(OSError):
            mark.unlink(missing_ok=True)
