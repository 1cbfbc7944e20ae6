"""Whether groups of rows that belong together (patients, users, films) are on one side of a split."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from torch import Tensor

from lightkit.doctor.data.neighbours import GROUPS, find_alike_neighbours
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding


def find_shared_groups(sample: DataSample) -> Iterator[Finding]:
    """Find groups (patients, users, films) that have rows in several splits."""
    found = _named_groups(sample)
    if found is None:
        yield from find_alike_neighbours(sample)
        return
    named, groups = found
    told_by = f"{named[0]} {named[1]!r}" if named[1] else named[0]
    parts = {name: {groups[row] for row in sample.data.rows[name].tolist()} for name in sample.splits}
    everywhere = len(set().union(*parts.values()))
    shared = {name: len(parts[name] & parts["train"]) for name in parts if name != "train"}
    numbers = {"by": told_by, "groups": everywhere, "shared": shared}
    if not any(shared.values()):
        yield Finding(GROUPS, "ok", f"none of {everywhere:,} groups by {told_by} is in two splits", numbers=numbers)
        return
    example = next(group for name in shared for group in sorted(parts[name] & parts["train"], key=str))
    example = int(example) if isinstance(example, float) else example
    told = ", ".join(f"{count:,} of {len(parts[name]):,} in {name}" for name, count in shared.items() if count)
    measured = f"groups by {told_by}, such as {example}, have rows in train too: {told}"
    why = "the network can know a group by heart, and new groups will not be known to it"
    fix = (
        f"data.split.groups={named[1]}, which keeps rows with the same value together"
        if named[0] == "column"
        else "an attribute `groups` of the data set that names the group of each row"
    )
    yield Finding(GROUPS, "warning", measured, why, "data.split.groups", fix, numbers | {"example": example})


def _named_groups(sample: DataSample) -> tuple[tuple[str, str], Sequence[object]] | None:
    """Return what names the groups of all rows, and the group of each row; None where nothing does."""
    if sample.data.groups is not None:
        return ("data.split.groups", ""), sample.data.groups.tolist()
    by_column = _group_column(sample)
    if by_column is not None:
        return by_column
    files = sample.files()
    if not files:
        return None
    names = [re.sub(r"[\W_]*(?:[a-zA-Z]{0,6}[\W_]?)?\d+[a-zA-Z]?$", "", file.stem) for file in files]
    with_number = [name if re.search(r"\d", name) else "" for name in names]
    counts = Counter(with_number)
    is_pattern = counts[""] == 0 and 2 * sample.data.info.num_classes < len(counts) <= len(files) / 2
    return (("file name", ""), with_number) if is_pattern else None


_GROUP_NAME = re.compile(
    r"(^|[_ .-])(patient|subject|person|user|customer|client|session|group|site|household|speaker|writer|video|scene|"
    r"family|device|sensor|batch|plate|store|author)([_ .-]?(id|no|nr|num|number|key|uuid))?$",
    re.IGNORECASE,
)


def _group_column(sample: DataSample) -> tuple[tuple[str, str], list[float]] | None:
    """Return a column that says by its name that it names groups, with few rows a value."""
    x = getattr(sample.data.source, "x", None)
    if not sample.is_table or not isinstance(x, Tensor):
        return None
    names = sample.columns()
    for number, name in enumerate(names):
        if "=" not in name and _GROUP_NAME.search(name):
            column = sample.unscaled(x[:, : len(names)])[:, number]
            if float((column - column.round()).abs().max()) > 0.01:
                continue
            values = column.round().tolist()
            if 10 <= len(set(values)) <= len(values) / 1.5:
                return ("column", name), values
    return None
