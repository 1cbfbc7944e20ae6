"""`lightkit doctor RUN`: what the files of a run say about how it went, and what to do otherwise the next time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lightkit.common import run_files
from lightkit.common.reading import read_tail
from lightkit.common.text import three_digits
from lightkit.doctor.finding import Finding, Status
from lightkit.doctor.folders import damage_findings
from lightkit.runs.catalog import has_members
from lightkit.runs.index import read_record
from lightkit.runs.reading import read_metrics, read_result
from lightkit.runs.record import RunRecord

_SPIKE = 30.0
"""Times the usual norm of the gradients from which on it is a spike."""
_SKIPPED = 0.01
"""Share of steps that may be skipped without a word."""
_FELL, _GAP, _WORSE = 0.02, 0.1, 0.1
"""Share by which a loss has to fall; difference of two metrics, and share of a loss, that is worth a word."""
_FEW = 4
"""Validations below which nothing is said of their course."""
_SLOWER, _GROWN = 0.6, 1.5
_LOG_CHARACTERS = 20_000


def look_back(folder: Path) -> Iterator[Finding]:
    """Yield what there is to say about a run.

    Args:
        folder: The run's folder.
    """
    yield from damage_findings(folder)
    history = History.of(folder)
    yield ended(history)
    if has_members(folder):
        why = "each member is a run of its own"
        fix = f"lightkit doctor {folder / run_files.MEMBERS}/NAME"
        yield Finding("members", "note", f"it trains {history.record.members} models", why, fix=fix)
    if not history.rows:
        yield Finding("loss", "skipped", "nothing was logged")
        return
    yield loss(history)
    for look in (learnt, course, gap, gradients, skipped, pace, memory, machine, checkpoints):
        yield from look(history)


def ended(history: History) -> Finding:
    """Tell how the run ended, and what its last error means."""
    status, result = history.record.status, history.result
    steps, reason = result.get("steps"), str(result.get("reason") or "").splitlines()
    at = f" after {steps:,} steps" if isinstance(steps, int) else ""
    because = f": {reason[0]}" if reason else ""
    name, numbers = "ended", {"status": status, "steps": steps}
    if status in ("finished", "running", "paused"):
        return Finding(name, "ok", f"{status}{at}{because}", numbers=numbers)
    go_on = f"lightkit resume {history.folder}"
    if status == "interrupted":
        return Finding(name, "note", f"interrupted{at}{because}", "it is not finished", "", go_on, numbers)
    if status == "unfinished":
        last = next((line for line in reversed(history.log_tail().splitlines()) if line.strip()), "")
        measured = "killed: no process runs in the folder, and none has written a result"
        why = "a power cut, kill -9, or the system, which ran out of memory (dmesg says so)"
        last = f"; the last line of its log: {last[-120:]}" if last else ""
        return Finding(name, "error", measured + last, why, "", go_on, numbers)
    from lightkit.doctor.traceback import explain

    known = explain("\n".join([*reason, history.log_tail()])).known
    why = known[0].cause if known else "the reason stands in result.json and run.log"
    advice = [line.partition("fix:")[2].strip() for line in reason if line.lstrip().startswith("fix:")]
    fix = (known[0].key or known[0].fix) if known else advice[0] if advice else go_on
    return Finding(name, "error", f"{status}{at}{because}", why, "", fix, numbers)


def loss(history: History) -> Finding:
    """Tell whether the training loss fell."""
    name = "training loss"
    of_steps, of_epochs = history.curve("train/loss_step"), history.curve("train/loss")
    points = of_steps if len(of_steps) >= _FEW or not of_epochs else of_epochs
    broken = next((point for point in points if math.isnan(point.value)), None)
    if not points or all(math.isnan(point.value) for point in points):
        return Finding(name, "skipped", "none was logged")
    if broken is not None:
        why = "from there on every weight is NaN"
        fix = "trainer.clip_norm=1.0, a smaller optim.lr, a longer scheduler.warmup_epochs, device.precision=bf16"
        return Finding(name, "error", f"no number at step {broken.step}", why, "trainer.clip_norm", fix)
    first, last = ends(points)
    numbers = {"first": first, "last": last}
    measured = f"from {first:.4g} to {last:.4g} in {points[-1].step:,} steps"
    if len(points) < 2:
        return Finding(name, "skipped", f"{last:.4g}, logged once", numbers=numbers)
    if len(points) < _FEW and abs(last - first) < abs(first) and last > (1 - _FELL) * first:
        measured += f", logged {len(points)} times; so few say nothing"
        return Finding(name, "skipped", measured, numbers=numbers)
    if last > first + 1e-9 + _FELL * abs(first):
        why = "it grew: the steps are too large"
        return Finding(name, "error", measured, why, "optim.lr", "optim.lr smaller by ten; lightkit find lr", numbers)
    hardly = first - last < _FELL * abs(first)
    why = "it hardly fell: the rate is far off, or the network cannot learn this"
    fix = "lightkit doctor OVERRIDES; lightkit find lr"
    return Finding(name, "warning" if hardly else "ok", measured, why, "optim.lr", fix, numbers)


def learnt(history: History) -> Iterator[Finding]:
    """Tell of a validation loss that never became better than that of the first training steps."""
    losses = [point.value for point in history.known("val/loss")]
    train = history.curve("train/loss_step") or history.curve("train/loss")
    if len(losses) < _FEW or len(train) < _FEW or math.isnan(train[0].value):
        return
    first, best = train[0].value, min(losses)
    if best > first - _FELL * abs(first) and min(losses[1:]) > losses[0] - _FELL * abs(losses[0]):
        measured = f"val/loss is {best:.4g} at best, and the first training loss was {first:.4g}"
        why = "nothing was learnt that holds for validation: inputs may belong to other targets, or tell nothing"
        fix = "lightkit doctor OVERRIDES compares with baselines; lightkit show data; lightkit find lr"
        yield Finding("validation loss", "warning", measured, why, "data.dataset", fix, {"best": best, "first": first})


def course(history: History) -> Iterator[Finding]:
    """Tell where the monitored value was best, and whether training went on too long or not long enough."""
    metric = history.record.metric
    points, losses = history.known(metric), history.known("val/loss")
    if len(points) < _FEW:
        return
    sign = 1 if history.mode == "min" else -1
    best = min(reversed(points), key=lambda point: sign * point.value)  # of several the last: then nothing was lost
    last = points[-1]
    numbers = {"best": best.value, "best_step": best.step, "last": last.value, "steps": last.step}
    measured = f"{metric} was best ({best.value:.4g}) at step {best.step:,} of {last.step:,}, and is {last.value:.4g}"
    share, key = best.step / max(1, last.step), "trainer.early_stopping.patience"
    if _overfits(history, losses):
        lowest = min(losses, key=lambda point: point.value)
        rose = f"val/loss rose from {lowest.value:.4g} at step {lowest.step:,} to {losses[-1].value:.4g}"
        why = "what is learnt since holds for the training rows only, while the training loss goes on falling"
        fix = f"{key}=5, more data.augment, dropout or optim.weight_decay, a smaller model"
        yield Finding("overfitting", "warning", f"{rose}; {measured}", why, key, fix, numbers)
    elif share > 0.95 and _still_better(points, sign):
        why = "it was still getting better when the run ended"
        longer = history.record.keys.get("trainer.epochs")
        fix = f"trainer.epochs={2 * longer}" if isinstance(longer, int) else "a larger trainer.epochs"
        yield Finding("course", "note", measured, why, "trainer.epochs", fix, numbers)
    else:
        fell = share < 0.5 and sign * (last.value - best.value) > _FELL * abs(best.value)
        why = f"{100 * (1 - share):.0f} % of the steps came after the best one"
        fix = f"{key}=5, or fewer trainer.epochs, so that the rate falls in time"
        yield Finding("course", "note" if fell else "ok", measured, why, key, fix, numbers)


def _overfits(history: History, losses: list[Point]) -> bool:
    train = history.known("train/loss")
    if len(losses) < _FEW or len(train) < 2:
        return False
    lowest = min(losses, key=lambda point: point.value)
    later = [point for point in train if point.step >= lowest.step]
    rose = losses[-1].value > lowest.value + _WORSE * abs(lowest.value)
    return rose and lowest.step < 0.8 * losses[-1].step and later[-1].value < later[0].value


def _still_better(points: list[Point], sign: int) -> bool:
    before = min(sign * point.value for point in points[: -max(1, len(points) // 10)])
    now = min(sign * point.value for point in points)
    return before - now > _FELL * abs(points[0].value - points[-1].value)


def gap(history: History) -> Iterator[Finding]:
    """Compare the splits: what is far better in training is learnt by heart."""
    values = history.record.values
    for name, value in values.items():
        split, _, metric = name.partition("/")
        other = values.get(f"val/{metric}")
        if split != "train" or metric.startswith("loss") or other is None or not (0 <= value <= 1 and 0 <= other <= 1):
            continue
        numbers = {"train": value, "val": other}
        measured = f"{metric}: {value:.3g} in training, {other:.3g} in validation"
        better = value - other if history.mode == "max" else other - value
        why = "what was learnt does not hold for other rows"
        fix = "more data or data.augment, dropout, optim.weight_decay, a smaller model"
        yield Finding("gap", "note" if better > _GAP else "ok", measured, why, "data.augment", fix, numbers)
        return


def gradients(history: History) -> Iterator[Finding]:
    """Look at the norm of the gradients: spikes, and a limit that is always reached."""
    norms = [point for point in history.curve("grad/norm") if math.isfinite(point.value)]
    if len(norms) < _FEW:
        return
    usual, largest = median(point.value for point in norms), max(norms, key=lambda point: point.value)
    limit, key = history.record.keys.get("trainer.clip_norm"), "trainer.clip_norm"
    numbers = {"median": usual, "largest": largest.value, "step": largest.step}
    measured = f"norm {usual:.3g}, at most {largest.value:.3g} (step {largest.step:,})"
    status: Status = "warning" if limit is None and largest.value > _SPIKE * usual else "ok"
    why = "single steps this large undo what was learnt"
    if isinstance(limit, int | float) and usual > 3 * limit:
        status = "note"
        why = f"trainer.clip_norm={limit} cuts nearly every step, so its rate is not the one of optim.lr"
    yield Finding("gradients", status, measured, why, key, f"{key}={float(f'{2 * usual:.1g}'):g}", numbers)


_SKIPS = {
    "skipped_steps": (
        "steps with a loss that was no number were skipped",
        "trainer.nonfinite.action",
        "a smaller optim.lr",
    ),
    "scaler_skipped_steps": ("steps overflowed in fp16", "device.precision", "device.precision=bf16"),
    "rollbacks": ("times the run went back to an earlier state", "trainer.nonfinite.action", "a smaller optim.lr"),
}
"""What `result.json` counts of steps: what it means, the key, and the fix."""


def skipped(history: History) -> Iterator[Finding]:
    """Count steps that were not taken."""
    steps = max(1, int(history.result.get("steps") or 0))
    for name, (what, key, fix) in _SKIPS.items():
        count = int(history.result.get(name) or 0)
        if count > (0 if name == "rollbacks" else _SKIPPED * steps):
            yield Finding("skipped steps", "warning", f"{count:,} {what}", "they taught nothing", key, fix)


def pace(history: History) -> Iterator[Finding]:
    """Tell whether the run became slower."""
    points = [point for point in history.curve("speed/samples_per_second") if point.value > 0][1:]
    if len(points) < 2 * _FEW:
        return
    first, last = ends(points, 0.25)
    if last < _SLOWER * first:
        measured = f"from {three_digits(first)} to {three_digits(last)} samples a second"
        why = "the run became slower: heat, other work on the machine, or something that grows from step to step"
        fix = "lightkit gpus --watch; keep no tensors with their graphs between steps"
        yield Finding("pace", "warning", measured, why, fix=fix, numbers={"first": first, "last": last})


def memory(history: History) -> Iterator[Finding]:
    """Tell whether the memory of the process grew."""
    points = [point for point in history.curve("system/ram_gib") if point.value > 0]
    if len(points) < 2 * _FEW:
        return
    first, last = ends(points[len(points) // 4 :], 0.2)
    if last > _GROWN * first and last - first > 1:
        measured = f"from {first:.3g} to {last:.3g} GiB of memory"
        why = "it grows from step to step, until the system ends the run"
        fix = "losses as numbers (loss.item()), no lists of tensors; arrays in place of lists in data sets with workers"
        yield Finding("memory", "warning", measured, why, fix=fix, numbers={"first": first, "last": last})


def machine(history: History) -> Iterator[Finding]:
    """Repeat what the run found out about its machine."""
    system: Mapping[str, Any] = history.result.get("system") or {}
    bound, advice = system.get("bound"), list(system.get("advice") or ())
    if bound:
        wait = system.get("data_wait") or 0.0
        measured = f"{bound}-bound: {100 * wait:.0f} % of the training time was spent waiting for a batch"
        fix = advice[0].partition(" (")[0] if advice else ""
        yield Finding("speed", "note" if advice else "ok", measured, "; ".join(advice), fix=fix)


def checkpoints(history: History) -> Iterator[Finding]:
    """Tell whether there is a whole checkpoint to evaluate or go on from."""
    from lightkit.checkpoint.manifest import ManifestError
    from lightkit.checkpoint.manifest import read as read_manifest
    from lightkit.checkpoint.reading import DamagedError, check_bytes

    folder = history.folder / run_files.CHECKPOINTS
    try:
        entries = read_manifest(folder)
    except (OSError, ManifestError):
        if history.record.keys.get("checkpoint.enabled") and not has_members(history.folder):
            why = "nothing can be evaluated, and a resume begins anew"
            yield Finding("checkpoints", "note", "there is none", why, "checkpoint.every_steps")
        return
    damaged = []
    for entry in entries:
        try:
            check_bytes(folder / entry.file, entry)
        except (OSError, DamagedError) as error:
            damaged.append(f"{entry.file} ({error})")
    steps = ", ".join(f"{entry.step:,}" for entry in entries)
    whole = f"whole: those of {'step' if len(entries) == 1 else 'steps'} {steps}"
    measured = f"damaged: {', '.join(damaged)}" if damaged else whole
    why, fix = "it was not copied to its end, or the disk is at fault", "lightkit resume takes the newest whole one"
    yield Finding("checkpoints", "error" if damaged else "ok", measured, why, fix=fix)


class Point(NamedTuple):
    """A logged value."""

    step: int
    """Optimizer steps done."""
    value: float
    """The value; NaN where it was no number."""


@dataclass(frozen=True)
class History:
    """A run as its files tell it."""

    folder: Path
    """The run's."""
    record: RunRecord
    """Its configuration and how it ended."""
    result: Mapping[str, Any]
    """The content of `result.json`; empty as long as the run has not ended."""
    rows: Sequence[Mapping[str, Any]]
    """All that it has logged."""

    @classmethod
    def of(cls, folder: Path) -> History:
        """Read the files of a run; what is missing or damaged stays empty."""
        return cls(folder, read_record(folder), read_result(folder), read_metrics(folder))

    def curve(self, name: str) -> list[Point]:
        """Return the values of a name in their order."""
        pairs = [(int(row.get("step", 0)), row[name]) for row in self.rows if name in row]
        return [Point(step, math.nan if value is None else float(value)) for step, value in pairs]

    def known(self, name: str) -> list[Point]:
        """Return those of them that are numbers."""
        return [point for point in self.curve(name) if not math.isnan(point.value)]

    @property
    def mode(self) -> str:
        """Tell whether `min` or `max` of the monitored value is better."""
        found = self.record.keys.get("metrics.mode")
        return found if found in ("min", "max") else "min" if self.record.metric.endswith("loss") else "max"

    def log_tail(self) -> str:
        """Return the end of what the run has said."""
        return "\n".join(
            read_tail(self.folder / name, _LOG_CHARACTERS) for name in (run_files.LOG, run_files.OUTPUT_LOG)
        )


def ends(points: Sequence[Point], share: float = 0.1) -> tuple[float, float]:
    """Return the median of the first and of the last values of a curve.

    Args:
        points: The curve, not empty.
        share: How much of it each of the two is.
    """
    values = [point.value for point in points if not math.isnan(point.value)]
    count = max(1, round(share * len(values)))
    return median(values[:count]), median(values[-count:])
