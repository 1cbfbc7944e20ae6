"""Runs that repeat one configuration become a group; groups are told from each other by the keys that differ."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lightkit.common.argument_checks import REPEATED
from lightkit.common.ranking import mean_and_sd
from lightkit.common.text import counted
from lightkit.runs.reading import read_metrics
from lightkit.runs.record import RunRecord, Section

SEED = "seed"
_LEFT_OUT = ("name", "resume", "sweep", "trust", "on_end", "logger")
"""Keys and groups that no result depends on."""
_PAUSE = "trainer.stop_at"
"""Runs that paused at different places, or not at all, are beginnings of the same run."""
_TARGET = "_target_"
_MISSING = object()


@dataclass(frozen=True)
class Group:
    """Runs with the same configuration but for what repeats it: the seed, that of the split, and the fold.

    Attributes:
        values: What tells it from the others, by key; a key that it lacks is not there.
        runs: The runs, by seed.
    """

    values: Mapping[str, Any]
    runs: tuple[RunRecord, ...]


def differing_keys(records: Sequence[RunRecord]) -> list[str]:
    """Name the keys that not all runs have alike, apart from what repeats a run, and what follows the seed.

    Args:
        records: The runs.
    """
    shared = set(records[0].sections).intersection(*(record.sections for record in records))
    own = (section for section in _sections(records) if section not in shared)
    names = dict.fromkeys(key for section in own for key in section.keys if key not in (*REPEATED, _PAUSE))
    telling = [name for name in names if name.partition(".")[0] not in _LEFT_OUT]
    unlike, differing = dict(zip(_marks(records, telling), records)).values(), list[str]()
    for name in telling:
        values = [record.keys.get(name, _MISSING) for record in unlike]
        follows = all(one.seed is not None and one.keys.get(name, _MISSING) == one.seed for one in records)
        if not follows and (_MISSING in values or any(value != values[0] for value in values)):
            differing.append(name)
    return differing


def _marks(records: Sequence[RunRecord], keys: Sequence[str]) -> Iterator[tuple[Section, ...]]:
    """Yield of each run its sections with any of some keys: runs with the same ones have these keys alike."""
    has = {one for one in _sections(records) if not one.keys.keys().isdisjoint(keys)}.__contains__
    return (tuple(filter(has, record.sections)) for record in records)


def _sections(records: Iterable[RunRecord]) -> dict[Section, None]:
    return dict.fromkeys(chain.from_iterable(record.sections for record in records))


def columns(records: Sequence[RunRecord], differing: Sequence[str]) -> list[str]:
    """Choose the keys to show: arguments that go with the choice of a class, and are alike wherever it is, say no more.

    Args:
        records: The runs.
        differing: The keys that differ.
    """
    targets = {name.removesuffix(_TARGET) for name in differing if name.endswith(_TARGET)}
    return [name for name in differing if name.endswith(_TARGET) or not _follows(name, records, targets)]


def _follows(name: str, records: Sequence[RunRecord], targets: set[str]) -> bool:
    above = [target for target in targets if name.startswith(target)]
    if not above:
        return False
    target = max(above, key=len) + _TARGET
    seen = dict[str, str]()
    for record in records:
        value = json.dumps(record.keys.get(name, "(none)"))
        if seen.setdefault(str(record.keys.get(target)), value) != value:
            return False
    return True


def group(records: Sequence[RunRecord], keys: Sequence[str]) -> list[Group]:
    """Put runs that repeat one configuration together, in the order in which they come.

    Args:
        records: The runs.
        keys: The keys that differ.
    """
    by_values, known = defaultdict[str, list[RunRecord]](list), dict[tuple[Section, ...], str]()
    for mark, record in zip(_marks(records, keys), records):
        if mark not in known:
            known[mark] = json.dumps([record.keys.get(key, "(none)") for key in keys])
        by_values[known[mark]].append(record)
    groups = list[Group]()
    for runs in by_values.values():
        values = {key: runs[0].keys[key] for key in keys if key in runs[0].keys}
        if len({run.replicate for run in runs}) < len(runs):  # else nobody asks when they began
            runs.sort(key=lambda run: run.started)
        groups.append(Group(values, tuple(sorted(runs, key=lambda run: run.replicate or ()))))
    return groups


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Shorten keys to their last part, where that is of one key only; that of a class to its group.

    Args:
        keys: Dotted keys.
    """
    last = {key: key.removesuffix(f".{_TARGET}").rpartition(".")[2] for key in keys}
    count = Counter(last.values())
    return {key: last[key] if count[last[key]] == 1 else key.removesuffix(f".{_TARGET}") for key in keys}


def shown(key: str, value: Any) -> str:
    """Write the value of a key for a table; of a class its own name."""
    if key.endswith(_TARGET) and isinstance(value, str):
        return value.rpartition(".")[2]
    return value if isinstance(value, str) else json.dumps(value)


def label(one: Group, keys: Sequence[str]) -> str:
    """Say in short what a group is: `lr=0.1, hidden=[8]`; of one without such keys the name of its run."""
    names = short_names(keys)
    parts = [f"{names[key]}={shown(key, one.values[key])}" for key in keys if key in one.values]
    return ", ".join(parts) or one.runs[0].name


def once_a_seed(records: Sequence[RunRecord]) -> tuple[list[RunRecord], list[str], list[Group], list[str]]:
    """Leave out repeats with the same seed, which would count twice: what has finished counts, else the newest.

    Returns:
        The runs that count, the keys in which these differ, their groups, and a line about the others.
    """
    differing, repeats = differing_keys(records), defaultdict[tuple[int, object], list[RunRecord]](list)
    for number, one in enumerate(groups := group(records, differing)):
        for run in one.runs:
            repeats[number, run.replicate or run.folder].append(run)
    if len(repeats) == len(records):
        return list(records), differing, groups, []
    note = f"{counted(len(records) - len(repeats), 'run')} left out: the same configuration and seed as another"
    chosen = {
        max(reversed(runs), key=lambda run: (run.status == "finished", run.started)).folder for runs in repeats.values()
    }
    found = [run for run in records if run.folder in chosen]
    return found, (differing := differing_keys(found)), group(found, differing), [note]


def labels_of(groups: Sequence[Group], keys: Sequence[str]) -> list[str]:
    """Name the groups, each by another name."""
    count = Counter(texts := [label(one, keys) for one in groups])
    return [f"{text} ({i + 1})" if count[text] > 1 else text for i, text in enumerate(texts)]


_OF_MACHINE = ("speed/", "system/")
"""What is about the machine."""
_POINTS = 300
"""Points of a curve; of a longer one every so many-th."""


@dataclass(frozen=True)
class RunCurve:
    """A metric over the steps of a group.

    Attributes:
        steps: Optimizer steps, ascending.
        epochs: Epochs done at each.
        means: Over the seeds that have come so far.
        deviations: Standard deviations over them, 0 of one.
        seeds: How many these are.
    """

    steps: list[int]
    epochs: list[int]
    means: list[float]
    deviations: list[float]
    seeds: list[int]


def read_curves(group: Group, name: str = "", most: int = _POINTS) -> dict[str, RunCurve]:
    """Read the curves of a group, by the name of the metric; a metric with one point has none.

    Args:
        group: Its runs may be of different length, and may go on.
        name: Of the one metric that is wanted; other lines are not read.
        most: Points of a curve; of a longer one every so many-th, and the last.
    """
    points = defaultdict[str, defaultdict[int, list[float]]](lambda: defaultdict(list))
    epochs = dict[int, int]()
    for run in group.runs:
        for each, by_step in _values_of(read_metrics(run.folder, name), epochs).items():
            for step, value in by_step.items():
                points[each][step].append(value)
    curves = dict[str, RunCurve]()
    for name, values in points.items():
        if len(values) > 1:
            steps = thinned(sorted(values), most)
            spread = [mean_and_sd(values[step]) for step in steps]
            curves[name] = RunCurve(
                steps=steps,
                epochs=[epochs[step] for step in steps],
                means=[mean or 0.0 for mean, _ in spread],
                deviations=[sd or 0.0 for _, sd in spread],
                seeds=[len(values[step]) for step in steps],
            )
    return curves


def _values_of(rows: Iterable[dict[str, Any]], epochs: dict[int, int]) -> dict[str, dict[int, float]]:
    """Return the values of a run by metric and step; of a step that stands twice the last one."""
    values = defaultdict[str, dict[int, float]](dict)
    for row in rows:
        step, epoch = row["step"], row.get("epoch")
        epochs[step] = max(epoch if isinstance(epoch, int) else 0, epochs.get(step, 0))
        for name, value in row.items():
            if "/" in name and not name.startswith(_OF_MACHINE) and isinstance(value, int | float):
                values[name][step] = float(value)
    return values


def thinned(steps: Sequence[int], most: int = _POINTS) -> list[int]:
    """Leave out of many steps all but every so many-th, and keep the last one."""
    stride = -(-len(steps) // most)
    kept = list(steps[::stride]) if steps else []
    return kept if not steps or kept[-1] == steps[-1] else [*kept, steps[-1]]
