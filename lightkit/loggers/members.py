"""What is seen of a run that trains several models: one table of all of them in place of a report of each."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkit.common.ranking import improves
from lightkit.common.text import counted
from lightkit.loggers.base import Logger, Progress
from lightkit.loggers.console import ConsoleLogger
from lightkit.loggers.files import ProgressFile
from lightkit.loggers.wording import duration, number, shortened

_MOST = 16
"""Rows of the table at most; of more members those that are training, and then the newest, are shown."""


@dataclass
class MemberStatus:
    """How far one member is."""

    name: str
    """Name of its folder."""
    status: str = "waiting"
    """`waiting`, `training` or `finished`."""
    epoch: int = 0
    """Epoch under way, or the last one."""
    epochs: int | None = None
    """Number of epochs; None when it is not known, or counted in steps."""
    share: float = 0.0
    """Share of its training that is done, 0 to 1."""
    best: float | None = None
    """Best monitored value so far."""
    eta_seconds: float | None = None
    """Seconds to its end; None when not known."""
    seconds: float | None = None
    """Seconds it took, once it has finished; None when not known."""
    earlier: bool = False
    """Whether an earlier part of the run has trained it."""


class MembersTable:
    """Shows how far the members of a run are: a table that is redrawn on a terminal, a line now and then elsewhere.

    Whoever trains members gives each the logger of `logger`, or calls `update`; both work for members one after the
    other, for many at once, and for those that another process trains.

    Args:
        console: Where it is shown.
        log: Takes the lines that stay, for `run.log`.
        monitor: Name of the value that decides what is best.
        mode: Whether `min` or `max` of it is better.
        file: Where it is written for other processes to show; None writes it nowhere.
    """

    def __init__(
        self, console: ConsoleLogger, log: Logger, *, monitor: str, mode: str, file: Path | None = None
    ) -> None:
        self.console, self.log, self.monitor, self.mode = console, log, monitor, mode
        self.members: dict[str, MemberStatus] = {}
        self.opening: list[str] = []
        """Lines to be shown before the first of a member."""
        self._began = time.monotonic()
        self._file = ProgressFile(file)

    def expect(self, names: Iterable[str]) -> None:
        """List members that will be trained."""
        for name in names:
            self.members.setdefault(name, MemberStatus(name))

    def logger(self, *names: str) -> Logger:
        """Return a logger that moves the rows of members: of one, or of several that take the same steps at once."""
        self.expect(names)
        return _Feed(self, names)

    def update(self, name: str, **facts: Any) -> None:
        """Change what is known of a member that is training.

        Args:
            name: Name of the member.
            **facts: Any of `MemberStatus`; a `value` of the monitored value becomes `best` where it is better.
        """
        self.expect([name])
        member, value = self.members[name], facts.pop("value", math.nan)
        for fact, found in {"status": "training", **facts}.items():
            setattr(member, fact, found)
        if improves(value, member.best, mode=self.mode):
            member.best = value
        self._show()

    def finish(self, name: str, result: Mapping[str, Any], *, earlier: bool = False) -> None:
        """Show that a member has finished.

        Args:
            name: Name of the member.
            result: The content of its `result.json`.
            earlier: Whether an earlier part of the run has trained it.
        """
        self.expect([name])
        member, began = self.members[name], self.members[name].status
        if began == "finished":
            return
        objective = result.get("objective") or {}
        member.status, member.earlier, member.share, member.eta_seconds = "finished", earlier, 1.0, None
        member.best = objective.get("value", member.best)
        member.epoch, member.seconds = result.get("epochs") or member.epoch, result.get("seconds")
        member.epochs = member.epochs or member.epoch
        line = f"{name}  finished {'before, ' if earlier else ''}after {member.epoch} epoch{'s' * (member.epoch != 1)}"
        best = f", best {self.monitor} {number(member.best)}" if member.best is not None else ""
        took = f", {duration(member.seconds)}" if member.seconds is not None and not earlier else ""
        self.message(line + best + took, always=self.console.style == "lines")
        self._show()

    def message(self, text: str, *, always: bool = True) -> None:
        """Show a line, and keep it in the log.

        Args:
            text: The line.
            always: Show it; else it is only kept, as the table says the same.
        """
        opening, self.opening = self.opening, []
        for line in opening:
            self.message(line)
        self.log.message(text)
        if always:
            self.console.message(text)

    def close(self) -> None:
        """Take the live table away; on a terminal it is left as it was last."""
        if self.console.style == "bar" and self.members:
            title, columns, rows = self.shown(_MOST)
            self.console.table(title, columns, rows)
        if self.members:
            self._file.close()
        self.members = {}
        self.console.close()

    def _show(self) -> None:
        self.console.live_table(self.shown)
        self._file.write(
            lambda: {
                "share": self._share(),
                "eta_seconds": self._left(list(self.members.values())),
                "table": self.shown(_MOST),
            }
        )

    def _share(self) -> float:
        return sum(member.share for member in self.members.values()) / len(self.members)

    def headline(self) -> str:
        """Sum all up: `2 of 5 members finished, 43 %, best val/accuracy 0.9722 (00), 0:12 left`."""
        members = list(self.members.values())
        finished = sum(member.status == "finished" for member in members)
        facts = [f"{finished} of {counted(len(members), 'member')} finished"]
        if finished < len(members):
            facts.append(f"{self._share():.0%}")
        known = [member for member in members if member.best is not None and math.isfinite(member.best)]
        if known:
            best = (min if self.mode == "min" else max)(known, key=lambda member: member.best or 0.0)
            facts.append(f"best {self.monitor} {number(best.best)} ({best.name})")
        left = self._left(members)
        return ", ".join([*facts, *([f"{duration(left)} left"] if left is not None else [])])

    def _left(self, members: Sequence[MemberStatus]) -> float | None:
        """Estimate the seconds to the end of all members by the share that this part of the run has done."""
        own = [member for member in members if not member.earlier]
        done = sum(member.share for member in own)
        if not done or done >= len(own):
            return None
        return (time.monotonic() - self._began) * (len(own) - done) / done

    def shown(self, most: int) -> tuple[str, list[str], list[list[str]]]:
        """Return headline, heads and rows of the table, with no more than so many rows."""
        members, most = list(self.members.values()), min(most, _MOST)
        order = {"training": 0, "finished": 1, "waiting": 2}
        # what is training first, then what has finished last, then what comes next
        ranks = [(order[each.status], -at if each.status == "finished" else at) for at, each in enumerate(members)]
        chosen = shortened(members, ranks, most)
        rows = [_row(member) for member in chosen]
        if rest := len(members) - len(chosen):
            rows.append([f"… {rest} more", "", "", "", ""])
        return self.headline(), ["member", "status", "epoch", self.monitor, "time"], rows


class _Feed(Logger):
    """Moves the rows of members by what their training logs."""

    def __init__(self, table: MembersTable, names: Sequence[str]) -> None:
        self._table, self._names = table, names

    def start(self, step: int, kept: Sequence[Mapping[str, Any]] = ()) -> None:
        """See `Logger.start`."""
        self._update()
        for row in kept:
            self._update(value=_finite(row.get(self._table.monitor)))

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """See `Logger.scalars`."""
        if self._table.monitor in values:
            self._update(value=_finite(values[self._table.monitor]), epoch=epoch)

    def progress(self, progress: Progress) -> None:
        """See `Logger.progress`."""
        share = min(1.0, progress.step / progress.total_steps) if progress.total_steps else 0.0
        facts = {"share": share, "epoch": progress.epoch, "epochs": progress.epochs}
        self._update(**facts, eta_seconds=progress.eta_seconds)

    def _update(self, **facts: Any) -> None:
        for name in self._names:
            self._table.update(name, **facts)


def _finite(value: Any) -> float:
    return math.nan if value is None else float(value)


def _row(member: MemberStatus) -> list[str]:
    """Return the cells of a member."""
    epoch = f"{member.epoch}/{member.epochs}" if member.epochs else str(member.epoch or "")
    seconds = member.eta_seconds if member.status == "training" else member.seconds
    spent = "" if seconds is None or member.earlier else duration(seconds)
    status = "finished before" if member.earlier else member.status
    left = f"{spent} left" if spent and member.status == "training" else spent
    return [member.name, status, epoch, "" if member.best is None else number(member.best), left]
