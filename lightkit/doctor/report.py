"""What was found, for people to read: a line for each check as it is made, and what is wrong in full at the end."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from lightkit.doctor.finding import STATUSES, Finding

_MARKS = {"error": "ERROR", "warning": "warning", "note": "note", "ok": "ok", "skipped": "skipped"}
_COUNTED = ("error", "warning", "note")
"""Marks that are nouns."""
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


def line(finding: Finding, width: int = WIDTH) -> str:
    """Write a finding in short: its mark, its check, what was measured.

    Args:
        finding: What was found.
        width: Characters in a line.
    """
    head = f"{_MARKS[finding.status]:<{_MARK}}{finding.check:<{_NAME - 1}} "  # of a long name the rest moves on
    return _wrapped(head, finding.measured, width)


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
    left = dict.fromkeys(finding.check for finding in findings if finding.status == "skipped")
    if left:
        yield _wrapped(f"{'skipped':<{_MARK}}", f"{', '.join(left)} (--json says why)", width)
    counts = Counter(finding.status for finding in findings)
    told = [
        f"{counts[status]} {status}{'s' if counts[status] > 1 and status in _COUNTED else ''}"
        for status in STATUSES
        if counts[status]
    ]
    yield f"{', '.join(told) or 'nothing was looked at'} in {seconds:.0f} s"


def _in_full(finding: Finding, width: int) -> Iterator[str]:
    yield f"{_MARKS[finding.status]}: {finding.check}"
    named = f"{finding.key}=" in finding.fix or ("." in finding.key and finding.key in finding.fix)
    rows = [("measured", finding.measured), ("why", finding.why), ("key", finding.key), ("fix", finding.fix)]
    for label, text in rows:
        if text and not (label == "key" and named):
            yield _wrapped(f"    {label + ':':<10}", text, width)
    yield ""


def _wrapped(head: str, text: str, width: int) -> str:
    room = max(20, width - len(head))
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join([head + lines[0], *(" " * len(head) + each for each in lines[1:])])
