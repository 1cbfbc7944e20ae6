"""Any logger of Lightning's: Comet, Neptune, Aim, DVCLive, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.common.errors import UserError
from lightkit.common.ledger import FACTS
from lightkit.loggers.trackers.base import Medium, Row, Tracker

_STATUS = {"finished": "success", "failed": "failed", "paused": "interrupted", "interrupted": "interrupted"}


class LightningLogger(Tracker):
    """Hands a run to a logger of Lightning's, which is called as Lightning's `Trainer` calls it.

    Most of them begin an experiment each time they are made. So a run that goes on gives all of its rows to a new one.
    With `continues`, one that was given the id of an experiment gets only the rows that come after.

    Args:
        folder: The run's folder.
        monitor: Name of the value that decides what is best.
        mode: Whether `min` or `max` of it is better.
        logger: Makes the logger: a node with `_partial_: true`.
        continues: The logger goes on with the same experiment.
        kind: Names its files, where a run has several such loggers.
    """

    def __init__(
        self,
        folder: Path,
        monitor: str,
        mode: str,
        *,
        logger: Any,
        continues: bool = False,
        kind: str = "lightning",
    ) -> None:
        if not callable(logger):
            fix = "`_partial_: true` beside its `_target_`"
            raise UserError("is to be made when the run starts", argument="logger", received=type(logger), fix=fix)
        super().__init__(folder, monitor, mode, kind)
        self._make, self._continues = logger, continues
        self._made: Any = None

    def open(self) -> int | None:
        """Make the logger."""
        self._finalize("interrupted")
        self._made = self._make()
        return sum(1 for _ in self._lines(".jsonl")) if self._continues else None

    def write(self, row: Row, at: int) -> None:
        """Log one row."""
        values = {name: value for name, value in row.items() if name not in FACTS}
        self._made.log_metrics({**values, "epoch": row["epoch"]}, step=row["step"])

    def show(self, medium: Medium) -> None:
        """Show pictures and texts, where the logger has a method for them."""
        if medium.files and hasattr(self._made, "log_image"):
            self._made.log_image(medium.name, [str(self.home / name) for name in medium.files], step=medium.step)
        if medium.text and hasattr(self._made, "log_text"):
            self._made.log_text(medium.name, columns=["text"], data=[[medium.text]], step=medium.step)

    def hparams(self, params: Mapping[str, Any], overrides: Sequence[str] = ()) -> None:
        """Log the settings."""
        self._made.log_hyperparams(dict(params))

    def end(self, status: str) -> None:
        """Log how the run has ended."""
        self._finalize(_STATUS[status])

    def suspend(self, status: str) -> None:
        """Log that the run goes on later."""
        self._finalize(_STATUS[status])

    def flush(self) -> None:
        """Write what the logger holds back."""
        if self._made is not None:
            self._made.save()

    def close(self) -> None:
        """Write what is left."""
        self._finalize(_STATUS["interrupted"])

    def _finalize(self, status: str) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.save()
            made.finalize(status)
