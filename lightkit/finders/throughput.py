"""How many samples a second batches of each size come to, found by steps with a batch that is there already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from omegaconf import DictConfig

from lightkit.common.text import three_digits
from lightkit.finders.child import alone, finder_process

KEY = "data.batch_size"
SECONDS = 1.0
"""Time for each size."""
SMALLEST = 8
"""Size to begin with, where as many fit."""
_SLOWER = 0.1
"""Share by which a smaller batch may be slower than the fastest, and is still suggested."""
_BEYOND = 4
"""How many times the size that would be suggested is tried, to see that larger ones bring nothing."""


class Throughput(NamedTuple):
    """What a size of batches came to."""

    size: int
    """Samples of a batch."""
    samples: float
    """Training samples a second of the computation."""


@dataclass(frozen=True)
class FoundThroughput:
    """What came of a search."""

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
        return smallest_fast(self.speeds)

    @property
    def reason(self) -> str:
        """Sentences that say what speaks for that size, and what it changes."""
        chosen = next(speed for speed in self.speeds if speed.size == self.suggested)
        best = max(self.speeds, key=lambda speed: speed.samples)
        head = f"{chosen.size}: {three_digits(chosen.samples)} samples a second"
        if best.size > chosen.size:
            head += f"; the most is {three_digits(best.samples)} at {best.size}, less than {_SLOWER:.0%} more"
        elif chosen.size < self.largest:
            head += ", and no size that was tried has more"
        else:
            head += ", the most, and no larger batch may be taken"
        if chosen.size == self.configured:
            return head
        steps = -(-self.rows // chosen.size)
        times = f"{chosen.size / self.configured:.3g} times the {self.configured} of data.batch_size"
        epoch = f"an epoch has {steps} step{'' if steps == 1 else 's'}"
        return f"{head}\na step sees {times}, {epoch}: the learning rate is not adapted to that"


def smallest_fast(speeds: Sequence[Throughput]) -> int:
    """Return the smallest size that is about as fast as the fastest of some."""
    most = max(speed.samples for speed in speeds)
    return min(speed.size for speed in speeds if speed.samples >= (1 - _SLOWER) * most)


def candidates(largest: int, configured: int, *, least: int = 1) -> list[int]:
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
    options = {"sizes": candidates(largest, configured, least=ranks), "ranks": ranks, "configured": configured}
    speeds, rows = list[Throughput](), 0
    with finder_process("batch", alone(cfg, data__num_workers=0), options, key=KEY) as child:
        for answer in child.answers():
            if answer.get("end"):
                rows = answer["rows"]
            else:
                speeds.append(Throughput(**answer))
                tell(speeds[-1])
    return FoundThroughput(tuple(speeds), rows, configured, largest)


def measure(
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
    # Here, not above: whoever asks for the search needs no PyTorch.
    from lightkit.finders.steps import TrialSteps

    trial, speeds = TrialSteps(cfg), list[Throughput]()
    with closing(trial):
        for size in sizes:
            if speeds and size > max(configured, _BEYOND * smallest_fast(speeds)):
                break
            speeds.append(Throughput(size, ranks * trial.compute_speed(-(-size // ranks), seconds=SECONDS)))
            answer(speeds[-1]._asdict())
    answer({"end": True, "rows": trial.learner.data.train.num_samples})
