"""A run in several processes: rank 0 writes, the others follow it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from lightkit.assembly.parts import strategy_class
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config import to_plain, to_yaml
from lightkit.device.ranks import Ranks, joined
from lightkit.runs.folder import RunFolder


class FollowerFolder(RunFolder):
    """The folder of a run for a process that does not write."""

    @contextmanager
    def begun(self, *, fresh: bool = False) -> Iterator[None]:
        """Lock nothing: rank 0 has the lock."""
        self.is_begun = True
        yield

    @contextmanager
    def log(self) -> Iterator[None]:
        """Keep log records from everywhere, standard error too."""
        logger, silent = logging.getLogger("lightkit"), logging.NullHandler()
        logger.addHandler(silent)
        try:
            yield
        finally:
            logger.removeHandler(silent)

    def record(self, cfg: DictConfig, overrides: Sequence[str], **facts: Any) -> None:
        """Write nothing: rank 0 does."""
        self.is_recorded = True

    def keep(self, name: str, content: Callable[[], bytes]) -> None:
        """Write nothing: rank 0 does."""

    def write_result(self, result: dict[str, Any]) -> None:
        """Write nothing: rank 0 does."""


class Together(NamedTuple):
    """What the processes of a run have in common."""

    ranks: Ranks
    """The processes."""
    cfg: DictConfig
    """The configuration of rank 0: what is made up while composing, such as a name from the clock, may differ."""
    place: RunFolder
    """The folder of rank 0."""


@contextmanager
def process_group(cfg: DictConfig, folder: Path) -> Iterator[Together]:
    """Join the processes that the launcher started for the run while inside, if there are several.

    Raises:
        UserError: What was started does not go with the configuration.
    """
    device = cfg.device
    with joined(
        strategy_class(cfg)[0].strategy,
        device.name,
        batch_size=cfg.data.batch_size,
        nproc=device.nproc,
        timeout=device.ddp.timeout_seconds,
        gpus=to_plain(device.gpus),
    ) as ranks:
        if ranks.size == 1:
            yield Together(ranks, cfg, RunFolder(folder))
            return
        text, path = ranks.shared(lambda: (to_yaml(cfg), str(Path(folder).absolute())))
        shared: Any = cfg if ranks.main else OmegaConf.create(text)
        OmegaConf.set_readonly(shared, True)
        yield Together(ranks, shared, RunFolder(Path(path)) if ranks.main else FollowerFolder(Path(path)))


def newest(store: CheckpointStore | None, ranks: Ranks) -> dict[str, Any] | None:
    """Read the newest checkpoint that is whole, in every process: rank 0 finds out which it is.

    Raises:
        UserError: None can be read, or not by this process: its machine does not see the folder of the run.
    """
    if store is None:
        return None
    read: list[dict[str, Any]] = []

    def find() -> Path | None:
        saved = store.load_newest(recover=True)
        if saved is None:
            return None
        read.append(saved[1])
        return saved[0]

    path = ranks.shared(find)
    if path is not None and not read:
        if not path.is_file():
            fix = "a folder that all machines share (hydra.run.dir)"
            raise UserError(
                "this machine does not see the checkpoint", key=str(path), fix=fix, family="checkpoint-unreadable"
            )
        read.append(store.load(path))
    return read[0] if read else None
