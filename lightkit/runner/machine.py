"""The machine under a run: watched while it trains, and summed up afterwards."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from omegaconf import DictConfig

from lightkit.build import Components
from lightkit.data import Data
from lightkit.data.tensors import Taker
from lightkit.device import Engine
from lightkit.device.about import cuda_uuids
from lightkit.device.memory import Memory, memory_of
from lightkit.device.monitor import PREFIX, Monitor, NoMonitor, Watch
from lightkit.device.usage import Loading, summary
from lightkit.trainer.clock import Clock


class Machine:
    """Watches the machine while inside.

    Args:
        cfg: The configuration.
        folder: The run's folder.
        parts: The parts of the run.
    """

    def __init__(self, cfg: DictConfig, folder: Path, parts: Components) -> None:
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
        """What `result.json` says of the machine; empty where it was not watched."""
        if type(self._monitor) is NoMonitor:
            return {}
        trained, waited = self.clock.totals()
        totals = self._monitor.totals()
        return summary(totals, trained_seconds=trained, waited_seconds=waited, loading=self._loading)


def make_monitor(cfg: DictConfig, folder: Path, engine: Engine) -> NoMonitor:
    """What watches the machine under a run, where that is asked for.

    Args:
        cfg: The configuration.
        folder: The run's folder.
        engine: Its devices are watched, if they are GPUs.
    """
    options = cfg.logger.get("system")  # not in the file of a run that began before there was such a thing
    if options is None or not options.enabled or not engine.ranks.main:
        return NoMonitor()
    uuids = cuda_uuids(engine.parallel.devices)
    gpus = [device.index for device in engine.parallel.devices if device.type == "cuda"]
    return Monitor(Watch(folder, gpus, uuids), options.every_seconds)


def loading(data: Data) -> Loading:
    """How the training batches of these data reach the loop."""
    options = data.train.options
    workers = None if isinstance(data.train.source, Taker) else options.num_workers
    return Loading(options.batch_size, workers, options.pin_memory)
