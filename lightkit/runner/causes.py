"""Why two runs differ: in configuration, code, data, versions and machine, and where their curves part.

Also whether a run that was repeated came out the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkit.assembly.run_rows import read_rows
from lightkit.common.ledger import MACHINE
from lightkit.common.text import counted
from lightkit.data.kept_rows import KeptRows
from lightkit.runner.comparison import Comparison, compare_runs, flatten
from lightkit.runs.code import code_diff, kept_code
from lightkit.runs.folder import differences
from lightkit.runs.index import RunIndex
from lightkit.runs.reading import read_facts, read_metrics, read_result

_SHOWN = 5
_PLACES = ("name", "on_end", "resume.mode", "resume.file")
"""Keys that change nothing of what a run learns."""
_MISSING = "(none)"


@dataclass(frozen=True)
class Cause:
    """One thing in which two runs differ.

    Attributes:
        kind: `configuration`, `code`, `data`, `versions` or `machine`.
        what: What differs, in a line.
        detail: More to read, such as the diff of a file.
    """

    kind: str
    what: str
    detail: str = ""


def causes(one: Path, other: Path, root: Path) -> list[Cause]:
    """Return everything that is known to differ between what two runs were made of.

    Args:
        one: Folder of the first run.
        other: Folder of the second.
        root: The project.
    """
    return [*_of_configuration(one, other, root), *_of_code(one, other), *_of_data(one, other), *_of_rest(one, other)]


def _of_configuration(one: Path, other: Path, root: Path) -> Iterator[Cause]:
    first, second = (record.keys for record in RunIndex(root).records([one, other]))
    for key in dict.fromkeys([*first, *second]):
        before, now = first.get(key, _MISSING), second.get(key, _MISSING)
        if before != now and key not in _PLACES and not key.startswith("hydra."):
            yield Cause("configuration", f"{key}: {before} and {now}")


def _of_code(one: Path, other: Path) -> Iterator[Cause]:
    for name, diff in code_diff(kept_code(one), kept_code(other)).items():
        yield Cause("code", name if "\n" in diff else f"{name}: {diff}", diff if "\n" in diff else "")
    first, second = (read_facts(folder).get("git") or {} for folder in (one, other))
    if first.get("commit") != second.get("commit"):
        yield Cause("code", f"git commit: {first.get('commit') or _MISSING} and {second.get('commit') or _MISSING}")


def _of_data(one: Path, other: Path) -> Iterator[Cause]:
    first, second = (read_rows(folder) for folder in (one, other))
    facts = [read_facts(folder).get("data") for folder in (one, other)]
    if facts[0] != facts[1]:
        yield Cause("data", f"the content of the data set{_changed(first, second) if first and second else ''}")
    elif first and second and not first.split.equal(second.split):
        moved = int((first.split != second.split).sum())
        yield Cause("data", f"{counted(moved, 'row')} of {len(first)} in other splits")


def _changed(first: KeptRows, second: KeptRows) -> str:
    """Say how many rows were added, removed and changed, as far as what is kept of them tells."""
    if first.names is not None and second.names is not None:
        gone, new = sorted({*first.names} - {*second.names}), sorted({*second.names} - {*first.names})
        both = ((gone, "removed"), (new, "added"))
        parts = [f"{counted(len(found), 'row')} {what} ({', '.join(found[:3])})" for found, what in both if found]
        return f": {'; '.join(parts) or 'the same rows with another content'}"
    if first.marks is None or second.marks is None:
        return f": {len(first):,} and {len(second):,} rows"
    marks = [part.marks.tolist() for part in (first, second) if part.marks is not None]
    if len(marks[0]) == len(marks[1]):
        rows = [row for row, pair in enumerate(zip(*marks)) if pair[0] != pair[1]]
        etc = ", …" if len(rows) > _SHOWN else ""
        return f": {counted(len(rows), 'row')} changed ({', '.join(map(str, rows[:_SHOWN]))}{etc})"
    lost, more = (len({*a} - {*b}) for a, b in (marks, marks[::-1]))
    return f": {counted(lost, 'row')} removed, {counted(more, 'row')} added"


def _of_rest(one: Path, other: Path) -> Iterator[Cause]:
    first, second = ({**read_facts(folder), "data": None, "modules": {}} for folder in (one, other))
    for line in differences(first, second):
        name, _, values = line.partition(" differs: ")
        kind = "machine" if name in ("device", "host") else "versions"
        yield Cause(kind, f"{name}: {values.replace(' before, ', ' and ').removesuffix(' now')}" if values else line)
    variables = [facts.get("variables") or {} for facts in (first, second)]
    for name in sorted({*variables[0], *variables[1]}):
        before, now = (found.get(name, _MISSING) for found in variables)
        if before != now:
            yield Cause("machine", f"variable {name}: {before} and {now}")


def parting(one: Path, other: Path) -> tuple[int, str, Any, Any] | None:
    """Return step, name and both values of the first number that two runs have logged otherwise; None for none.

    Args:
        one: Folder of the first run.
        other: Folder of the second.
    """
    rows = [_logged(folder) for folder in (one, other)]
    for step in sorted({*rows[0]} & {*rows[1]}):
        both = [found[step] for found in rows]
        for name in both[0]:
            if name in both[1] and not _same(both[0][name], both[1][name]):
                return step, name, both[0][name], both[1][name]
    return None


def _logged(folder: Path) -> dict[int, dict[str, Any]]:
    """Return what a run has logged by step; several lines may be of one."""
    found = dict[int, dict[str, Any]]()
    for row in read_metrics(folder):
        found.setdefault(row["step"], {}).update(flatten(row))
    return found


def _same(one: Any, other: Any) -> bool:
    return one == other or (one != one and other != other)


@dataclass(frozen=True)
class Verdict:
    """Whether two runs came to the same.

    Attributes:
        outcome: `bits`, `values` (within the tolerance) or `neither`.
        compared: Everything that was compared.
        largest: The largest difference of a metric, relative to its size (at least 1); None where one is missing.
    """

    outcome: str
    compared: list[Comparison]
    largest: float | None


def judge(one: Path, other: Path, *, tolerance: float) -> Verdict:
    """Say whether two runs left the same bits behind, the same values to a tolerance, or neither.

    Args:
        one: Folder of the first run.
        other: Folder of the second.
        tolerance: Largest difference of a metric, relative to its size, that counts as the same.
    """
    compared = [part for part in compare_runs(one, other) if part.size or part.different]
    largest = _largest(*(read_result(folder).get("metrics") or {} for folder in (one, other)))
    within = "values" if largest is not None and largest <= tolerance else "neither"
    return Verdict(within if any(part.different for part in compared) else "bits", compared, largest)


def _largest(first: Mapping[str, Any], second: Mapping[str, Any]) -> float | None:
    names = [name for name in first if not name.startswith(tuple(MACHINE))]
    if any(name not in second for name in names) or not names:
        return None
    pairs = [(first[name], second[name]) for name in names]
    if any((a is None) != (b is None) for a, b in pairs):  # one is not finite
        return None
    found = [0.0 if _same(a, b) else abs(a - b) / max(1.0, abs(a)) for a, b in pairs]
    return None if any(math.isnan(value) for value in found) else max(found, default=0.0)
