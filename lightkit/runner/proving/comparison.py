"""Comparing runs: what they left behind, and the traces of what they did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.ledger import MACHINE
from lightkit.loggers.events import read_scalars, repeated
from lightkit.loggers.files import read_jsonl, read_objects
from lightkit.runs.reading import read_result

PARTS = ("model", "optimizer", "scheduler", "precision", "ema", "callbacks", "metrics", "state")
_CLOCK = ("time", "seconds", "system")
"""Keys of what no two runs have in common, besides the names that begin as `MACHINE` says."""


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
        if row["phase"] in ("save", "end", "epoch"):
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
