"""The machine under a run: watched while it trains, and summed up afterwards."""

from __future__ import annotations

import platform
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

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
from lightkit.monitor.usage import Loading, summary
from lightkit.trainer.report import Clock


class Machine:
    """Watches the machine while inside.

    Args:
        cfg: The configuration.
        folder: The run's folder.
        parts: The parts of the run.
    """

    def __init__(self, cfg: DictConfig, folder: Path, parts: Learner) -> None:
        self._monitor, self._loading = make_monitor(cfg, folder, parts.engine), loading(parts.data)
        self.memory: Memory = memory_of(parts.engine.parallel.devices)
        """The book that PyTorch keeps of the memory of its devices."""
        self.clock = Clock(self._read)
        """For the loop: measures its time, and hands it what was seen."""

    def __enter__(self) -> Machine:
        self._monitor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._monitor.stop()

    def _read(self) -> dict[str, float]:
        return {**self._monitor.read(), **{f"{PREFIX}{name}": value for name, value in self.memory.read().items()}}

    def summary(self) -> dict[str, Any]:
        """Sum up the machine for `result.json`; empty where it was not watched."""
        if type(self._monitor) is NoMonitor:
            return {}
        trained, waited = self.clock.totals()
        totals = self._monitor.totals()
        return summary(totals, trained_seconds=trained, waited_seconds=waited, loading=self._loading)


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
