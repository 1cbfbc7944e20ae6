"""What two runs left behind and did, compared: which bits differ, where their traces part, and what is behind that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from lightkit.checkpoint.compare import leaves
from lightkit.checkpoint.formats import read_tensors
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.ledger import MACHINE
from lightkit.common.reading import UnreadableError, is_whole, parse_object
from lightkit.data.tensors import fingerprint
from lightkit.loggers.events import read_scalars, repeated
from lightkit.runs.reading import read_lines, read_metrics, read_result

PARTS = ("model", "optimizer", "scheduler", "precision", "ema", "callbacks", "metrics", "state")
_CLOCK = ("time", "seconds", "system")
"""Keys of what no two runs have in common, besides the names that begin as `MACHINE` says."""


flatten = partial(leaves, without=(*_CLOCK, *MACHINE))
"""Nested values as pairs of a key path and a value, without what comes from the clock."""


def digest(value: Any) -> str:
    """Hash nested tensors, arrays and plain values; the same types and bits give the same short text."""
    parts = (part for key, item in leaves(value) for part in (key, item))
    return fingerprint(part.to_dense() if isinstance(part, Tensor) else part for part in parts)


class Comparison(NamedTuple):
    """One thing that was looked at in both runs."""

    name: str
    """What it is."""
    size: int
    """How many tensors, values, rows or points of it."""
    different: str | None
    """The first of them that differs; None when all are the same."""


def compare_runs(one: Path, other: Path) -> list[Comparison]:
    """Compare everything two runs left behind, but for what comes from the clock; of ensembles all members, too.

    Args:
        one: Folder of the first run.
        other: Folder of the second.
    """
    first, second = _left_behind(one), _left_behind(other)
    return [Comparison(name, len(values), _difference(values, second.get(name, {}))) for name, values in first.items()]


def _left_behind(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the values in the files of a run, by what they are and by a key."""
    rows = enumerate(read_metrics(folder), 1)
    logged = dict(pair for number, row in rows for pair in flatten(row, f"row {number} (step {row['step']})"))
    result = {
        key: value for key, value in read_result(folder).items() if key != "name"
    }  # what it is called is no value
    ends = {run_files.METRICS: logged, run_files.RESULT: dict(flatten(result, "result"))}
    if not (folder / run_files.MEMBERS).is_dir():
        newest = CheckpointStore(folder / run_files.CHECKPOINTS).load_newest()
        saved = newest[1] if newest else {}
        parts = {name: dict(flatten(saved.get(name), name)) for name in PARTS}
        return {**parts, run_files.METRICS: logged, "TensorBoard": _points(folder), **ends}
    members: dict[str, dict[str, Any]] = {}
    for member in sorted((folder / run_files.MEMBERS).iterdir()):
        own = {**_left_behind(member), run_files.PREDICTIONS_HELD_OUT: _tensors(member, run_files.PREDICTIONS_HELD_OUT)}
        for kind, values in own.items():
            members.setdefault(f"members: {kind}", {}).update({f"{member.name}: {k}": v for k, v in values.items()})
    kept = {name: _tensors(folder, name) for name in (run_files.PREDICTIONS_HELD_OUT, run_files.ENSEMBLE_WEIGHTS)}
    return {**members, **kept, **ends}


def _points(folder: Path) -> dict[str, Any]:
    """Return every point of every curve, of speeds only that they are there; and what files hold more than once."""
    curves: dict[str, Any] = {f"records of {name} at step {step}": n for (name, step), n in repeated(folder).items()}
    for name, points in read_scalars(folder).items():
        if name.startswith("vitals/system/"):  # samples come with the clock, not with the steps
            continue
        for number, (step, value) in enumerate(points):
            curves[f"{name}, point {number + 1}"] = step if "speed/" in name else (step, float(value).hex())
    return curves


def _tensors(folder: Path, name: str) -> dict[str, Any]:
    """Return tensors and facts of a file of an ensemble; nothing where there is none."""
    tensors, facts = read_tensors(folder / name) if (folder / name).is_file() else ({}, {})
    return {**tensors, **facts}


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Say which of several values by key differs first, in its bits; None where none does."""
    for key in dict.fromkeys([*first, *second]):
        if key not in second:
            return f"{key} is missing"
        if key not in first:
            return f"{key} is there besides"
        if digest(first[key]) != digest(second[key]):
            return f"{key}: {_in_words(first[key])} without the kill, {_in_words(second[key])} with"
    return None


def _in_words(value: Any) -> str:
    """Write a value for a message: numbers as they are, tensors by their first elements."""
    if isinstance(value, Tensor):
        some = ", ".join(f"{item:.9g}" for item in value.reshape(-1)[:3].tolist())
        return f"[{some}{', …' if value.numel() > 3 else ''}]"
    return repr(value)


class Mismatch(NamedTuple):
    """Where two traces part."""

    row: dict[str, Any]
    """The line of the second trace."""
    fact: str
    """What differs in it, such as `batch`; `moment` where the first trace has no such line."""

    def __str__(self) -> str:
        return f"{_FACTS[self.fact]} {_WHERE[self.row['phase']].format(self.row['step'])}"


_FACTS = {
    "batch": "the batch",
    "rows": "the rows of the batches",
    "rates": "the learning rates",
    "loss": "the loss",
    "gradients": "the gradients",
    "weights": "the weights",
    "optimizer": "the optimizer's state",
    "value": "what is computed",
    "moment": "what is done",
}
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
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in read_lines(path, _trace_row):
        rows[line_key(row)] = rows.get(line_key(row), {}) | row
    return list(rows.values())


def _trace_row(line: bytes) -> dict[str, Any]:
    row = parse_object(line)
    texts, numbers = (
        [row.get("phase"), row.get("member", ""), row.get("module", "")],
        [row.get("step"), row.get("number")],
    )
    if not all(isinstance(text, str) for text in texts) or not all(map(is_whole, numbers)):
        raise UnreadableError("no line of a trace")
    return row


def first_mismatch(reference: Sequence[dict[str, Any]], trace: Sequence[dict[str, Any]]) -> Mismatch | None:
    """Find the first line of a trace that is not as in the reference.

    Saves are left out: which files are deleted differs after a kill. A run that went on starts at a later step; there
    its state is that after the step in the reference.
    """
    known = {line_key(row): row for row in reference}
    for row in trace:
        if row["phase"] in ("save", "end", "epoch"):
            continue
        went_on = row["phase"] == "start" and row["step"] > 0
        expected = known.get(("step", *line_key(row)[1:]) if went_on else (), known.get(line_key(row)))
        if expected is None:
            return Mismatch(row, "moment")
        for fact in _FACTS:
            is_compared = fact in row and fact in expected and not (went_on and fact == "rates")
            if is_compared and row[fact] != expected[fact]:
                return Mismatch(row, fact)
    return None


def line_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a line of a trace is known by: its moment, and the module that it is about."""
    return row["phase"], row["step"], row["number"], row.get("member", ""), row.get("module", "")


_GLOBAL = (
    "counts its calls, or keeps what it has drawn. lightkit seeds the global generators of python, numpy and torch for "
    "every sample: draw from them."
)
_CAUSES = {
    "batch": f"The data set or a transform draws from a generator of its own {{}}, {_GLOBAL}",
    "loss": "Batch and weights are the same: the model, the loss or the task draws from a generator that is not "
    "torch's global one, or keeps state that is no buffer (an attribute that is not in the state_dict).",
    "start": "The state_dict of the model or the optimizer does not hold all that it needs, or loading changes it.",
    "rates": "The scheduler or a callback keeps state outside of its state_dict.",
    "moment": "A callback decides by something that is not in its state_dict, such as the clock.",
    "weights": "Batches, losses and the weights before are the same: the optimizer or a callback keeps state outside "
    "of its state_dict, or the backward pass is not deterministic (device.deterministic=true).",
}
"""What can be behind a difference when everything before it was the same, by what differs."""


def explain(repeated: Mismatch | None, parted: Mismatch | None, different: Sequence[Comparison]) -> str:
    """Say what differs first, and where it comes from.

    Args:
        repeated: Where two runs part that nobody interrupted.
        parted: Where the resumed run parts.
        different: What differs in the end.
    """
    first = repeated or parted
    if first is None:
        names = ", ".join(item.name for item in different)
        head = f"all batches, losses and weights are the same, but not {names}: {different[0].different}"
        return f"{head}. A metric, a callback or the scheduler keeps state outside of its state_dict"
    kind = "start" if first.row["phase"] == "start" and first.fact not in ("batch", "loss") else first.fact
    own = "without a seed (such as `numpy.random.default_rng()`)" if repeated else "whose state is in no checkpoint"
    cause = _CAUSES.get(kind, _CAUSES["weights"]).format(own)
    if repeated is None:
        return f"{first} differs after the resume. {cause}"
    return f"{first} differs even between two runs that nobody interrupted: the run cannot be repeated at all. {cause}"
