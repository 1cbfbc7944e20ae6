"""The training loop: the only one, for every model, precision and ensemble member."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lightkit.common.errors import UserError
from lightkit.common.ranking import improves
from lightkit.finetune.tuning import NoTuning
from lightkit.loggers.base import Logger
from lightkit.trainer.average import NoAverage
from lightkit.trainer.callbacks import Callback
from lightkit.trainer.clock import Clock
from lightkit.trainer.evaluate import evaluate
from lightkit.trainer.guard import Guard, RollBack
from lightkit.trainer.interrupt import AskedToEnd, Interrupt, Interrupted
from lightkit.trainer.report import Reporter, rates_of
from lightkit.trainer.state import State
from lightkit.trainer.tasks import Criterion, Task
from lightkit.trainer.timetable import Timetable


class Trainer:
    """Trains one model, validates it and says when to save.

    ```
    until the last step:
        for each optimizer step of the epoch, from where the state stands:
            for each batch of its window: seed → device → autocast(task.step) → backward → metrics.update
            unscale, clip → optimizer → scheduler → average
            log, validate, save where due
        metrics.compute → log → validate → save
    ```

    Args:
        model: The network, on its device and wrapped.
        train: Loader of the training split.
        val: Loader of the validation split; None trains without validation.
        task: How a batch becomes a loss and metric inputs.
        criterion: The loss.
        optimizer: The optimizer over the parameters of `model`.
        scheduler: Changes the learning rates; stepped after every optimizer step.
        timetable: Lengths and intervals.
        engine: Placement, precision and seeding on the device (`lightkit.device.Engine`).
        train_metrics: Metrics of the training split (`lightkit.metrics.SplitMetrics`).
        val_metrics: Metrics of the validation split.
        monitor: Name of the value that decides what is best.
        mode: Whether `min` or `max` of it is better.
        average: Average of the weights to evaluate with.
        callbacks: Further hooks.
        logger: Where numbers go.
        save: Called with the value of `monitor` (None between validations) when a checkpoint is due.
        state: Counters to go on from.
        guard: What to do about a loss that is not finite.
        interrupt: Tells when a signal asked the run to end.
        tuning: What trains when; by default everything always does.
        clock: Measures where the time goes.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Any,
        val: Any | None,
        *,
        task: Task,
        criterion: Criterion,
        optimizer: Optimizer,
        scheduler: Any,
        timetable: Timetable,
        engine: Any,
        train_metrics: Any,
        val_metrics: Any,
        monitor: str = "val/loss",
        mode: str = "min",
        average: NoAverage | None = None,
        callbacks: Sequence[Callback] = (),
        logger: Logger | None = None,
        save: Callable[[float | None], None] = lambda value: None,
        state: State | None = None,
        guard: Guard | None = None,
        interrupt: Interrupt | None = None,
        tuning: NoTuning | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.model, self.train, self.val, self.task, self.criterion = model, train, val, task, criterion
        self.optimizer, self.scheduler, self.timetable, self.engine = optimizer, scheduler, timetable, engine
        self.train_metrics, self.val_metrics, self.monitor, self.mode = train_metrics, val_metrics, monitor, mode
        self.average, self.callbacks, self.save = average or NoAverage(), list(callbacks), save
        self.state, self.logger = state or State(), logger or Logger()
        self.guard, self.interrupt = guard or Guard(engine.device), interrupt or Interrupt()
        self.tuning = tuning or NoTuning()
        self._on_step = [c for c in self.callbacks if type(c).on_step is not Callback.on_step]
        self._clock, self._saved_step = clock or Clock(), -1
        self._loss, self._own, self._norm = torch.zeros(()), 1, torch.zeros(())
        self._rates: dict[str, float] = {}

    @property
    def finished(self) -> bool:
        """Whether the last step was taken or something ended training."""
        return self.state.step >= self.timetable.total_steps or self.state.stop_reason is not None

    def stop(self, reason: str) -> None:
        """End training after the step under way."""
        self.state.stop_reason = reason

    def log(self, values: Mapping[str, float]) -> None:
        """Log values of a callback's own with this step: a row of `metrics.jsonl`, and curves in TensorBoard.

        They are part of the run like its own values: after a resume no row is missing and none is there twice. Call it
        in `on_step`, `on_validation` or `on_epoch`, in every process; `on_fit_start` comes again with each resume.

        Args:
            values: Numbers by name, such as `extra/weight_norm`; a tensor of one element will do.
        """
        self._report.values({name: float(value) for name, value in values.items()})

    def fit(self) -> State:
        """Train from where the state stands to the end.

        Returns:
            The counters at the end.

        Raises:
            UserError: The loss is no longer finite (exit code 3), or `monitor` names no value.
            Interrupted: A signal asked the run to end; the state was saved.
        """
        self._report = Reporter(self.logger, self.state, self.timetable, self._clock)
        for callback in self.callbacks:
            callback.on_fit_start(self)
        self._go_on()
        self.guard.on_step(self)  # after it, as in `_after_step`: what it does is part of the state to go back to
        while not self.finished:
            try:
                self._epoch()
            except RollBack:
                self.guard.roll_back(self)  # type: ignore[attr-defined]
                self._saved_step = -1
                self._save()
                self._saved_step = -1  # where an epoch ends at this step, that is still to come, and to be saved
        self.tuning.finish(self.state.step)
        for callback in self.callbacks:
            callback.on_fit_end(self)
        return self.state

    def _go_on(self) -> None:
        """What was due at the step of the checkpoint but not done when it was saved."""
        state = self.state
        if 0 < state.samples_done < self.timetable.epoch_samples and not self.finished and self._validation_due():
            self._finish_step()
        if state.step and self.finished and state.closed_step != state.step:
            self._end_epoch()

    def _epoch(self) -> None:
        """The optimizer steps of an epoch that are still to do, then its end."""
        state = self.state
        self.tuning.train(self.model)
        with closing(self.engine.prefetch(self.train.epoch(state.epoch, state.samples_done))) as batches:
            while state.samples_done < self.timetable.epoch_samples and not self.finished:
                try:
                    self._step(batches)
                except AskedToEnd:
                    self._poll()
                self._after_step()
        self._end_epoch()

    def _step(self, batches: Iterator[Any]) -> None:
        """One optimizer step over a window of batches; each sample of the window counts the same."""
        state, timetable = self.state, self.timetable
        self.tuning.before_step(state.epoch, state.step)
        window, done, fine = timetable.window(state.samples_done), 0, True
        while done < window:
            size = min(timetable.batch_size, window - done)
            with self.engine.accumulating(self.model, done + size < window):
                fine = self._micro_step(batches, state.samples_done + done, size=size, window=window) and fine
            done += size
        logged = (state.step + 1) % timetable.log_steps == 0
        if fine:
            self._norm = self.engine.step(self.optimizer, want_norm=logged)
            self.average.update()
        else:
            self._norm = torch.full((), torch.nan)  # what a step is logged with must not be that of another one
            self.engine.discard(self.optimizer)
        self._rates = rates_of(self.optimizer) if logged else {}  # of this step: the schedule sets those of the next
        state.step += 1
        state.samples_done += window
        self.scheduler.step()

    def _micro_step(self, batches: Iterator[Any], position: int, *, size: int, window: int) -> bool:
        """Forward and backward of one batch; its randomness is a function of where in the run it stands.

        Of several processes each has its part of the batch, and their gradients are averaged.

        Returns:
            Whether its gradients may be used.
        """
        batch = self._next(batches, fresh=position == self.state.samples_done)
        first, own = self.engine.ranks.own(size)
        share = own * self.engine.ranks.size / window
        self.engine.seed(self.state.epoch, position + first)
        batch = self.engine.move(batch)
        with self.engine.autocast():
            step = self.task.step(self.model, batch, self.criterion)
        self._loss, self._own = step.loss, own
        if not self.guard.passes(step.loss):
            self.engine.waste(step.loss)
            self.guard.refuse(self, batch, position)
            return False
        self.engine.backward(step.loss if share == 1.0 else step.loss * share)
        self.train_metrics.update(step.preds, step.target, step.loss, own, step.metric_kwargs)
        return True

    def _next(self, batches: Iterator[Any], *, fresh: bool) -> Any:
        """The next batch. While nothing of the step is done yet, a signal ends the wait for it."""
        asked = perf_counter()
        batch = self.interrupt.wait(batches) if fresh else next(batches)
        self._clock.data_seconds += perf_counter() - asked
        return batch

    def _after_step(self) -> None:
        """What is due between two optimizer steps; at the end of an epoch `_end_epoch` does the rest."""
        state = self.state
        for callback in self._on_step:
            callback.on_step(self)
        if state.step % self.timetable.log_steps == 0:
            self._log_step()
        if perf_counter() > self._report.next_show:
            self._report.show("train", state.samples_done // self.timetable.batch_size, len(self.train))
        if state.samples_done < self.timetable.epoch_samples and not self.finished:
            self._finish_step()
        self.guard.on_step(self)  # last: whoever goes back to this state does none of the above again

    def _finish_step(self) -> None:
        """Validation and checkpoint after a step in mid-epoch."""
        improved = self._validation_due() and self._take(self._validate())
        if self.finished:
            return  # early: `_end_epoch` is next, and saves
        if improved or self.timetable.saves_after_step(self.state.step):
            self._save()
        self._poll()

    def _validation_due(self) -> bool:
        return self.timetable.validates_after_step(self.state.step) and self.state.validated_step != self.state.step

    def _end_epoch(self) -> None:
        """Training metrics, validation and checkpoint after the last step of an epoch, or of the run.

        The validation comes first: a run that is told to end in it has changed nothing yet, and does all of this again.
        """
        state, timetable = self.state, self.timetable
        values = self.train_metrics.compute()
        whole = state.samples_done >= timetable.epoch_samples
        due = self.finished or self._validation_due() or (whole and timetable.validates_after_epoch(state.epoch + 1))
        found = self._validate() if due and state.validated_step != state.step else {}
        if whole:
            self.train_metrics.reset()
            state.epoch, state.samples_done = state.epoch + 1, 0
        improved = self._take_training(values)
        improved = self._take(found) or improved
        state.closed_step = state.step
        saves = timetable.saves_after_epoch(state.epoch) or timetable.saves_after_step(state.step)
        if improved or saves or self.finished:
            self._save()
        self._poll()

    def _validate(self) -> dict[str, float]:
        """Values of the validation split; none without one. Changes nothing that is saved."""
        if self.val is None:
            return {}
        began = perf_counter()
        self.engine.seed_validation(self.state.step)
        self.val_metrics.reset()
        try:
            with self.average.applied():
                evaluate(
                    self.model,
                    self.val,
                    [self.val_metrics],
                    task=self.task,
                    criterion=self.criterion,
                    context=self.engine,
                    each=self._during_validation,
                    interrupt=self.interrupt,
                )
        except (Interrupted, AskedToEnd):
            self._poll()
            raise
        self._clock.leave_out(perf_counter() - began)
        return self.val_metrics.compute()

    def _take(self, values: dict[str, float]) -> bool:
        """Log the values of a validation and let them decide; returns whether the monitored one is the best so far."""
        self.state.validated_step = self.state.step
        if not values:
            return False
        self._report.values(values)
        improved = self._judge(values) if self.monitor.startswith(f"{self.val_metrics.prefix}/") else False
        for callback in self.callbacks:
            callback.on_validation(self, values)
        return improved

    def _take_training(self, values: dict[str, float]) -> bool:
        """The same for the values of the training split."""
        self._report.values(values)
        improved = self.monitor in values and self._judge(values)
        for callback in self.callbacks:
            callback.on_epoch(self, values)
        return improved

    def _judge(self, values: dict[str, float]) -> bool:
        """Keep the best of the monitored value and hand it to the scheduler.

        Of equal values the later is the better: on a small split accuracy soon reaches a value it then only repeats,
        and the model goes on learning.
        """
        if self.monitor not in values:
            raise UserError("no such value", key="metrics.monitor", received=self.monitor, choices=values)
        value, state = values[self.monitor], self.state
        self.scheduler.epoch_end(value)
        better = value == state.best_value or improves(value, state.best_value, mode=self.mode)
        if better:
            state.best_value, state.best_step, state.best = value, state.step, dict(values)
        return better

    def _save(self) -> None:
        """Hand the moment to the checkpointer, once per step, unless the losses before it were not finite."""
        if self._saved_step == self.state.step:
            return
        if not self.guard.losses_finite():
            self.guard.refuse(self, None, None)
        self.guard.check_weights(self)
        began, self._saved_step = perf_counter(), self.state.step
        self.state.scaler_skipped = self.engine.skipped()
        measured = self.state.closed_step if self.monitor.startswith("train/") else self.state.validated_step
        self.save(self.state.last.get(self.monitor) if measured == self.state.step else None)
        self._clock.leave_out(perf_counter() - began)

    def _poll(self) -> None:
        """End here, with a checkpoint of this very step, when a signal asked for it."""
        if self.interrupt.asked():
            self._save()
            self.interrupt.raise_at(self.state.step)

    def _log_step(self) -> None:
        """Values of this very step: the only place in an epoch where the loop waits for the device."""
        if not self.guard.losses_finite():
            self.guard.refuse(self, None, None)
        loss = self.engine.ranks.mean(self._loss.detach(), self._own)
        self._report.step(loss, float(self._norm), self._rates, self.engine.vitals())

    def _during_validation(self, batch: int) -> None:
        self.interrupt.raise_at(self.state.step)
        if perf_counter() > self._report.next_show:
            self._report.show("val", batch, len(self.val))  # type: ignore[arg-type]
