"""How fast training is with other numbers of loader processes, and with batches of other sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from omegaconf import DictConfig

from lightkit.common.text import counted, three_digits
from lightkit.finders.child import finder_process, single_process
from lightkit.processes.children import usable_cpus

if TYPE_CHECKING:
    from lightkit.data.loaders import Loader
    from lightkit.finders.steps import TrialSteps

WORKERS_SECONDS, BATCH_SECONDS = 3.0, 1.0
"""Time for each number of processes, and for each size."""
SMALLEST = 8
"""Size to begin with, where as many fit."""
_STEPS, _LEAST = 40, 6
"""Steps for each number of processes, at most and at least."""
_SLOWER_WORKERS, _SLOWER_BATCH = 0.05, 0.1
"""Share by which fewer processes, and a smaller batch, may be slower than the fastest, and are still suggested."""
_BEYOND = 4
"""How many times the size that would be suggested is tried, to see that larger ones bring nothing."""


class Speed(NamedTuple):
    """What a number of loader processes came to."""

    workers: int
    """Their number."""
    samples: float
    """Training samples a second, once the processes run."""
    waited: float
    """Share of the time in which training waited for batches, 0 to 1."""
    first: float
    """Seconds to the first batch, the start of the processes included."""


class Throughput(NamedTuple):
    """What a size of batches came to."""

    size: int
    """Samples of a batch."""
    samples: float
    """Training samples a second of the computation."""


S = TypeVar("S", Speed, Throughput)


def smallest_fast(speeds: Sequence[S], slower: float) -> S:
    """Return the smallest number or size that is about as fast as the fastest of some.

    Args:
        speeds: What was tried.
        slower: Share by which it may be slower.
    """
    most = max(speed.samples for speed in speeds)
    return min(speed for speed in speeds if speed.samples >= (1 - slower) * most)


def _measured(
    what: str, cfg: DictConfig, options: Mapping[str, Any], kind: type[S], tell: Callable[[S], None], *, key: str
) -> tuple[tuple[S, ...], dict[str, Any]]:
    """Let a process of its own measure, and return what it did, and its last answer."""
    speeds, end = list[S](), dict[str, Any]()
    with finder_process(what, single_process(cfg, {"data.num_workers": 0}), options, key=key) as child:
        for answer in child.answers():
            if answer.get("end"):
                end = answer
            else:
                speeds.append(kind(**answer))
                tell(speeds[-1])
    return tuple(speeds), end


@dataclass(frozen=True)
class FoundWorkers:
    """What came of a search for a number of loader processes."""

    speeds: tuple[Speed, ...]
    """The numbers that were tried; none where the data set makes whole batches itself."""
    compute: float
    """Samples a second of the computation alone; 0 where nothing was measured."""
    cpus: int
    """Processors that can be used here."""
    configured: int
    """`data.num_workers` as it is configured."""

    @property
    def suggested(self) -> int:
        """Fewest processes that are about as fast as the best number."""
        return smallest_fast(self.speeds, _SLOWER_WORKERS).workers if self.speeds else 0

    @property
    def reason(self) -> str:
        """Sentence that says what speaks for that number."""
        if not self.speeds:
            return "the data set makes whole batches itself: loader processes do nothing"
        chosen = smallest_fast(self.speeds, _SLOWER_WORKERS)
        less = [speed for speed in self.speeds if speed.workers < chosen.workers]
        gain = f", {chosen.samples / less[0].samples:.2g} times as many as with {less[0].workers}" if less else ""
        head = f"{three_digits(chosen.samples)} samples a second{gain}"
        if chosen.waited < _SLOWER_WORKERS:
            return f"{head}; the computation does not wait for batches, so more bring nothing"
        end = "more processes bring no more"
        if chosen.workers == max(speed.workers for speed in self.speeds):
            full = chosen.workers >= self.cpus
            end = f"all {self.cpus} CPUs are taken: cheaper transforms, or smaller files" if full else "more may help"
        return f"{head}; training still waits {chosen.waited:.0%} of the time, and {end}"


def numbers_to_try(cpus: int, configured: int) -> list[int]:
    """Return the numbers of processes to try: 0, 1, 2, 4, … up to that of the processors, and what is configured."""
    doubling = [1 << power for power in range(cpus.bit_length()) if 1 << power <= cpus]
    return sorted({0, *doubling, cpus, min(configured, 2 * cpus)})


def find_workers(
    cfg: DictConfig, *, numbers: Sequence[int] | None = None, tell: Callable[[Speed], None] = lambda speed: None
) -> FoundWorkers:
    """Search for the number of loader processes, in a process of its own.

    Args:
        cfg: The configuration.
        numbers: Numbers to try; None takes `numbers_to_try`.
        tell: Called with what each number came to.

    Raises:
        UserError: The parts of the run cannot be built, or a step fails.
    """
    cpus, configured = usable_cpus(), int(cfg.data.num_workers)
    options = {"numbers": list(numbers or numbers_to_try(cpus, configured))}
    speeds, end = _measured("workers", cfg, options, Speed, tell, key="data.num_workers")
    return FoundWorkers(speeds, end["compute"], cpus, configured)


def measure_workers(cfg: DictConfig, answer: Callable[[dict[str, Any]], None], *, numbers: Sequence[int]) -> None:
    """Make steps with each number of loader processes, in this process.

    Args:
        cfg: The configuration, for one process.
        answer: Takes a `Speed` as a dictionary for each, then the samples a second of the computation alone.
        numbers: Numbers of loader processes.
    """
    # Here, not above: whoever asks for the search needs no PyTorch.
    from lightkit.data.tensors import Taker
    from lightkit.finders.steps import TrialSteps

    trial, compute = TrialSteps(cfg), 0.0
    train = trial.learner.data.train
    with closing(trial):
        if not isinstance(train.source, Taker):
            compute = trial.compute_speed(min(train.batch_size, train.num_samples), seconds=WORKERS_SECONDS)
            for number in numbers:
                answer(_speed(trial, train, number)._asdict())
    answer({"end": True, "compute": compute})


def _speed(trial: TrialSteps, train: Loader, workers: int) -> Speed:
    """Make steps with loader processes until the time is over.

    Each of them has a batch under way when the first one comes: the clock begins when as many have come.
    """
    accumulate = trial.learner.timetable.accumulate
    need = (max(_STEPS, 3 * workers) + workers) * train.batch_size * accumulate
    rows = train.rows.repeat(-(-need // len(train.rows)))  # no epoch ends on the way
    loader = train.with_rows(rows, num_workers=workers, persistent_workers=False, drop_last=False)
    trial.learner.state.epoch = 0
    began = perf_counter()
    with closing(trial.run(loader)) as steps:
        next(steps)
        first = perf_counter() - began
        for _ in range(workers):
            next(steps)
        trial.wait()
        started, waited, done = perf_counter(), 0.0, 0
        while done < max(_LEAST, 2 * workers) or (done < _STEPS and perf_counter() - started < WORKERS_SECONDS):
            waited += next(steps).waited
            done += 1
        trial.wait()
        seconds = perf_counter() - started
    loader.close()
    return Speed(workers, done * loader.batch_size * accumulate / seconds, min(waited / seconds, 1.0), first)


@dataclass(frozen=True)
class FoundThroughput:
    """What came of a search for a size of batches."""

    speeds: tuple[Throughput, ...]
    """The sizes that were tried, rising."""
    rows: int
    """Training samples of an epoch."""
    configured: int
    """`data.batch_size` as it is configured."""
    largest: int
    """The largest size that may be tried: memory holds no more, or the data set has no more samples."""

    @property
    def suggested(self) -> int:
        """Smallest size that is about as fast as the fastest."""
        return smallest_fast(self.speeds, _SLOWER_BATCH).size

    @property
    def reason(self) -> str:
        """Sentences that say what speaks for that size, and what it changes."""
        chosen, best = smallest_fast(self.speeds, _SLOWER_BATCH), max(self.speeds, key=lambda speed: speed.samples)
        head = f"{chosen.size}: {three_digits(chosen.samples)} samples a second"
        if best.size > chosen.size:
            head += f"; the most is {three_digits(best.samples)} at {best.size}, less than {_SLOWER_BATCH:.0%} more"
        elif chosen.size < self.largest:
            head += ", and no size that was tried has more"
        else:
            head += ", the most, and no larger batch may be taken"
        if chosen.size == self.configured:
            return head
        times = f"{chosen.size / self.configured:.3g} times the {self.configured} of data.batch_size"
        epoch = f"an epoch has {counted(-(-self.rows // chosen.size), 'step')}"
        return f"{head}\na step sees {times}, {epoch}: the learning rate is not adapted to that"


def sizes_to_try(largest: int, configured: int, *, least: int = 1) -> list[int]:
    """Return the sizes to try: doubling up to the largest, which is one of them, and what is configured.

    Args:
        largest: The largest size.
        configured: `data.batch_size`.
        least: The smallest size.
    """
    first = max(SMALLEST, least) if largest >= max(SMALLEST, least) else min(largest, max(2, least))
    doubling = [first << power for power in range(largest.bit_length()) if first << power <= largest]
    return sorted({*doubling, largest, *([configured] if least <= configured <= largest else [])})


def find_throughput(
    cfg: DictConfig, *, largest: int, ranks: int = 1, tell: Callable[[Throughput], None] = lambda speed: None
) -> FoundThroughput:
    """Measure the speed of sizes up to one, in a process of its own.

    Args:
        cfg: The configuration.
        largest: The largest size that may be taken.
        ranks: Processes of the run, which share every batch. One of them is measured, without what they exchange.
        tell: Called with what each size came to.

    Raises:
        UserError: The parts of the run cannot be built, or a step fails.
    """
    configured = int(cfg.data.batch_size)
    options = {"sizes": sizes_to_try(largest, configured, least=ranks), "ranks": ranks, "configured": configured}
    speeds, end = _measured("batch", cfg, options, Throughput, tell, key="data.batch_size")
    return FoundThroughput(speeds, end["rows"], configured, largest)


def measure_batch(
    cfg: DictConfig, answer: Callable[[dict[str, Any]], None], *, sizes: Sequence[int], ranks: int, configured: int
) -> None:
    """Make steps with batches of each size in this process, until larger ones bring nothing.

    Args:
        cfg: The configuration, for one process.
        answer: Takes a `Throughput` as a dictionary for each, then the samples of an epoch.
        sizes: Sizes over all processes, rising.
        ranks: Processes of the run.
        configured: Size that is tried in any case, where it is one of them.
    """
    from lightkit.finders.steps import TrialSteps

    trial, speeds = TrialSteps(cfg), list[Throughput]()
    with closing(trial):
        for size in sizes:
            if speeds and size > max(configured, _BEYOND * smallest_fast(speeds, _SLOWER_BATCH).size):
                break
            speeds.append(Throughput(size, ranks * trial.compute_speed(-(-size // ranks), seconds=BATCH_SECONDS)))
            answer(speeds[-1]._asdict())
    answer({"end": True, "rows": trial.learner.data.train.num_samples})
