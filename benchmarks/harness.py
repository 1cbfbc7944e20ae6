"""What all benchmarks share: interleaved rounds, paired ratios, and a table.

The contestants take turns within a round, so that a machine that is busy for a while slows all of them; a ratio is the
median over the rounds of two times of the same round. Wall-clock time is what a user waits for, CPU time leaves out
what other processes took; both are printed, and on a busy machine the second is the one to trust.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time, thread_time
from types import TracebackType
from typing import Any

import psutil


@dataclass
class Sample:
    """One measurement; also the context manager that takes it."""

    wall: float = 0.0
    """Seconds on the clock."""
    cpu: float = 0.0
    """CPU seconds of the process, all threads together."""
    thread: float = 0.0
    """CPU seconds of the thread that measures alone."""
    peak: float = 0.0
    """The most memory that the process has held, in MiB; 0 where that was not measured."""
    proof: dict[str, float] = field(default_factory=dict)
    """What shows that the work was done, such as the accuracy reached."""

    def __enter__(self) -> Sample:
        self.wall, self.cpu, self.thread = -perf_counter(), -process_time(), -thread_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thread += thread_time()
        self.wall, self.cpu = self.wall + perf_counter(), self.cpu + process_time()


def cpu_seconds() -> float:
    """CPU time of this process and its workers so far."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (own, *own.children()))


def look(epochs: Callable[[], Iterable[Any]]) -> Sample:
    """Go through the batches of an epoch of pairs, and count their samples."""
    samples, total = 0, 0.0
    with (sample := Sample()):
        began = cpu_seconds()
        for x, _ in epochs():
            samples += len(x)
            total += float(x.sum()) / x[0].numel()
        took = cpu_seconds() - began
    sample.cpu = took
    sample.proof = {"samples": float(samples), "mean": total / max(1, samples)}
    return sample


Contestants = Mapping[str, Callable[[], Sample]]
Results = dict[str, list[Sample]]


@dataclass(frozen=True)
class Bar:
    """A figure that should not be exceeded.

    Args:
        name: The contestant.
        base: What it is compared with; empty for the time of the contestant itself, in seconds.
        limit: The largest figure that is good enough; None only shows it.
        kind: `wall`, `cpu`, `thread` or `peak`.
        minus: The difference in seconds in place of the ratio.
        least: Without `base`, the least of the rounds in place of their median: the time on a machine that is calm.
    """

    name: str
    base: str
    limit: float | None = None
    kind: str = "wall"
    minus: bool = False
    least: bool = False

    def __str__(self) -> str:
        against = f" {'-' if self.minus else '/'} {self.base}" if self.base else ""
        return f"{self.name}{against}{', least' if self.least else ''}, {self.kind}"


def interleave(contestants: Contestants, *, rounds: int, warm_ups: int = 1) -> Results:
    """Measure every contestant once a round; the first place in the round moves on.

    Args:
        contestants: By name, functions that do the work once and return their measurement.
        rounds: Rounds that count.
        warm_ups: Rounds before them that do not.
    """
    names = list(contestants)
    results: Results = {name: [] for name in names}
    for turn in range(-warm_ups, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            gc.collect(1)  # what the one before left; a full collection would take longer than a small measurement
            sample = contestants[name]()
            if turn >= 0:
                results[name].append(sample)
    return results


def figure(results: Results, bar: Bar) -> float:
    """Median over the rounds of the two contestants' ratio or difference in the same round."""
    if not bar.base:
        found = [getattr(sample, bar.kind) for sample in results[bar.name]]
        return min(found) if bar.least else statistics.median(found)
    pairs = [(getattr(a, bar.kind), getattr(b, bar.kind)) for a, b in zip(results[bar.name], results[bar.base])]
    return statistics.median(a - b if bar.minus else a / b for a, b in pairs)


def median(results: Results, name: str, kind: str = "wall") -> float:
    """Median time of a contestant in seconds."""
    return statistics.median(getattr(sample, kind) for sample in results[name])


def show(title: str, results: Results, base: str, *, per: int = 1, unit: str = "ms") -> None:
    """Print a line for each contestant: median times, ratios to `base`, and its proof of work.

    Args:
        title: What was measured.
        results: The measurements.
        base: The contestant that others are compared with.
        per: Number of pieces of work in a measurement: the times shown are for one of them.
        unit: `s`, `ms` or `µs`.
    """
    scale = {"s": 1.0, "ms": 1e3, "µs": 1e6}[unit] / per
    heads = [title, f"wall {unit}", f"CPU {unit}", "wall ×", "CPU ×", ""]
    rows = []
    for name, samples in results.items():
        times = [f"{median(results, name, kind) * scale:.3g}" for kind in ("wall", "cpu")]
        ratios = [f"{figure(results, Bar(name, base, kind=kind)):.2f}" for kind in ("wall", "cpu")]
        rows.append(
            [name, *times, *ratios, ", ".join(f"{key} {value:.4g}" for key, value in samples[-1].proof.items())]
        )
    print_table(heads, rows)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns, the first to the left and numbers to the right."""
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    for row in (heads, *rows):
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths))
        print("  ".join([row[0].ljust(len(first)), *rest[:-1], row[-1]]).rstrip())
    print()


def judge(results: Results, bars: Sequence[Bar]) -> bool:
    """Print each figure beside its limit; returns whether all hold."""
    good = True
    for bar in bars:
        value = figure(results, bar)
        kept = bar.limit is None or value <= bar.limit
        wanted = "" if bar.limit is None else f" (at most {bar.limit:g}: {'ok' if kept else 'MISSED'})"
        unit = "" if bar.base and not bar.minus else " s"
        print(f"{bar}: {value:.3f}{unit}{wanted}")
        good = good and kept
    return good


def check_same(results: Results, **tolerances: float) -> None:
    """Refuse measurements of contestants that did not do the same work.

    Args:
        results: The measurements.
        tolerances: Names in the proofs with the largest difference between two contestants that both state them.

    Raises:
        RuntimeError: Two of them differ by more.
    """
    for name, tolerance in tolerances.items():
        stated = {who: samples[-1].proof[name] for who, samples in results.items() if name in samples[-1].proof}
        if max(stated.values()) - min(stated.values()) > tolerance:
            raise RuntimeError(f"the contestants did not do the same work: {name} is {stated}")


def options(description: str, *, rounds: int, steps: int | None = None) -> argparse.ArgumentParser:
    """The options of a benchmark.

    Args:
        description: One sentence for `--help`.
        rounds: Default number of rounds.
        steps: Default amount of work in a measurement; None where it can't be chosen.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="measurements of each contestant")
    if steps is not None:
        parser.add_argument("--steps", type=int, default=steps, help="amount of work in one measurement")
    return parser
