"""Comparing runs: what they left behind, the traces of what they did, and state that changes without being saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.ledger import MACHINE
from lightkit.loggers.events import read_scalars, repeated
from lightkit.loggers.files import read_jsonl, read_objects
from lightkit.runner.proving.live_state import LiveValue
from lightkit.runs.reading import read_result

PARTS = ("model", "optimizer", "scheduler", "precision", "ema", "callbacks", "metrics", "state")
_CLOCK = ("time", "seconds", "system")
"""Keys of what no two runs have in common, besides the names that begin as `MACHINE` says."""
_FIXES = {
    "trainer.callbacks": "return it from the callback's state_dict() and take it back in load_state_dict()",
    "model": "make it a buffer (register_buffer), or return it from the module's get_extra_state()",
    "metrics": "register it with the metric's add_state()",
    "scheduler": "return it from the schedule's state_dict() and take it back in load_state_dict()",
    "optim": "keep it in the optimizer's `state`, or return it from its state_dict()",
    "loss": "nothing of a loss is saved: keep it in a buffer of the model, or in a callback's state_dict()",
    "trainer.task": "nothing of a task is saved: keep it in a buffer of the model, or in a callback's state_dict()",
    "data": "nothing of data is saved: make it a function of the row, and draw from the global generators",
}
"""What to do about a value that is not saved, by the beginning of its path."""


class Comparison(NamedTuple):
    """One thing that was looked at in both runs."""

    name: str
    """What it is."""
    size: int
    """How many tensors, values, rows or points of it."""
    different: str | None
    """The first of them that differs; None when all are the same."""


def compare_runs(one: Path, other: Path) -> list[Comparison]:
    """Compare everything two runs left behind, but for what comes from the clock.

    Args:
        one: Folder of the first run.
        other: Folder of the second.
    """
    if (one / run_files.MEMBERS).is_dir():
        return _compare_ensembles(one, other)
    first, second = _content(one), _content(other)
    return [
        *(_compare(p, dict(flatten(first.get(p), p)), dict(flatten(second.get(p), p))) for p in PARTS),
        _compare(run_files.METRICS, _rows(one), _rows(other)),
        _compare("TensorBoard", _points(one), _points(other)),
        _compare(run_files.RESULT, _result(one), _result(other)),
    ]


def _compare_ensembles(one: Path, other: Path) -> list[Comparison]:
    """Compare all members of two ensembles, and what is theirs together."""
    names = sorted({path.name for run in (one, other) for path in (run / run_files.MEMBERS).iterdir()})
    pairs = [(name, one / run_files.MEMBERS / name, other / run_files.MEMBERS / name) for name in names]
    found: dict[str, list[Comparison]] = {}
    for name, first, second in pairs:
        kept = _compare(run_files.PREDICTIONS_HELD_OUT, _kept(first), _kept(second))
        for item in (*compare_runs(first, second), kept):
            told = item.different and f"{name}: {item.different}"
            found.setdefault(item.name, []).append(item._replace(different=told))
    members = []
    for kind, items in found.items():
        different = next((item.different for item in items if item.different), None)
        members.append(Comparison(f"members: {kind}", sum(item.size for item in items), different))
    stored = (_kept(run, run_files.ENSEMBLE_WEIGHTS) for run in (one, other))
    return [
        *members,
        _compare(run_files.PREDICTIONS_HELD_OUT, _kept(one), _kept(other)),
        _compare(run_files.ENSEMBLE_WEIGHTS, *stored),
        _compare(run_files.METRICS, _rows(one), _rows(other)),
        _compare(run_files.RESULT, _result(one), _result(other)),
    ]


def _compare(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """Compare values by name; the first that differs is told."""
    for key in dict.fromkeys([*first, *second]):
        if key not in second:
            return Comparison(name, len(first), f"{key} is missing")
        if key not in first:
            return Comparison(name, len(first), f"{key} is there besides")
        if not same_bits(first[key], second[key]):
            without, with_kill = _in_words(first[key]), _in_words(second[key])
            return Comparison(name, len(first), f"{key}: {without} without the kill, {with_kill} with")
    return Comparison(name, len(first), None)


def same_bits(one: Any, other: Any) -> bool:
    """Tell whether two tensors or plain values have the same type and bits; NaN is the same as NaN."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return one.reshape(-1).view(torch.uint8).equal(other.reshape(-1).view(torch.uint8))
    if isinstance(one, float) and isinstance(other, float):
        return one.hex() == other.hex()
    return type(one) is type(other) and bool(one == other)


def _in_words(value: Any) -> str:
    """Write a value for a message: numbers as they are, tensors by their first elements."""
    if isinstance(value, torch.Tensor):
        some = ", ".join(f"{item:.9g}" for item in value.reshape(-1)[:3].tolist())
        return f"[{some}{', …' if value.numel() > 3 else ''}]"
    return repr(value)


def flatten(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield nested dicts and lists as pairs of a dotted key and a value, without values that come from the clock."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not str(name).startswith(MACHINE) and name not in _CLOCK:
                yield from flatten(item, f"{key}.{name}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from flatten(item, f"{key}[{index}]")
    else:
        yield key, value


def _content(folder: Path) -> dict[str, Any]:
    found = CheckpointStore(folder / run_files.CHECKPOINTS).load_newest()
    return found[1] if found else {}


def _kept(folder: Path, name: str = run_files.PREDICTIONS_HELD_OUT) -> dict[str, Any]:
    """Return tensors and facts of a file of an ensemble; nothing where there is none."""
    from safetensors import safe_open

    if not (folder / name).is_file():
        return {}
    with safe_open(folder / name, framework="pt") as file:
        return {**{key: file.get_tensor(key) for key in file.keys()}, **(file.metadata() or {})}  # noqa: SIM118


def _rows(folder: Path) -> dict[str, Any]:
    rows = read_jsonl(folder / run_files.METRICS)
    return {
        key: value
        for number, row in enumerate(rows)
        for key, value in flatten(row, f"row {number + 1} (step {row['step']})")
    }


def _points(folder: Path) -> dict[str, Any]:
    """Return every point of every curve, of speeds only that they are there; and what files hold more than once."""
    found: dict[str, Any] = {f"records of {name} at step {step}": n for (name, step), n in repeated(folder).items()}
    for name, points in read_scalars(folder).items():
        if name.startswith("vitals/system/"):  # samples come with the clock, not with the steps
            continue
        for number, (step, value) in enumerate(points):
            found[f"{name}, point {number + 1}"] = step if "speed/" in name else (step, float(value).hex())
    return found


def _result(folder: Path) -> dict[str, Any]:
    return dict(flatten(read_result(folder), "result"))


class Mismatch(NamedTuple):
    """Where two traces part."""

    row: dict[str, Any]
    """The line of the second trace."""
    fact: str
    """What differs in it, such as `batch`; `moment` where the first trace has no such line."""

    def __str__(self) -> str:
        return f"{_WHAT[self.fact]} {_WHERE[self.row['phase']].format(self.row['step'])}"


_WHAT = {
    "batch": "the batch",
    "loss": "the loss",
    "weights": "the weights",
    "optimizer": "the optimizer's state",
    "rates": "the learning rates",
    "moment": "what is done",
}
_FACTS = ("batch", "rates", "weights", "optimizer", "loss")
_WHERE = {
    "start": "right after loading, at step {},",
    "micro": "of step {}",
    "step": "after step {}",
    "validation": "in the validation after step {}",
    "test": "in the test after step {}",
    "save": "in the save of step {}",
}


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a trace; one torn by a crash is left out."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in read_objects(path):
        found[_key(row)] = found.get(_key(row), {}) | row
    return list(found.values())


def first_mismatch(reference: Sequence[dict[str, Any]], trace: Sequence[dict[str, Any]]) -> Mismatch | None:
    """Find the first line of a trace that is not as in the reference.

    Saves are left out: which files are deleted differs after a kill. A run that went on starts at a later step; there
    its state is that after the step in the reference.
    """
    known = {_key(row): row for row in reference}
    for row in trace:
        if row["phase"] in ("save", "end", "live", "epoch"):
            continue
        went_on = row["phase"] == "start" and row["step"] > 0
        expected = known.get(("step", row["step"], 0, row.get("member", "")) if went_on else _key(row))
        if expected is None:
            return Mismatch(row, "moment")
        for fact in ("batch", "weights", "optimizer", "loss") if went_on else _FACTS:
            if fact in row and fact in expected and row[fact] != expected[fact]:
                return Mismatch(row, fact)
    return None


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["phase"], row["step"], row["number"], row.get("member", "")


@dataclass(frozen=True)
class UnsavedValue:
    """A value that a resumed run has otherwise than one that was never stopped."""

    path: str
    """Where it is."""
    text: str
    """Both values in words."""

    @property
    def fix(self) -> str:
        """Say what to do to have it saved."""
        return next(text for start, text in _FIXES.items() if self.path.startswith(f"{start}."))

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class Snapshots:
    """The state of a run's objects that is not saved, by the moments of its trace.

    Args:
        trace: The trace.
    """

    def __init__(self, trace: Sequence[Mapping[str, Any]]) -> None:
        self.start, self.end, self.first_step = dict[str, LiveValue](), dict[str, LiveValue](), 0
        self.saves: dict[int, dict[str, LiveValue]] = {}
        for row in trace:
            found = {path: LiveValue(*value) for path, value in row.get("live", {}).items()}
            if row["phase"] == "start":
                self.start, self.first_step = found, row["step"]
            elif row["phase"] == "live":
                self.saves[row["step"]] = found
            elif row["phase"] == "end":
                self.end = found

    def changed(self) -> set[str]:
        """Return the paths of what did not stay the same from the start to the end."""
        moments = [self.start, *self.saves.values(), self.end]
        return {path for a, b in pairwise(moments) for path in a.keys() & b.keys() if a[path].digest != b[path].digest}


def lost_paths(reference: Snapshots, resumed: Snapshots) -> list[str]:
    """Return the paths of what a resumed run begins with otherwise than the uninterrupted run had it at that step."""
    before, changed = reference.saves.get(resumed.first_step, {}), reference.changed()
    return [path for path, value in before.items() if path in changed and _differ(value, resumed.start.get(path))]


def find_unsaved(reference: Snapshots, repeated: Snapshots, resumed: Snapshots) -> list[UnsavedValue]:
    """Find what changes while training, is not saved, and is another after a resume.

    Left out is what two runs without interruption do not have in common, such as times, and a cache that is filled
    anew: one that is empty after the resume and at the end as it would have been.

    Args:
        reference: A run without interruption.
        repeated: The same once more, as far as it came.
        resumed: The run that went on.
    """
    both = [(reference.saves[step], repeated.saves[step]) for step in reference.saves.keys() & repeated.saves.keys()]
    own = {path for a, b in both for path, value in a.items() if _differ(value, b.get(path))}
    at = reference.saves.get(resumed.first_step, {})
    found, changed = [], reference.changed() - own
    for path in dict.fromkeys([*reference.end, *at]):
        if path not in changed:
            continue
        if _differ(reference.end.get(path), resumed.end.get(path)):
            text = _difference(reference.end[path], "after training", resumed.end[path], "after the resume")
        elif _differ(at.get(path), resumed.start.get(path)) and not resumed.start[path].refills:
            when = f"at step {resumed.first_step}"
            text = _difference(at[path], when, resumed.start[path], "right after the resume there")
        else:
            continue
        found.append(UnsavedValue(path, text))
    return found


def _differ(one: LiveValue | None, other: LiveValue | None) -> bool:
    """Tell whether a value that is there in both differs; what is made later in one of them will be compared later."""
    return one is not None and other is not None and one.digest != other.digest


def _difference(one: LiveValue, when: str, other: LiveValue, then: str) -> str:
    """Say what a value was and what it is instead."""
    same = " with other content" if one.text == other.text else ""
    return f"{one.text} {when}, {other.text}{same} {then}"
