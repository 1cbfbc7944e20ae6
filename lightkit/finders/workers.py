"""How many loader processes a run can use, found by steps with the batches of each number of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig

from lightkit.common.processes import usable_cpus
from lightkit.common.text import three_digits
from lightkit.finders.child import alone, finder_process

if TYPE_CHECKING:
    from lightkit.data.loaders import Loader
    from lightkit.finders.steps import TrialSteps

KEY = "data.num_workers"
SECONDS = 3.0
"""Time for each number of processes."""
_STEPS, _LEAST = 40, 6
"""Steps for each number, at most and at least."""
_SLOWER = 0.05
"""Share by which fewer processes may be slower than the best number, and are still suggested."""


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


@dataclass(frozen=True)
class FoundWorkers:
    """What came of a search."""

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
        if not self.speeds:
            return 0
        best = max(speed.samples for speed in self.speeds)
        return min(speed.workers for speed in self.speeds if speed.samples >= (1 - _SLOWER) * best)

    @property
    def reason(self) -> str:
        """Sentence that says what speaks for that number."""
        if not self.speeds:
            return "the data set makes whole batches itself: loader processes do nothing"
        chosen = next(speed for speed in self.speeds if speed.workers == self.suggested)
        less = [speed for speed in self.speeds if speed.workers < chosen.workers]
        gain = f", {chosen.samples / less[0].samples:.2g} times as many as with {less[0].workers}" if less else ""
        head = f"{three_digits(chosen.samples)} samples a second{gain}"
        if chosen.waited < _SLOWER:
            return f"{head}; the computation does not wait for batches, so more bring nothing"
        end = "more processes bring no more"
        if chosen.workers == max(speed.workers for speed in self.speeds):
            full = chosen.workers >= self.cpus
            end = f"all {self.cpus} CPUs are taken: cheaper transforms, or smaller files" if full else "more may help"
        return f"{head}; training still waits {chosen.waited:.0%} of the time, and {end}"


def candidates(cpus: int, configured: int) -> list[int]:
    """Return the numbers of processes to try: 0, 1, 2, 4, … up to that of the processors, and what is configured."""
    doubling = [1 << power for power in range(cpus.bit_length()) if 1 << power <= cpus]
    return sorted({0, *doubling, cpus, min(configured, 2 * cpus)})


def find_workers(
    cfg: DictConfig, *, numbers: Sequence[int] | None = None, tell: Callable[[Speed], None] = lambda speed: None
) -> FoundWorkers:
    """Search for the number of loader processes, in a process of its own.

    Args:
        cfg: The configuration.
        numbers: Numbers to try; None takes `candidates`.
        tell: Called with what each number came to.

    Raises:
        UserError: The parts of the run cannot be built, or a step fails.
    """
    cpus, configured = usable_cpus(), int(cfg.data.num_workers)
    options = {"numbers": list(numbers or candidates(cpus, configured))}
    speeds, compute = list[Speed](), 0.0
    with finder_process("workers", alone(cfg, data__num_workers=0), options, key=KEY) as child:
        for answer in child.answers():
            if answer.get("end"):
                compute = answer["compute"]
            else:
                speeds.append(Speed(**answer))
                tell(speeds[-1])
    return FoundWorkers(tuple(speeds), compute, cpus, configured)


def measure(cfg: DictConfig, answer: Callable[[dict[str, Any]], None], *, numbers: Sequence[int]) -> None:
    """Make steps with each number of loader processes, in this process.

    Args:
        cfg: The configuration, for one process.
        answer: Takes a `Speed` as a dictionary for each, then the samples a second of the computation alone.
        numbers: Numbers of loader processes.
    """
    # Here, not above: whoever asks for the search needs no PyTorch.
    from lightkit.data.tensors import Taker
    from lightkit.finders.steps import TrialSteps

    trial = TrialSteps(cfg)
    train = trial.learner.data.train
    with closing(trial):
        if isinstance(train.source, Taker):
            answer({"end": True, "compute": 0.0})
            return
        compute = trial.compute_speed(min(train.batch_size, train.num_samples), seconds=SECONDS)
        for number in numbers:
            answer(_speed(trial, train, number)._asdict())
    answer({"end": True, "compute": compute})


def _speed(trial: TrialSteps, train: Loader, workers: int) -> Speed:
    """Make steps with loader processes until the time is over.

    Each of them has a batch under way when the first one comes: the clock begins when as many have come.
    """
    need = (max(_STEPS, 3 * workers) + workers) * train.batch_size * trial.learner.timetable.accumulate
    rows = train.rows.repeat(-(-need // len(train.rows)))  # no epoch ends on the way
    loader = train.with_rows(rows, num_workers=workers, persistent_workers=False, drop_last=False)
    trial.learner.state.epoch = 0
    began = perf_counter()
    steps = trial.run(loader)
    with closing(steps):
        next(steps)
        first = perf_counter() - began
        for _ in range(workers):
            next(steps)
        trial.wait()
        started, waited, done = perf_counter(), 0.0, 0
        while done < max(_LEAST, 2 * workers) or (done < _STEPS and perf_counter() - started < SECONDS):
            waited += next(steps).waited
            done += 1
        trial.wait()
        seconds = perf_counter() - started
    loader.close()
    samples = done * loader.batch_size * trial.learner.timetable.accumulate
    return Speed(workers, samples / seconds, min(waited / seconds, 1.0), first)
