"""Optimizer steps of a run in a process that measures: the same as in the run, but nothing of them is kept."""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.assembly import build
from lightkit.assembly.learner import build_optimizer
from lightkit.assembly.phases import phases_of
from lightkit.common.errors import UserError
from lightkit.common.modules import put_back
from lightkit.common.stepping import set_rate
from lightkit.config import with_values
from lightkit.data.loaders import Loader
from lightkit.device.switches import Compiler
from lightkit.finders.lr import LossAtRate, ShortTraining
from lightkit.finetune.tuning import NoTuning, Tuning
from lightkit.trainer.step import trial_stepper

_WARM = 2
"""Steps before the speed is measured: the first ones compile, choose kernels, and make the state of the optimizer."""
_STRETCHES, _STEPS = 3, 20
"""Stretches of time that the speed is the best of, and steps of each at most."""


class TrialStep(NamedTuple):
    """An optimizer step that was made."""

    loss: Tensor
    """Mean loss of its samples, before it."""
    waited: float
    """Seconds that it waited for its batches."""


class TrialSteps:
    """The parts of a run, and steps of its training.

    Args:
        cfg: The configuration, for one process.
    """

    def __init__(self, cfg: DictConfig) -> None:
        with TemporaryDirectory() as folder:
            learner = build(cfg, Path(folder))
        # Outputs of a network that diverges are nothing that metrics and averages would have to take.
        self.learner, self.stepper = learner, trial_stepper(learner)
        prepared = learner.made.prepared
        self.tuning = NoTuning() if prepared is None else Tuning(learner.model, phases_of(learner))

    def run(self, loader: Loader) -> Generator[TrialStep, None, None]:
        """Make a step each time the next one is asked for, in one epoch after the other, without an end.

        Args:
            loader: Gives the batches.
        """
        learner, engine = self.learner, self.learner.engine
        state, accumulate = learner.state, learner.timetable.accumulate
        while True:
            self.tuning.before_step(0, 0)  # what trains from the beginning
            self.tuning.train(learner.network)
            with closing(engine.prefetch(loader.epoch(state.epoch))) as batches:
                done = 0
                while done < loader.epoch_samples:
                    window = min(accumulate * loader.batch_size, loader.epoch_samples - done)
                    yield self.step(batches, loader.batch_size, done=done, window=window)
                    done += window
            state.epoch += 1

    def step(self, batches: Iterator[Any], batch_size: int, *, done: int, window: int) -> TrialStep:
        """Make a step.

        Args:
            batches: Gives the batches.
            batch_size: Samples of one.
            done: Samples of the epoch before it.
            window: Samples of the step.
        """
        engine, losses, waited, position = self.learner.engine, list[Tensor](), 0.0, 0
        while position < window:
            asked = perf_counter()
            batch = engine.move(next(batches))
            waited += perf_counter() - asked
            size = min(batch_size, window - position)
            more = position + size < window
            self.stepper.micro(batch, position=done + position, size=size, window=window, more=more)
            losses.append(self.stepper.loss.detach() * (size / window))
            position += size
        self.stepper.update(usable=True, want_norm=False)
        return TrialStep(torch.stack(losses).sum(), waited)

    def compute_speed(self, size: int, *, seconds: float) -> float:
        """Return the samples a second of steps whose batches are there already.

        It is the best of some stretches of time: what else the machine does only makes steps slower.

        Args:
            size: Samples of a batch.
            seconds: Time to measure, at least.
        """
        learner, engine = self.learner, self.learner.engine
        if isinstance(engine.compiler, Compiler):
            torch.compiler.reset()  # else a second size is compiled for any size, which the run itself does not do
        rows = learner.data.train.rows
        some = rows.repeat(-(-size // len(rows)))[:size]
        loader = learner.data.train.with_rows(some, batch_size=size, drop_last=False, num_workers=0)
        window, best = size * learner.timetable.accumulate, 0.0
        self.tuning.before_step(0, 0)
        self.tuning.train(learner.network)
        with closing(loader.epoch(0)) as first:
            batch = next(first)
        with closing(engine.prefetch(batch for _ in repeat(None))) as batches:
            for _ in range(_WARM):
                self.step(batches, size, done=0, window=window)
            self.wait()
            for _ in range(_STRETCHES):
                began, done = perf_counter(), 0
                while not done or (done < _STEPS and perf_counter() - began < seconds / _STRETCHES):
                    self.step(batches, size, done=0, window=window)
                    done += 1
                self.wait()
                best = max(best, done * window / (perf_counter() - began))
        return best

    def wait(self) -> None:
        """Wait until a GPU has done what it was given."""
        if self.learner.engine.device.type == "cuda":
            torch.cuda.synchronize()

    def close(self) -> None:
        """End all loader processes."""
        self.learner.data.close()


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
        other = build_optimizer(doubled.optim, learner.made, learner.timetable, learner.engine)
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
        put_back(self._tensors)
        state = self.learner.optimizer.state
        state.clear()
        state.update({parameter: copy.deepcopy(kept) for parameter, kept in self._state.items()})
        self.learner.state.epoch = 0

    def _set(self, lr: float, factor: float = 1.0) -> None:
        for group, rate, share in zip(self.learner.optimizer.param_groups, self._own, self._follows, strict=True):
            set_rate(group, factor * (rate + share * (lr - self._configured)))
