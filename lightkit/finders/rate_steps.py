"""Steps with learning rates that a search chooses: rising ones, and short trainings from the same weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from lightkit.assembly.learner import build_optimizer
from lightkit.common.errors import UserError
from lightkit.finders.steps import TrialSteps
from lightkit.finders.suggestion import LossAtRate, ShortTraining

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
        doubled: Any = OmegaConf.create(OmegaConf.to_container(cfg))
        doubled.optim.lr = 2 * self._configured
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
