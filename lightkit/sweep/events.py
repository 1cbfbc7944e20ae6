"""The lines of a sweep's journal, each of which anybody may have written, or a crash have torn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.reading import UnreadableError, opened, parse_object
from lightkit.common.shapes import FLAG, JOB_STATUS, NAMED_TEXTS, NUMBER, OBJECT, TEXT, TEXTS, WHOLE, Shape, fitting

_LONGEST_LINE = 1 << 24
"""Bytes of a line; it holds a configuration at most."""
_EVENT: Shape = {
    "event": TEXT,
    "name": TEXT,
    "time": NUMBER,
    "format": WHOLE,
    "options": OBJECT,
    "complete": FLAG,
    "overrides": TEXTS,
    "config": TEXT,
    "environment": NAMED_TEXTS,
    "mark": OBJECT,
    "stop_at": TEXT,
    "status": JOB_STATUS,
    "values": {"*": NUMBER},
    "epoch": WHOLE,
    "step": WHOLE,
    "code": WHOLE,
    "reason": TEXT,
    "told": FLAG,
}
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "sweep": (),
    "planned": ("name", "overrides", "config"),
    "removed": ("name",),
    "given_up": ("name",),
    "started": ("name", "time"),
    "ended": ("name", "status", "values", "epoch", "step", "reason"),
}
"""What the lines of a kind do not go without."""


def read_events(folder: Path, damage: list[str], beginning: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield what the whole lines say; a last one that is torn is no damage.

    Args:
        folder: Folder of the sweep.
        damage: Gets what is wrong with each line that cannot be read.
        beginning: How the lines begin that are wanted.
    """
    try:
        with opened(folder / run_files.SWEEP_JOURNAL) as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
                if not line.strip() or not line.endswith(b"\n") or not line.startswith(beginning):
                    continue
                try:
                    yield read_event(line)
                except UnreadableError as error:
                    damage.append(f"{run_files.SWEEP_JOURNAL}: line {number}: {error}")
    except FileNotFoundError:
        pass
    except UnreadableError as error:
        damage.append(f"{run_files.SWEEP_JOURNAL}: {error}")


def read_event(line: bytes) -> dict[str, Any]:
    """Read a line of a journal.

    Args:
        line: The line.

    Raises:
        UnreadableError: It is no event; one of a newer version that is not known may hold anything.
    """
    found, wrong = parse_object(line), list[str]()
    kind = found.get("event")
    if not isinstance(kind, str):
        raise UnreadableError("`event` is missing" if kind is None else "`event` is not a text")
    if kind not in _NEEDED:
        return found
    event = fitting(found, _EVENT, wrong)
    needed = _NEEDED[kind] if kind != "sweep" else [name for name in _EVENT if name in found]  # these are never null
    wrong += [f"`{name}` is missing" for name in needed if found.get(name) is None]
    if wrong:
        raise UnreadableError(", ".join(wrong))
    return event
