"""Groups of runs in a table: metrics as mean and deviation over seeds, differences to a baseline, and tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.common.collecting import uncollected
from lightkit.common.errors import UserError
from lightkit.common.patterns import Pattern
from lightkit.common.ranking import is_noise, mean_and_sd
from lightkit.common.text import plain
from lightkit.compare.grouping import Group, columns, labels_of, once_a_seed, short_names
from lightkit.runs.catalog import is_fold
from lightkit.runs.filters import direction_of, ordered
from lightkit.runs.record import RunRecord

if TYPE_CHECKING:
    from lightkit.compare.seeds import RowTest, SeedTable, SeedTest


@dataclass(frozen=True)
class Cell:
    """A metric of a group.

    Attributes:
        mean: Over its runs; None where no run has a value.
        sd: Standard deviation (of a sample); None for fewer than two.
        n: Number of runs with a value.
        best: Whether no group has a better mean; says nothing of chance.
        delta: The mean less that of the baseline.
    """

    mean: float | None
    sd: float | None
    n: int
    best: bool = False
    delta: float | None = None


@dataclass(frozen=True)
class Row:
    """A group with its values."""

    label: str
    group: Group
    cells: dict[str, Cell]


@dataclass
class RunComparison:
    """Everything that a report shows.

    Attributes:
        keys: The keys that differ, as columns.
        metrics: Names of metrics, with `min` or `max` for which values are better; None where that is open.
        rows: The groups, in order.
        baseline: Label of the one that others are compared with; None where there is none.
        seed_tests: Tests over seeds.
        split: The split of the tests by row; empty where there are none.
        seed_tables: McNemar's tests, for each pair of runs.
        row_tests: Tests over rows.
        notes: What a reader has to know besides.
    """

    keys: list[str]
    metrics: dict[str, str | None]
    rows: list[Row]
    baseline: str | None = None
    seed_tests: list[SeedTest] = field(default_factory=list)
    split: str = ""
    seed_tables: list[SeedTable] = field(default_factory=list)
    row_tests: list[RowTest] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, label: str) -> Row:
        """Return the group with a label."""
        return next(row for row in self.rows if row.label == label)

    @property
    def names(self) -> dict[str, str]:
        """The short names of keys."""
        return short_names(self.keys)

    def plain(self) -> dict[str, Any]:
        """Return it as what JSON knows."""
        groups = [
            {
                "label": row.label,
                "values": plain(row.group.values),
                "metrics": {name: asdict(cell) for name, cell in row.cells.items()},
                "runs": [
                    {
                        "folder": str(run.folder),
                        "name": run.name,
                        "seed": run.seed,
                        "status": run.status,
                        "values": {name: run.values.get(name) for name in self.metrics},
                    }
                    for run in row.group.runs
                ],
            }
            for row in self.rows
        ]
        return {
            "keys": self.keys,
            "metrics": self.metrics,
            "groups": groups,
            "baseline": self.baseline,
            "seed_tests": [asdict(test) for test in self.seed_tests],
            "split": self.split or None,
            "mcnemar": [asdict(table) for table in self.seed_tables],
            "row_tests": [asdict(test) for test in self.row_tests],
            "notes": self.notes,
        }


@uncollected()
def build_comparison(
    records: Sequence[RunRecord],
    *,
    metrics: Sequence[str] = (),
    sort: str | None = None,
    baseline: str | None = None,
) -> RunComparison:
    """Put runs side by side.

    Args:
        records: The runs.
        metrics: Names or patterns of what to compare; empty for the monitored metric and the same of the test.
        sort: Metric (the best first) or key (the smallest first) to order by, with `-` the other way round; None goes
            by the first metric.
        baseline: Folder or name of a run, or label of a group; None takes of two groups that of the first run.

    Raises:
        UserError: There is no such metric, key or run.
    """
    distinct, differing, alike, notes = once_a_seed(records)
    keys = columns([one.runs[0] for one in alike], differing)
    groups = [Group({key: one.values[key] for key in keys if key in one.values}, one.runs) for one in alike]
    chosen = {name: direction_of(name, distinct) for name in _metrics(distinct, metrics)}
    labels = labels_of(groups, keys)
    base = _baseline(baseline, groups, labels, records[0])
    rows = list[Row]()
    for text, one in zip(labels, groups):
        found = {name: [run.values[name] for run in one.runs if name in run.values] for name in chosen}
        rows.append(Row(text, one, {name: Cell(*mean_and_sd(values), len(values)) for name, values in found.items()}))
    first = rows[base] if base is not None else None
    rows = _sorted(_marked(rows, first, chosen), sort, keys, chosen)
    made = RunComparison(keys, chosen, rows, None if base is None else labels[base])
    unfinished = Counter(record.status for record in distinct if record.status != "finished")
    if unfinished:
        told = ", ".join(f"{number} {status}" for status, number in unfinished.items())
        notes.append(f"of the runs {told}: their values are the best so far, and no test counts them")
    made.notes = [*notes, *nested(groups, chosen)]
    if first is not None:
        from lightkit.compare.seeds import compare_seeds  # imports NumPy

        others = {row.label: row.group for row in made.rows if row.label != made.baseline}
        made.seed_tests = compare_seeds(first.group, others, chosen)
    return made


def nested(groups: Sequence[Group], metrics: Mapping[str, str | None]) -> list[str]:
    """Say what a search within each outer fold comes to on the rows that took no part in it.

    In each fold the configuration with the best validation value is taken, and its test value counts (nested
    cross-validation; Varma & Simon 2006, https://doi.org/10.1186/1471-2105-7-91).

    Args:
        groups: Configurations, each with its folds.
        metrics: Names of metrics, with `min` or `max` for which values are better.

    Returns:
        Lines, none where the runs are no folds of one cross-validation with several configurations.
    """
    found = [{run.replicate: run for run in one.runs if is_fold(run.folder)} for one in groups]
    monitor = next((run.metric for own in found for run in own.values()), "")
    judged, mode = f"test/{monitor.rpartition('/')[2]}", metrics.get(monitor)
    outer, inner = list[float](), list[float]()
    for mark in found[0] if len(found) > 1 and mode else ():
        reached = [
            (run.best, run.values[judged])
            for run in (own[mark] for own in found if mark in own)
            if judged in run.values
        ]
        if len(reached) == len(groups):
            best = (max if mode == "max" else min)(reached, key=lambda pair: pair[0] or 0.0)
            inner.append(best[0] or 0.0)
            outer.append(best[1])
    (mean, sd), (searched, _) = mean_and_sd(outer), mean_and_sd(inner)
    if mean is None or sd is None or searched is None:
        return []
    better = (searched - mean) * (-1 if mode == "min" else 1)
    told = f"{better:.4f} too optimistic" if better > 0 else "not too optimistic"
    return [
        f"nested: with the best of {len(groups)} by {monitor} in each fold {judged} is {mean:.4f} ± {sd:.4f} over "
        f"{len(outer)} outer folds; the search itself, with {monitor} {searched:.4f}, was {told}"
    ]


def _baseline(text: str | None, groups: Sequence[Group], labels: Sequence[str], first: RunRecord) -> int | None:
    """Return the number of the group that others are compared with; None where there is none.

    Raises:
        UserError: None of the groups is meant.
    """
    if text is None:
        return int(first not in groups[0].runs) if len(groups) == 2 else None
    for number, (one, name) in enumerate(zip(groups, labels)):
        names = {each for run in one.runs for each in (str(run.folder), run.folder.name, run.name)}
        if text in {name, *names} or any(run.folder == Path(text).resolve() for run in one.runs):
            return number
    raise UserError("none of the runs that are compared", key="--baseline", received=text, choices=labels)


def _metrics(records: Sequence[RunRecord], texts: Sequence[str]) -> list[str]:
    """Return the names of the metrics to compare.

    Raises:
        UserError: No run has such a metric, or nothing was measured at all.
    """
    known = dict.fromkeys(chain.from_iterable(record.values for record in records))
    if not texts:
        monitored = [name for name, _ in Counter(filter(None, (record.metric for record in records))).most_common()]
        both = (both for name in monitored for both in (name, f"test/{name.rpartition('/')[2]}"))
        return [name for name in dict.fromkeys(both) if name in known or name in monitored]
    chosen = list[str]()
    for text in texts:
        pattern = Pattern(text, key="--metric")
        fitting = [text] if text in known else [name for name in known if pattern.fits(name)]
        if not fitting:
            raise UserError("no run has this metric", key="--metric", received=text, choices=known)
        chosen += fitting
    return list(dict.fromkeys(chosen))


def _marked(rows: Sequence[Row], first: Row | None, metrics: dict[str, str | None]) -> list[Row]:
    """Add to the groups where each is best, and how it differs from the baseline."""
    made = [Row(row.label, row.group, {}) for row in rows]
    for name, mode in metrics.items():
        means = [mean for mean in (row.cells[name].mean for row in rows) if mean is not None]
        top = (max if mode == "max" else min)(means) if mode and means and len(rows) > 1 else None
        for row, marked in zip(rows, made):
            cell = row.cells[name]
            base = None if first is None or first is row else first.cells[name].mean
            delta = None if base is None or cell.mean is None else cell.mean - base
            best = top is not None and cell.mean is not None and is_noise(cell.mean - top, [top])
            marked.cells[name] = Cell(cell.mean, cell.sd, cell.n, best=best, delta=delta)
    return made


def _sorted(rows: Sequence[Row], sort: str | None, keys: Sequence[str], metrics: dict[str, str | None]) -> list[Row]:
    """Order groups; those without a value come last.

    Raises:
        UserError: There is no such column.
    """
    if sort is None and not metrics:
        return list(rows)
    order = sort or next(iter(metrics))
    name = order.removeprefix("-")
    long = {short: key for key, short in short_names(keys).items()}
    key = long.get(name, name)
    if key not in (*keys, *metrics):
        raise UserError("no such column", key="--sort", received=name, choices=[*metrics, *keys])

    def value(row: Row) -> Any:
        return row.cells[key].mean if key in metrics else row.group.values.get(key)

    backwards = (metrics.get(key) == "max") != (order != name)
    return ordered(rows, value, backwards=backwards)
