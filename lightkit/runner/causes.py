"""Why two runs differ: in configuration, code, data, versions and machine, and where their curves part.

Also whether a run that was repeated came out the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from lightkit.assembly.run_rows import read_rows
from lightkit.common import run_files
from lightkit.common.ledger import MACHINE
from lightkit.common.text import counted
from lightkit.data.kept_rows import KeptRows
from lightkit.runner.comparison import PARTS, Comparison, compare_runs, flatten
from lightkit.runs.code import code_diff, earlier_code, kept_code
from lightkit.runs.folder import differences
from lightkit.runs.index import RunIndex
from lightkit.runs.reading import read_facts, read_metrics, read_result
from lightkit.runs.record import as_dict

_T = TypeVar("_T")
_SHOWN = 5
_MOST = 20
PLACES = ("name", "on_end", "resume.mode", "resume.file")
"""Keys that change nothing of what a run learns."""
_MISSING = "(none)"
_NAMED = {"variables": ("machine", "variable "), "named": ("code", "names "), "weights": ("weights", "")}
"""Facts of `environment.json` by name: the kind of cause that they are, and what stands before the name."""


@dataclass(frozen=True)
class Cause:
    """One thing in which two runs differ.

    Attributes:
        kind: `configuration`, `code`, `data`, `weights`, `versions` or `machine`.
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
    for key, both in _pairs(record.keys for record in RunIndex(root).records([one, other])):
        if key not in PLACES and not key.startswith("hydra."):
            yield Cause("configuration", f"{key}: {both}")


def _pairs(tables: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each name of two tables under which they have not the same, and what they have there."""
    first, second = tables
    for name in dict.fromkeys([*first, *second]):
        pair = [table.get(name, _MISSING) for table in (first, second)]
        if pair[0] != pair[1]:
            yield name, " and ".join(value if isinstance(value, str) else json.dumps(value) for value in pair)


def _of_code(one: Path, other: Path) -> Iterator[Cause]:
    for name, diff in code_diff(kept_code(one), kept_code(other)).items():
        yield Cause("code", name if "\n" in diff else f"{name}: {diff}", diff if "\n" in diff else "")
    for which, run in (("first", one), ("second", other)):
        for path in sorted({*earlier_code(run)} - {*earlier_code(other if run == one else one)}):
            yield Cause("code", f"an earlier part of the {which} run had another {Path(path).name} (code/{path})")
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
        same = "with another content" if first.names == second.names else "in another order"
        return f": {'; '.join(parts) or f'the same rows {same}'}"
    if first.marks is None or second.marks is None:
        return f": {len(first):,} and {len(second):,} rows"
    marks = [part.marks.tolist() for part in (first, second) if part.marks is not None]
    if sorted(marks[0]) == sorted(marks[1]):
        return ": the same rows in another order"
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
        kind = {"classes": "data", "device": "machine", "host": "machine"}.get(name, "versions")
        yield Cause(kind, f"{name}: {values.replace(' before, ', ' and ').removesuffix(' now')}" if values else line)
    for fact, (kind, label) in _NAMED.items():
        for name, values in islice(_pairs(as_dict(facts.get(fact)) for facts in (first, second)), _MOST):
            yield Cause(kind, f"{label}{name}: {values}")


def parting(one: Path, other: Path) -> tuple[int, str, Any, Any] | None:
    """Return step, name and both values of the first number that two runs have logged otherwise; None for none.

    Args:
        one: Folder of the first run.
        other: Folder of the second.
    """
    first, second = (
        {(row["step"], k): v for row in read_metrics(run) for k, v in flatten(row)} for run in (one, other)
    )
    parts = (place for place, value in first.items() if place in second and not _same(value, second[place]))
    found = min(parts, key=itemgetter(0), default=None)
    return found and (*found, first[found], second[found])


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
    if not all(any(folder.rglob(run_files.CHECKPOINT_PATTERN)) for folder in (one, other)):  # removed since
        compared = [part for part in compared if part.name.removeprefix(f"{run_files.MEMBERS}: ") not in PARTS]
        compared.append(Comparison(run_files.CHECKPOINTS, 0, None))
    largest = _largest(*(read_result(folder).get("metrics") or {} for folder in (one, other)))
    within = "values" if largest is not None and largest <= tolerance else "neither"
    return Verdict(within if any(part.different for part in compared) else "bits", compared, largest)


def _largest(first: Mapping[str, Any], second: Mapping[str, Any]) -> float | None:
    names = [name for name in first if not name.startswith(tuple(MACHINE))]
    pairs = [(first[name], second.get(name)) for name in names]
    if not pairs or any((a is None) != (b is None) for a, b in pairs):  # one is missing, or not finite
        return None
    found = [0.0 if _same(a, b) else abs(a - b) / max(1.0, abs(a)) for a, b in pairs]
    return None if any(math.isnan(value) for value in found) else max(found)


def smallest(items: Sequence[_T], is_enough: Callable[[Sequence[_T]], bool]) -> list[_T]:
    """Find items that are enough together, of which none can be left out, by halves (QuickXplain, Junker 2004).

    Args:
        items: All, n of them, which are enough.
        is_enough: Tells of some of them; it is asked 2 (n - 1) times at most, 2 log2(n) times where one counts.
    """

    def find(known: Sequence[_T], among: Sequence[_T], *, has_new: bool = True) -> list[_T]:
        if has_new and is_enough(known):
            return []
        if len(among) == 1:
            return [*among]
        half = len(among) // 2
        later = find([*known, *among[:half]], among[half:])
        return [*find([*known, *later], among[:half], has_new=bool(later)), *later]

    return find([], items, has_new=False)
