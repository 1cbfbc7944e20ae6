"""The training loop: the only one, for every model, precision and ensemble member."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import lru_cache
from time import perf_counter
from typing import Any, TypeVar

import torch

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.common.modules import mapped
from lightkit.finetune.tuning import NoTuning
from lightkit.trainer.audit.watch import NoWatch
from lightkit.trainer.callbacks import HOOKS, overriding
from lightkit.trainer.guard import Guard, RollBack
from lightkit.trainer.interrupt import AskedToEnd, Interrupted
from lightkit.trainer.learner import Learner
from lightkit.trainer.report import Reporter, rates_of
from lightkit.trainer.rescue import COMPUTING, Rescue, is_beyond_rescue
from lightkit.trainer.services import Services, Validator
from lightkit.trainer.state import State
from lightkit.trainer.step import Stepper, make_stepper
from lightkit.trainer.timed import passed

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class Trainer:
    """Trains one model, validates it and says when to save.

    ```
    until the last step:
        for each optimizer step of the epoch, from where the state stands:
            for each batch of its window: device → seed → autocast(task.step) → backward → metrics.update
            unscale, clip → optimizer → average → scheduler
            log, validate, save where due
        metrics.compute → log → validate → save
    ```

    Args:
        learner: The model, its data, and what trains it; its state tells where to go on.
        services: Logger, signals, clock, profiler and checkpoints of the run.
        monitor: Name of the value that decides what is best.
        mode: Whether `min` or `max` of it is better.
        guard: What to do about a loss that is not finite.
        tuning: What trains when; by default everything always does.
        watch: Looks now and then whether training does what it says.
        stepper: Makes the optimizer steps; by default those of one model, in the way that its optimizer wants.
    """

    def __init__(
        self,
        learner: Learner,
        services: Services | None = None,
        *,
        monitor: str = "val/loss",
        mode: str = "min",
        guard: Guard | None = None,
        tuning: NoTuning | None = None,
        watch: NoWatch | None = None,
        stepper: Stepper | None = None,
    ) -> None:
        self.learner, self.monitor, self.mode = learner, monitor, mode
        self.model, self.optimizer, self.scheduler = learner.network, learner.optimizer, learner.scheduler
        self.state, self.timetable, self.engine = learner.state, learner.timetable, learner.engine
        self.services = services = services or Services()
        self.guard, self.tuning = guard or Guard(self.engine.device), tuning or NoTuning()
        self.watch, self.stepper = watch or NoWatch(), stepper or make_stepper(learner, self.guard, services.spans)
        self.callbacks = [*learner.callbacks.values()]
        self._hooks = {hook: overriding(self.callbacks, hook) for hook in HOOKS}
        self.run = services.run
        self.logger, self.average = services.logger, learner.average
        self._clock, self._interrupt, self._span = services.clock, services.interrupt, services.spans.span
        self._report = Reporter(services.logger, self.state, self.timetable, self._clock)
        self._validator = Validator(learner, services, self.watch, self._report)
        self._rescue, self.rescued = Rescue(learner), False
        self._order = lru_cache(1)(lambda epoch: learner.data.train.in_order(epoch))
        self._norm: torch.Tensor | None = None
        self._rates: dict[str, float] = {}
        self._saved_step, self._saved_at = -1, perf_counter()

    @property
    def finished(self) -> bool:
        """Tell whether the last step was taken or something ended training."""
        return self.state.step >= self.timetable.total_steps or self.state.stop_reason is not None

    @property
    def paused(self) -> bool:
        """Tell whether training has come to where this part of the run ends, which is not the end of the whole."""
        state, timetable = self.state, self.timetable
        closed = state.samples_done < timetable.epoch_samples  # an epoch that is over was brought to its end
        return closed and timetable.pauses_at(step=state.step, epoch=state.epoch) and not self.finished

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
        self._report.values({name: float(value) for name, value in mapped(torch.Tensor.detach, dict(values)).items()})

    def rows(self) -> torch.Tensor:
        """See `Training.rows`."""
        begin = self.state.samples_done
        return self._order(self.state.epoch)[begin : begin + self.timetable.window(begin)]

    def parameters(self) -> dict[str, torch.Tensor]:
        """See `Training.parameters`."""
        return {name: weight for name, weight in self.learner.model.named_parameters() if weight.requires_grad}

    def gradients(self) -> dict[str, torch.Tensor]:
        """See `Training.gradients`."""
        found, true_size = self.parameters().items(), self.engine.precision.true_size
        return {name: true_size(weight.grad) for name, weight in found if weight.grad is not None}

    def fit(self) -> State:
        """Train from where the state stands to the end, or to where it is to pause.

        Returns:
            The counters at the end.

        Raises:
            UserError: The loss is no longer finite (exit code 3), or `monitor` names no value.
            Interrupted: A signal asked the run to end; the state was saved.
        """
        with ExitStack() as own:
            if self._hooks["on_exception"] or self._hooks["on_end"]:
                (self.services.scope or own).push(self._ended)
            self._call("on_fit_start")
            try:
                self._train()
            except (Interrupted, AskedToEnd):
                raise
            except BaseException as error:
                self._save_whole_step(error)
                raise
            if not self.paused:
                with self._span("tuning"):
                    self.tuning.finish(self.state.step)
                self._call("on_fit_end")
        return self.state

    def tested(self, values: dict[str, float]) -> None:
        """Tell the callbacks what the final test has measured."""
        self._call("on_test", values)

    def _ended(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        """Tell the callbacks how the run has ended; what they raise does not take the place of its error."""
        stopped = isinstance(error, (Interrupted, AskedToEnd, KeyboardInterrupt))
        well = "paused" if self.paused else "finished"
        try:
            if error is not None and not stopped:
                self._call("on_exception", error)
            self._call("on_end", well if error is None else "interrupted" if stopped else "failed")
        except Exception as second:
            if error is None:
                raise
            _LOG.warning("a callback fails where the run ends: %s", in_short(second))

    def _train(self) -> None:
        """Make the epochs that are still to do."""
        self._go_on()
        self._check_step()
        while not self.finished and not self.paused:
            try:
                self._epoch()
            except RollBack:
                self.guard.roll_back(self.learner)
                self._saved_step = -1
                self._save()
                self._saved_step = -1  # where an epoch ends at this step, that is still to come, and to be saved

    def _save_whole_step(self, error: BaseException) -> None:
        """Save the last whole step where an error ends training, if the error has left it whole; say what was done."""
        state, tell = self.state, self.services.rescues
        if tell is None or not state.step or is_beyond_rescue(error):
            return
        earlier = "lightkit resume goes on from the last checkpoint, if there is one"
        try:
            met = self.engine.ranks.meet(f"rescue/{state.step}/{self._rescue.phase}")
            owed = self._owed() if met else {}
            self.rescued = met and self._rescue.restore(owed)
            if self.rescued:
                self._save()
        except BaseException as second:  # the first error is the one to tell
            self.rescued = False
            tell(f"the last whole step could not be saved ({type(second).__name__}: {second}); {earlier}")
            return
        saved = (
            f"step {state.step}, the last that is whole, is saved: once the error is mended, lightkit resume goes on"
        )
        tell(saved if self.rescued else f"the error came while a step was being made, which is not saved: {earlier}")

    def _owed(self) -> dict[str, Any]:
        """Return what the log of this step is made of."""
        norm = None if self._norm is None else float(self._norm)
        loss, samples = float(self.stepper.loss.detach().mean()), self.stepper.samples
        return {"loss": loss, "samples": samples, "norm": norm, "rates": dict(self._rates)}

    def _pay(self) -> None:
        """Do what was due after the step of the checkpoint."""
        owed, self.state.owed = self.state.owed, {}
        self.stepper.loss, self.stepper.samples = torch.tensor(owed["loss"], dtype=torch.float64), owed["samples"]
        self._norm = None if owed["norm"] is None else torch.tensor(owed["norm"], dtype=torch.float64)
        self._rates = dict(owed["rates"])
        self._rescue.end_update()
        self._after_step()

    def _go_on(self) -> None:
        """Do what was due at the step of the checkpoint but not done when it was saved."""
        state = self.state
        if state.owed:
            self._pay()
        elif 0 < state.samples_done < self.timetable.epoch_samples and not self.finished and self._validation_due():
            self._finish_step()
        if state.step and self.finished and state.closed_step != state.step:
            self._end_epoch()

    def _epoch(self) -> None:
        """Make the optimizer steps of an epoch that are still to do, then end it."""
        state, data = self.state, self.learner.data.train
        with self._span("tuning"):
            self.tuning.train(self.model)
        read = data.epoch(state.epoch, state.samples_done, place=self.engine.place)
        with closing(self.engine.prefetch(read)) as batches:
            while state.samples_done < self.timetable.epoch_samples and not self.finished and not self.paused:
                try:
                    self._step(batches)
                except AskedToEnd:
                    self._poll()
                self._after_step()
        if not self.paused:
            self._end_epoch()

    def _step(self, batches: Iterator[Any]) -> None:
        """Make one optimizer step over a window of batches; each sample of the window counts the same."""
        state, timetable, spans = self.state, self.timetable, self.services.spans
        self._clock.leave_out(spans.before_step(state.step))
        if self.services.rescues:
            self._rescue.begin_step()
        self.stepper.begin()
        with self._span("tuning"):
            self.tuning.before_step(state.epoch, state.step)
        window, done, usable = timetable.window(state.samples_done), 0, True
        while done < window:
            batch, position = self._next(batches, fresh=not done), state.samples_done + done
            size = min(timetable.batch_size, window - done)
            done += size
            if not self.stepper.micro(batch, position=position, size=size, window=window, more=done < window):
                self._refuse(batch, position)
                usable = False
            elif self._hooks["on_batch"]:
                self._call("on_batch", self.stepper.loss.detach(), self.stepper.outputs)
            del batch  # its memory is free for the optimizer step, and for the next one
        logged = (state.step + 1) % timetable.log_steps == 0
        if usable:
            self._call("on_before_update")
        self._rescue.begin_update()
        self._norm = self.stepper.update(usable=usable, want_norm=logged)
        # Of this step: the schedule sets the rates of the next.
        self._rates = {**rates_of(self.optimizer), **getattr(self.stepper, "norms", {})} if logged else {}
        state.step += 1
        state.samples_done += window
        with self._span("optimizer"):
            self.scheduler.step()
        spans.after_step()

    def _next(self, batches: Iterator[Any], *, fresh: bool) -> Any:
        """Return the next batch, on the device.

        While nothing of the step is done yet (`fresh`), a signal ends the wait for it.
        """
        asked = perf_counter()
        with self._span("data"):
            batch = self._interrupt.wait(batches) if fresh else next(batches)
            self._clock.data_seconds += perf_counter() - asked
            return self.engine.move(batch)

    def _after_step(self) -> None:
        """Do what is due between two optimizer steps; at the end of an epoch `_end_epoch` does the rest."""
        state = self.state
        if self.services.rescues and self._rescue.phase != COMPUTING:  # else the wait for the first batch was ended
            self._rescue.end_update()
        self._call("on_step")
        if state.step % self.timetable.log_steps == 0:
            self.log_step()
        if perf_counter() > self._report.next_show:
            with self._span("logging"):
                batch = state.samples_done // self.timetable.batch_size
                self._report.show("train", batch, len(self.learner.data.train))
        if state.samples_done < self.timetable.epoch_samples and not self.finished:
            self._finish_step()
        self._rescue.end()
        self._check_step()  # last: whoever goes back to this state does none of the above again

    def _check_step(self) -> None:
        """Let the guard, and whoever watches, look at the state after a step."""
        with self._span("checks"):
            self.guard.on_step(self.learner)
            self.watch.on_step(self.learner)

    def _refuse(self, batch: Any = None, position: int | None = None) -> None:
        """Let the guard decide about losses that are not finite."""
        with self._span("checks"):
            self.guard.refuse(self.learner, batch, position)

    def _call(self, hook: str, *values: Any) -> None:
        """Call a hook of the callbacks that override it, in their order."""
        if called := self._hooks[hook]:
            with self._span("callbacks"):
                for callback in called:
                    getattr(callback, hook)(self, *values)

    def _log(self, values: dict[str, float]) -> None:
        """Log values of a split."""
        with self._span("logging"):
            self._report.values(values)

    def _finish_step(self) -> None:
        """Validate and save where that is due after a step in mid-epoch."""
        if self.services.rescues and self._validation_due():
            self._rescue.begin_closing()
        improved = self._validation_due() and self.take_validation(self._endable(self._validator.run))
        self._rescue.end()
        if self.finished:
            return  # early: `_end_epoch` is next, and saves
        if improved or self.paused or self.timetable.saves_after_step(self.state.step) or self._minutes_are_over():
            self._save()
        self._poll()

    def _minutes_are_over(self) -> bool:
        """Tell whether the last checkpoint, or the start, is as long ago as is asked for."""
        minutes, ranks = self.timetable.save_minutes, self.engine.ranks
        if minutes is None:
            return False
        own = perf_counter() - self._saved_at >= 60 * minutes
        return passed(own, self.state.step, ranks.agree if ranks.size > 1 else None, self.timetable.log_steps)

    def _validation_due(self) -> bool:
        return self.timetable.validates_after_step(self.state.step) and self.state.validated_step != self.state.step

    def _end_epoch(self) -> None:
        """Compute the training metrics, validate and save after the last step of an epoch, or of the run.

        The validation comes first: a run that is told to end in it has changed nothing yet, and does all of this again.
        """
        state, timetable, metrics = self.state, self.timetable, self.learner.metrics["train"]
        if self.services.rescues:
            self._rescue.begin_closing(epoch=True)
        with self._span("metrics"):
            values = metrics.compute()
            self.services.results("train", metrics.figures_data)
        whole = state.samples_done >= timetable.epoch_samples
        due = self.finished or self._validation_due() or (whole and timetable.validates_after_epoch(state.epoch + 1))
        if whole:
            self._endable(lambda: self.average.end_epoch(self.learner, self._interrupt))
        found = self._endable(self._validator.run) if due and state.validated_step != state.step else {}
        if whole:
            metrics.reset()
            state.epoch, state.samples_done = state.epoch + 1, 0
        improved = self.take_epoch(values)
        improved = self.take_validation(found) or improved
        state.closed_step = state.step
        self._rescue.end()
        saves = timetable.saves_after_epoch(state.epoch) or timetable.saves_after_step(state.step)
        if improved or saves or self.finished or self.paused:
            self._save()
        self._poll()

    def _endable(self, job: Callable[[], T]) -> T:
        """Do what a signal may end: the run then ends at this step."""
        try:
            return job()
        except (Interrupted, AskedToEnd):
            self._poll()
            raise

    def take_epoch(self, values: dict[str, float]) -> bool:
        """Log the training values of an epoch and let them decide; returns whether the monitored one is the best."""
        self._log(values)
        improved = self.monitor in values and self._judge(values)
        self._call("on_epoch", values)
        return improved

    def take_validation(self, values: dict[str, float]) -> bool:
        """Log the values of a validation and let them decide; returns whether the monitored one is the best so far."""
        self.state.validated_step = self.state.step
        if not values:
            return False
        self._log(values)
        improved = not self.monitor.startswith("train/") and self._judge(values)
        self._call("on_validation", values)
        return improved

    def _judge(self, values: dict[str, float]) -> bool:
        """Keep the best of the monitored value and hand it to the scheduler."""
        if self.monitor not in values:
            raise UserError("no such value", key="metrics.monitor", received=self.monitor, choices=values)
        value = values[self.monitor]
        self.scheduler.epoch_end(value)
        return self.state.keep_best(value, values, mode=self.mode)

    def _save(self) -> None:
        """Hand the moment to the checkpointer, once per step, unless the losses before it were not finite."""
        state = self.state
        if self._saved_step == state.step:
            return
        with self._span("checkpoint"):
            if not self.guard.losses_finite():
                self._refuse()
            self.guard.check_weights(self.learner)
            began, self._saved_step = perf_counter(), state.step
            self._saved_at = began
            state.scaler_skipped = self.engine.skipped()
            measured = state.closed_step if self.monitor.startswith("train/") else state.validated_step
            path = self.services.save(state.last.get(self.monitor) if measured == state.step else None)
            self._clock.leave_out(perf_counter() - began)
        if path is not None:
            self._call("on_save", path)

    def _poll(self) -> None:
        """End here, with a checkpoint of this very step, when a signal asked for it."""
        if self._interrupt.asked():
            self._save()
            self._interrupt.raise_at(self.state.step)

    def log_step(self) -> None:
        """Log values of this very step: the only place in an epoch where the loop waits for the device."""
        with self._span("logging"):
            if not self.guard.losses_finite():
                self._refuse()
            loss = self.engine.ranks.mean(self.stepper.loss.detach(), self.stepper.samples)
            norm = float("nan") if self._norm is None else float(self._norm)
            self._report.step(loss, norm, self._rates, self.engine.vitals())
