"""A learning rate, found by steps with a rate that rises (Smith 2015, https://arxiv.org/abs/1506.01186).

What the losses of these steps, and of short trainings, say: which rate to take, and why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from lightkit.common.errors import FAILED, UserError
from lightkit.config import with_values
from lightkit.finders.child import finder_process, single_process

if TYPE_CHECKING:
    from lightkit.device.ranks import Ranks

FACTOR = 3.0
"""Factor between the rates of two short trainings."""
MOST_TRAININGS = 7
"""Short trainings at most."""
HORIZON = 0.32
"""How the best rate falls with the number of steps: as its power of minus this, as measured for language models and
AdamW (Bjorck et al. 2024, https://arxiv.org/abs/2409.19913)."""
_WIDTH = 0.03
"""Width of the smoothing, as a share of the steps."""
_START = 0.1
"""Share of the steps that tell where the loss began: with the smallest rates it stays there."""
_FALL = 0.02
"""Least fall of the loss, as a share of it, that is one."""
_SAME = 1.5
"""Factor within which two rates count as the same: they are rounded."""


class LossAtRate(NamedTuple):
    """The loss at a learning rate: each step of a search has a rate of its own."""

    lr: float
    """The rate."""
    loss: float
    """Loss of the batch before the step."""


class RateRange(NamedTuple):
    """What steps with a rising rate say."""

    lowest: LossAtRate
    """Where the smoothed loss is lowest."""
    steepest: LossAtRate
    """Where it falls fastest."""
    start: float
    """The loss before the rate mattered."""
    harmful: float | None
    """The rate from which the loss rises; None where it did not up to the largest one."""


class ShortTraining(NamedTuple):
    """A training of a few steps, from the weights that a run begins with."""

    lr: float
    """Its rate."""
    losses: tuple[float, ...]
    """Losses of its last batches, which are the same ones for all rates; none where it diverged."""

    @property
    def loss(self) -> float:
        """Mean loss of its last batches; infinite where it diverged."""
        return fmean(self.losses) if self.losses else math.inf


class Suggestion(NamedTuple):
    """A rate, and what speaks for it."""

    lr: float
    """The rate that is suggested."""
    reason: str
    """Why, in a sentence."""


def read_range(points: Sequence[LossAtRate]) -> RateRange | None:
    """Tell where the loss is lowest, and where it rises; None where it falls with no rate.

    Args:
        points: Rates, rising, each with its loss.
    """
    if len(points) < 5:
        return None
    losses, rates = smooth([point.loss for point in points]), [point.lr for point in points]
    first = max(2, round(_START * len(points)))
    start = sum(losses[:first]) / first
    lowest = min(range(len(losses)), key=losses.__getitem__)
    noise = math.sqrt(sum((point.loss - loss) ** 2 for point, loss in zip(points[:first], losses)) / first)
    fall = start - losses[lowest]
    if lowest == 0 or fall < max(noise, _FALL * abs(start)):
        return None
    slopes = [losses[i] - losses[i - 1] for i in range(1, lowest + 1)]
    steepest = 1 + min(range(len(slopes)), key=slopes.__getitem__)
    risen = max(losses[lowest] + 0.25 * fall, 0.0)
    harmful = next((rates[i] for i in range(lowest + 1, len(rates)) if losses[i] > risen), None)
    return RateRange(
        LossAtRate(rates[lowest], losses[lowest]), LossAtRate(rates[steepest], losses[steepest]), start, harmful
    )


def next_rate(found: RateRange, tried: Sequence[ShortTraining]) -> float | None:
    """Return the rate of the next short training; None where enough were made.

    The first one is a third of that with the lowest loss. From there it goes by factors of three to wherever the loss
    gets lower, until the rates on both sides of the best one have been tried.

    Args:
        found: What steps with a rising rate said.
        tried: The trainings that were made.
    """
    if not tried:
        return _rounded(found.lowest.lr / FACTOR)
    best = min(tried, key=lambda training: training.loss).lr
    for rate in (best / FACTOR, best * FACTOR):
        if not any(rate / _SAME < training.lr < _SAME * rate for training in tried):
            return _rounded(rate) if len(tried) < MOST_TRAININGS else None
    return None


def suggest(tried: Sequence[ShortTraining], *, short: int, total: int) -> Suggestion | None:
    """Suggest a rate for the run by what short trainings came to; None where all diverged.

    The smallest rate that trains as well as the best one is taken: on the same batches its loss is not larger by more
    than the standard error of the difference. The longer the run is in comparison, the smaller the rate it gets.

    Args:
        tried: Short trainings.
        short: Steps of each.
        total: Steps of the run.
    """
    trained = sorted(training for training in tried if training.losses)
    if not trained:
        return None
    best = min(trained, key=lambda training: training.loss)
    chosen = next(training for training in trained if _as_good(training, best))
    means = "ends lowest" if chosen is best else f"ends as low as {best.lr:g}, within the scatter of the batches"
    others = [f"{training.loss:.3g} with {training.lr:g}" for training in trained if training is not chosen]
    others += [f"{training.lr:g} diverges" for training in sorted(tried) if not training.losses]
    reason = f"of trainings of {short} steps {chosen.lr:g} {means}: {', '.join([f'{chosen.loss:.3g}', *others])}"
    lr = _rounded(chosen.lr * min(1.0, (short / total) ** HORIZON))
    if lr < chosen.lr:
        reason += f"; the run is {total / short:.2g} times as long, which wants {lr / chosen.lr:.2g} times that rate"
    return Suggestion(lr, reason)


def smooth(values: Sequence[float]) -> list[float]:
    """Smooth values by the mean of their neighbours on both sides, weighted by a bell curve: nothing is shifted."""
    width = max(1.0, _WIDTH * len(values))
    reach = math.ceil(3 * width)
    weights = [math.exp(-0.5 * (distance / width) ** 2) for distance in range(reach + 1)]
    found = []
    for place in range(len(values)):
        near = range(max(0, place - reach), min(len(values), place + reach + 1))
        total = sum(weights[abs(place - other)] for other in near)
        found.append(sum(weights[abs(place - other)] * values[other] for other in near) / total)
    return found


def _as_good(training: ShortTraining, best: ShortTraining) -> bool:
    gaps = [loss - lowest for loss, lowest in zip(training.losses, best.losses)]
    return (len(gaps) > 1 and fmean(gaps) <= stdev(gaps) / math.sqrt(len(gaps))) or training is best


def _rounded(rate: float) -> float:
    return float(f"{rate:.1e}")


KEY = "trainer.find_lr"
LOW, HIGH, STEPS = 1e-6, 10.0, 100
"""Smallest and largest rate, and steps between them."""
_SHORT = 0.5
"""Steps of a short training, as a share of the steps with rising rates."""


@dataclass(frozen=True)
class FoundRate:
    """What came of a search."""

    points: tuple[LossAtRate, ...]
    """Rates with the loss of the step that was made with them, before it."""
    configured: float
    """`optim.lr` as it is configured."""
    trainings: tuple[ShortTraining, ...] = ()
    """Short trainings with some of the rates, in the order in which they were made."""
    short: int = 1
    """Steps of each of these."""
    total: int = 1
    """Steps of the run."""

    @property
    def range(self) -> RateRange | None:
        """Return what the steps with rising rates say; None where the loss falls with none of the rates."""
        return read_range(self.points)

    @property
    def suggestion(self) -> Suggestion | None:
        """Return the suggested rate with its reason; None where there is none."""
        return suggest(self.trainings, short=self.short, total=self.total)


def find_lr(
    cfg: DictConfig,
    *,
    low: float = LOW,
    high: float = HIGH,
    steps: int = STEPS,
    tell: Callable[[int, LossAtRate], None] = lambda step, point: None,
    tell_training: Callable[[ShortTraining], None] = lambda training: None,
) -> FoundRate:
    """Search for a learning rate, in a process of its own.

    Args:
        cfg: The configuration.
        low: The rate to begin with.
        high: The rate to end with; the search ends before where the loss diverges.
        steps: Optimizer steps from one to the other.
        tell: Called with the number of each step with a rising rate, and what it found.
        tell_training: Called with each short training.

    Raises:
        UserError: The parts of the run cannot be built, or a step fails.
    """
    configured = cfg.optim.get("lr")
    if configured is None:
        fix = "one of those in conf/optim, or a range of your own: train -m optim.lr=1e-4,1e-3,1e-2"
        raise UserError("the optimizer has no learning rate to look for", key="optim.lr", fix=fix)
    options = {"low": low, "high": high, "steps": steps}
    points, trainings, lengths = list[LossAtRate](), list[ShortTraining](), {"short": 1, "total": 1}
    with finder_process("lr", single_process(cfg), options, key=KEY, fix=f"{KEY}=false") as child:
        for answer in child.answers():
            if answer.get("end"):
                lengths = {"short": answer["short"], "total": answer["total"]}
            elif "training" in answer:
                trainings.append(ShortTraining(answer["training"]["lr"], tuple(answer["training"]["losses"])))
                tell_training(trainings[-1])
            else:
                points.append(LossAtRate(answer["lr"], answer["loss"]))
                tell(len(points), points[-1])
    return FoundRate(tuple(points), float(configured), tuple(trainings), **lengths)


def resolve_lr(
    cfg: DictConfig, ranks: Ranks, tell: Callable[[str], None] = lambda line: None
) -> tuple[DictConfig, tuple[str, ...]]:
    """Return the configuration with a rate in the place of `trainer.find_lr`, and lines about it.

    Args:
        cfg: The configuration.
        ranks: The processes of the run; the first one searches for all.
        tell: Called with a line before the search, which takes a while.

    Raises:
        UserError: No rate lets the loss fall (exit code 1), or a step fails.
    """
    if not cfg.trainer.find_lr:
        return cfg, ()

    def search() -> tuple[float, str]:
        tell(f"lr      looking for a learning rate ({KEY}=true)")
        found = find_lr(cfg)
        if found.suggestion is None:
            what, fix = "the loss falls with none of the rates that were tried", "lightkit find lr draws what it saw"
            raise UserError(what, key=KEY, fix=fix, exit_code=FAILED, family="not-learning")
        before = f"optim.lr was {found.configured:g}"
        return found.suggestion.lr, f"lr      {found.suggestion.lr:g}: {found.suggestion.reason}; {before}"

    lr, line = ranks.shared(search)
    return _with_rate(cfg, lr), (line,)


def _with_rate(cfg: DictConfig, lr: float) -> DictConfig:
    """Put a rate in the place of the question."""
    return with_values(cfg, {"optim.lr": lr, KEY: False})


def keep_found_lr(cfg: DictConfig, saved_text: str) -> DictConfig:
    """Return the configuration to resume with: the rate that was found when the run began stays.

    Args:
        cfg: The configuration at hand.
        saved_text: That of the checkpoint, as YAML.
    """
    if not cfg.trainer.find_lr or not saved_text:
        return cfg
    return _with_rate(cfg, OmegaConf.create(saved_text).optim.lr)


def measure(cfg: DictConfig, answer: Callable[[dict[str, Any]], None], *, low: float, high: float, steps: int) -> None:
    """Make steps with rising rates in this process, until the loss diverges.

    Groups keep their ratio to `optim.lr`; those with a rate of their own keep that.

    Args:
        cfg: The configuration, for one process.
        answer: Takes the rate and the loss of each step.
        low: The first rate.
        high: The last one.
        steps: The number of steps.

    Raises:
        UserError: No parameter has a rate that follows `optim.lr`.
    """
    # Here, not above: whoever asks for the search needs no PyTorch.
    from lightkit.finders.steps import RateSteps

    trial = RateSteps(cfg)
    with closing(trial):
        points = list[LossAtRate]()
        for point in trial.rising(low, high, steps):
            points.append(point)
            answer(point._asdict())
        found, tried = read_range(points), list[ShortTraining]()
        total = trial.learner.timetable.total_steps
        short = min(max(round(_SHORT * steps), 4), total)
        while found is not None and (rate := next_rate(found, tried)) is not None:
            tried.append(trial.train(rate, short))
            answer({"training": tried[-1]._asdict()})
    answer({"end": True, "short": short, "total": total})
