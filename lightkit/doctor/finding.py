"""What a check found, and how it is written for people: a line as it is made, what is wrong in full at the end."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from lightkit.common.text import counted

Status = Literal["ok", "note", "warning", "error", "skipped"]
STATUSES: tuple[Status, ...] = ("error", "warning", "note", "ok", "skipped")
"""How bad a finding is, the worst first. A `note` is worth knowing and asks for nothing."""
_MARK, _NAME = 8, 20
HEADINGS = {
    "machine": "the machine",
    "labels": "the data",
    "initial loss": "the model and its training",
    "baselines": "what is learnt",
}
"""What stands above the lines of some checks, by the first of them."""
WIDTH = 110
"""Characters in a line where the terminal does not say how many it has."""

T = TypeVar("T")


def able(**abilities: bool) -> Callable[[T], T]:
    """Give a check abilities, which are attributes of it: see `lightkit.doctor.checks.Check`."""

    def mark(check: T) -> T:
        vars(check).update(abilities)
        return check

    return mark


@dataclass(frozen=True)
class Finding:
    """What one check measured, and what follows from it; nothing does where all is well."""

    check: str
    """Name of the check, such as `initial loss`."""
    status: Status
    """How bad it is."""
    measured: str
    """What was measured, in a sentence with numbers: `the first loss is 6.91, and ln 10 is 2.30`."""
    why: str = ""
    """Why it matters, in a sentence; empty where nothing is wrong."""
    key: str = ""
    """The key of the configuration that mends it, such as `model.bias`; empty where none does."""
    fix: str = ""
    """What to do, as it would be typed where that is possible: `data.normalize=standard`."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """The measured numbers by name, for a program that reads them."""

    def __post_init__(self) -> None:
        for name in ("why", "key", "fix") if self.status == "ok" else ():
            object.__setattr__(self, name, "")

    @property
    def is_bad(self) -> bool:
        """Tell whether something should be done about it."""
        return self.status in ("error", "warning")

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def line(finding: Finding, width: int = WIDTH) -> str:
    """Write a finding in short: its mark, its check, what was measured.

    Args:
        finding: What was found.
        width: Characters in a line.
    """
    return wrapped(f"{_mark(finding):<{_MARK}}{finding.check:<{_NAME - 1}} ", finding.measured, width)


def _mark(finding: Finding) -> str:
    return "ERROR" if finding.status == "error" else finding.status


def closing(findings: Sequence[Finding], seconds: float, width: int = WIDTH) -> Iterator[str]:
    """Write what should be done, the worst first, then how much was looked at.

    Args:
        findings: All that was found.
        seconds: How long it took.
        width: Characters in a line.
    """
    for status in ("note", "warning", "error"):  # the worst last, where one looks
        for finding in findings:
            if finding.status == status and (finding.why or finding.fix):
                yield from _in_full(finding, width)
    skipped = dict.fromkeys(finding.check for finding in findings if finding.status == "skipped")
    if skipped:
        yield wrapped(f"{'skipped':<{_MARK}}", f"{', '.join(skipped)} (--json says why)", width)
    counts = Counter(finding.status for finding in findings)
    parts = [
        counted(counts[status], status) if status in STATUSES[:3] else f"{counts[status]} {status}"
        for status in STATUSES
        if counts[status]
    ]
    yield f"{', '.join(parts) or 'nothing was looked at'} in {seconds:.0f} s"


def _in_full(finding: Finding, width: int) -> Iterator[str]:
    yield f"{_mark(finding)}: {finding.check}"
    named = f"{finding.key}=" in finding.fix or ("." in finding.key and finding.key in finding.fix)
    for label in ("measured", "why", "key", "fix"):
        text = getattr(finding, label)
        if text and not (label == "key" and named):
            yield wrapped(f"    {label + ':':<10}", text, width)
    yield ""


def wrapped(head: str, text: str, width: int) -> str:
    """Write a text behind a head, broken between words, with further lines below its first letter.

    Args:
        head: What stands in front of it.
        text: The text.
        width: Characters in a line.
    """
    room = max(20, width - len(head))
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join([head + lines[0], *(" " * len(head) + each for each in lines[1:])])


def sized(count: int, noun: str) -> str:
    """Write a number with its noun: `1 row`, `1,200 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(share: float) -> str:
    """Write a share: `0.42 %`, `4.2 %`, `150 %`."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def named(names: Sequence[object], most: int = 3) -> str:
    """Write the first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
