"""A learning rate, found by steps with a rate that rises (Smith 2015, https://arxiv.org/abs/1506.01186)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf

from lightkit.assembly.learner import build_optimizer
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import FAILED
from lightkit.config import with_values
from lightkit.finders.child import alone, finder_process
from lightkit.finders.steps import TrialSteps
from lightkit.finders.suggestion import LossAtRate, RateRange, ShortTraining, Suggestion, next_rate, read_range, suggest

if TYPE_CHECKING:
    from lightkit.device.ranks import Ranks

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
    with finder_process("lr", alone(cfg), options, key=KEY, fix=f"{KEY}=false") as child:
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
    return with_values(cfg, {"optim.lr": lr, KEY: False}), (line,)


def keep_found_lr(cfg: DictConfig, saved_text: str) -> DictConfig:
    """Return the configuration to resume with: the rate that was found when the run began stays.

    Args:
        cfg: The configuration at hand.
        saved_text: That of the checkpoint, as YAML.
    """
    if not cfg.trainer.find_lr or not saved_text:
        return cfg
    saved: Any = OmegaConf.create(saved_text)
    return with_values(cfg, {"optim.lr": saved.optim.lr, KEY: False})


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


_DIVERGED, _WORSE = 4.0, 1.5
"""Times its best value, and times its first one, from which a loss does not come back."""
_WARM_UP = 0.2
"""Largest share of a short training that is warm-up, which otherwise has as many steps as in the run."""
_LAST = 0.25
"""Share of the steps of a short training whose losses tell how good it was."""


class RateSteps(TrialSteps):
    """The parts of a run, and steps with other learning rates.

    Groups keep their ratio to `optim.lr`; those with a rate of their own keep that.

    Args:
        cfg: The configuration, for one process.

    Raises:
        UserError: No parameter has a rate that follows `optim.lr`.
    """

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        learner, self._configured = self.learner, float(cfg.optim.lr)
        doubled = with_values(cfg, {"optim.lr": 2 * self._configured})
        other = build_optimizer(doubled, learner.made, learner.timetable, learner.engine)
        twice, self._own = [float(group["lr"]) for group in other.param_groups], learner.scheduler.own_rates
        self._follows = [(after - before) / self._configured for before, after in zip(self._own, twice, strict=True)]
        if not any(self._follows):
            what, fix = "every group of parameters has a rate of its own", "rules with lr_scale in the place of lr"
            raise UserError(what, key="optim.lr", fix=fix)
        trained = (parameter for group in learner.optimizer.param_groups for parameter in group["params"])
        tensors = {id(tensor): tensor for tensor in (*learner.model.parameters(), *learner.model.buffers(), *trained)}
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors.values()]
        self._state = {parameter: copy.deepcopy(state) for parameter, state in learner.optimizer.state.items()}

    def rising(self, low: float, high: float, steps: int) -> Iterator[LossAtRate]:
        """Make steps with rates from the lowest to the highest, until the loss diverges.

        Args:
            low: The first rate.
            high: The last one.
            steps: The number of steps.
        """
        first, best = math.nan, math.inf
        with closing(self.run(self.learner.data.train)) as made:
            for number in range(steps):
                lr = low * (high / low) ** (number / max(steps - 1, 1))
                self._set(lr)
                loss = float(next(made).loss)
                if not math.isfinite(loss):
                    return
                yield LossAtRate(lr, loss)
                first, best = loss if math.isnan(first) else first, min(best, loss)
                if number >= steps // 10 and loss > max(_DIVERGED * best, _WORSE * first):
                    return

    def train(self, lr: float, steps: int) -> ShortTraining:
        """Train from the weights that a run begins with, by its schedule, which is shortened to these steps.

        Args:
            lr: Stands for `optim.lr`.
            steps: The number of steps.
        """
        self._rewind()
        losses, scheduler = list[float](), self.learner.scheduler
        warm = min(scheduler.warmup, round(_WARM_UP * steps))
        share = (scheduler.total_steps - scheduler.warmup) / (steps - warm)  # steps of the run that one stands for
        with closing(self.run(self.learner.data.train)) as made:
            for number in range(steps):
                after = scheduler.factor(scheduler.warmup + int((number - warm + 0.5) * share))
                self._set(lr, (number + 1) / (warm + 1) if number < warm else after)
                losses.append(float(next(made).loss))
                if not math.isfinite(losses[-1]):
                    return ShortTraining(lr, ())
        return ShortTraining(lr, tuple(losses[-max(2, round(_LAST * steps)) :]))

    def _rewind(self) -> None:
        """Put weights, and the state of the optimizer, back to where a run begins."""
        with torch.no_grad():
            for tensor, saved in self._tensors:
                tensor.copy_(saved)
        state = self.learner.optimizer.state
        state.clear()
        state.update({parameter: copy.deepcopy(kept) for parameter, kept in self._state.items()})
        self.learner.state.epoch = 0

    def _set(self, lr: float, factor: float = 1.0) -> None:
        for group, rate, share in zip(self.learner.optimizer.param_groups, self._own, self._follows, strict=True):
            set_rate(group, factor * (rate + share * (lr - self._configured)))


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Give a group its rate; a compiled step has it as a tensor, which stays the same object."""
    if hasattr(group["lr"], "fill_"):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
