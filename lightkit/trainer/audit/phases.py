"""Proof that a phase of a fine-tuning did what it says: what should move did, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lightkit.common.text import counted
from lightkit.device.ranks import Ranks
from lightkit.finetune.phases import Phase
from lightkit.finetune.plan import FinetunePlan, live_table
from lightkit.finetune.tables import PhaseTable, format_names, split_by_group
from lightkit.trainer.audit.record import EARLY_STEPS, UNUSED, PhaseRecord
from lightkit.trainer.audit.rules import (
    ENOUGH_STEPS,
    announce,
    gradient_faults,
    group_options,
    membership_faults,
    mode_faults,
    option_faults,
    rate_faults,
    state_faults,
)


class FinetuneAudit:
    """Compares every phase of a run with what it was to do.

    Args:
        model: The network without wrappers.
        optimizer: Its optimizer.
        action: `fail` ends the run, `warn` reports and goes on, `none` looks at nothing.
        report: Takes lines for people: notes, and with `warn` what else would end the run.
        plan: What was planned; every phase is compared with its part of it.
        phases: All phases, to know what never trains.
        must_train: Names of parameters that some phase has to train: those of a new output layer.
        rate_scale: Gives what all rates are multiplied with besides the schedule; None where the plan's rates no longer
            hold.
        scheduled_rates: Gives the rates that the schedule has set, in the order of the groups; None where it cannot.
        scheduled_options: Options of the groups that the schedule changes; None for any.
        gradient_scale: Gives what losses are multiplied with.
        skipped: Gives the number of optimizer steps left out so far.
        on_phase_end: Called when a phase has ended and `table` knows it.
        ranks: The processes that look together, each at its part of the model; None where this one sees all of it.

    Raises:
        UserError: No phase trains something of `must_train`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        action: str = "fail",
        report: Callable[[str], None] = lambda line: None,
        plan: FinetunePlan | None = None,
        phases: Sequence[Phase] = (),
        must_train: Collection[str] = (),
        rate_scale: Callable[[], float | None] = lambda: 1.0,
        scheduled_rates: Callable[[], Sequence[float] | None] = lambda: None,
        scheduled_options: Collection[str] | None = (),
        gradient_scale: Callable[[], float] = lambda: 1.0,
        skipped: Callable[[], int] = lambda: 0,
        on_phase_end: Callable[[], None] = lambda: None,
        ranks: Ranks | None = None,
    ) -> None:
        self.model, self.optimizer, self.action, self.report = model, optimizer, action, report
        self.plan, self.rate_scale, self.skipped = plan, rate_scale, skipped
        self.scheduled_rates, self.scheduled_options = scheduled_rates, scheduled_options
        self.gradient_scale, self.on_phase_end, self.ranks = gradient_scale, on_phase_end, ranks or Ranks()
        self._table: list[dict[str, Any]] = []
        self._record: PhaseRecord | None = None
        self._last_begin: int | None = None
        self._from_start = False
        trained = frozenset[str]().union(*(phase.trainable for phase in phases))
        idle = [name for name in must_train if phases and name not in trained]
        found = [f"new, but no phase trains it: {format_names(idle)}"] if idle else []
        for table in plan.phases if plan else ():
            found += [f"{table.phase}: {line}" for line in table.groups_without_rate()]
        if found and action != "none":
            self._report_faults(found, "before the first step", set())

    def begin(self, phase: Phase, expected: PhaseTable | None = None, *, epoch: int, step: int) -> None:
        """Check that everything is as a phase says, and watch it from here on.

        A resumed run may begin in the middle of a phase.

        Args:
            phase: What is to train from here on; the network is in that state already.
            expected: What was planned for it; None takes it from the plan.
            epoch: Epoch under way, counted from 0.
            step: Optimizer steps taken in the run.

        Raises:
            UserError: The network, the optimizer or the moment is not as the phase says.
        """
        if self.action == "none":
            return
        self._close_record()
        if expected is None and self.plan is not None:
            expected = self.plan.find(phase.name)
        zero_rate = frozenset(row.group for row in (expected.rows if expected else ()) if row.rate == 0.0)
        faults = self._moment_faults(phase, expected, epoch=epoch, step=step)
        faults += state_faults(self.model, self.optimizer, phase, zero_rates=zero_rate)
        if expected is not None:
            live = live_table(self.model, self.optimizer, phase=phase.name, step=step)
            faults += expected.differences(live, rate_scale=self.rate_scale())
        reported: set[str] = set()
        self._report_faults(faults, f"{phase.name}, before step {step}", reported)
        planned = {"weight_decay"} if expected is not None else set()
        may_change = None if self.scheduled_options is None else {*self.scheduled_options, *planned}
        self._record = PhaseRecord(
            self.model,
            phase,
            split_by_group(self.model, self.optimizer.param_groups, phase.trainable),
            first_step=step,
            skipped=self.skipped(),
            zero_rate=zero_rate,
            expected=expected,
            options=group_options(self.optimizer.param_groups, without=may_change),
            reported=reported,
            gradient_scale=self.gradient_scale,
            ranks=self.ranks,
        )
        self._record.update_rates(self.optimizer.param_groups)
        self._report_notes(self._record, expected.groups_that_stop() if expected else [])

    def after_steps(self, step: int) -> None:
        """Look at the beginning of each epoch, and early in the first steps of a phase.

        May be called after each step: most calls do nothing.

        Args:
            step: Optimizer steps taken in the run.

        Raises:
            UserError: Something frozen moved, no gradient reaches what trains, or the optimizer is not as planned.
        """
        record = self._record
        if record is None:
            return
        if record.early_steps and step - record.first_step >= record.early_steps[0]:
            self._look_early(record, step)
        if record.expected is not None and step in record.expected.steps[1:]:
            record.update_rates(self.optimizer.param_groups)
            faults = [*self._network_faults(record.phase), *self._optimizer_faults(record, step)]
            self._report_faults(faults, f"{record.phase.name}, after step {step}", record.reported)

    def _look_early(self, record: PhaseRecord, step: int) -> None:
        """Look whether anything frozen moved and whether gradients come, before the phase ends."""
        first = record.early_steps.pop(0) == EARLY_STEPS[0]
        record.update_gradients()
        record.update_rates(self.optimizer.param_groups)
        faults = list[str]()
        if first:
            faults += record.frozen_faults(record.find_changed(only_frozen=True))
            faults += self._network_faults(record.phase)
        any_gradient = bool(record.gradients.seen)
        silent = record.groups_without_gradient() if any_gradient and self._steps_taken(record, step) > 0 else []
        lines = [f"no gradient has reached {what} in {counted(step - record.first_step, 'step')}" for what in silent]
        if not record.early_steps:
            faults += [f"{line}; {UNUSED}" for line in lines]
        elif first:
            self._report_notes(record, lines)
        if any_gradient and not silent:
            record.early_steps.clear()
        self._report_faults(faults, f"{record.phase.name}, after step {step}", record.reported)

    def end(self, step: int) -> None:
        """Judge the phase at its end, or at that of training.

        Args:
            step: Optimizer steps taken in the run.

        Raises:
            UserError: Something moved that is frozen, or did not that should move.
        """
        record = self._record
        if record is None:
            return
        record.update_gradients()
        record.update_rates(self.optimizer.param_groups)
        changed, notes = record.find_changed(), list[str]()
        faults = [
            *record.frozen_faults(changed),
            *self._network_faults(record.phase),
            *self._optimizer_faults(record, step),
        ]
        steps = self._steps_taken(record, step) if record.took_step(changed) else 0
        enough = steps >= ENOUGH_STEPS
        for group in record.groups:
            self._table.append(record.to_json(group, changed, step))
            bad, fine = record.judge_group(group, changed, enough=enough) if steps > 0 else ([], [])
            faults, notes = faults + bad, notes + fine
        zero = record.mostly_zero_gradients() if enough and not record.gradients.nonfinite else []
        if zero:
            faults.append(f"only gradients of 0 reached half of what trains or more: {format_names(zero)}")
        self._close_record()
        self.on_phase_end()
        self._report_notes(record, [*notes, *record.buffer_notes(changed)])
        self._report_faults(faults, f"{record.phase.name}, until step {step}", record.reported)

    def table(self) -> list[dict[str, Any]]:
        """Return what was found of every phase that ended, a row for each of its groups, as plain values."""
        return [dict(row) for row in self._table]

    def _moment_faults(self, phase: Phase, expected: PhaseTable | None, *, epoch: int, step: int) -> list[str]:
        """Return a line if a phase begins too early or too late.

        A resumed run, and one that went back, may begin in the middle of a phase.
        """
        if self._last_begin is None:
            self._from_start = step == 0
        going_on = self._last_begin is not None and step > self._last_begin
        self._last_begin = step
        when = f"begins with {phase.name}, but this is epoch {epoch}, step {step}"
        if not phase.has_begun(epoch, step):
            return [f"the phase {when}: too early"]
        late = epoch > phase.epoch if phase.epoch is not None else step > (phase.step or 0)
        if expected is not None and self._from_start:  # a resumed run may have epochs of other lengths
            late = late or step > expected.steps[0]
        return [f"the phase {when}: too late"] if going_on and late else []

    def _close_record(self) -> None:
        if self._record is not None:
            self._record.gradients.close()
        self._record = None

    def _steps_taken(self, record: PhaseRecord, step: int) -> int:
        """Return the number of optimizer steps of the phase that were not left out."""
        return step - record.first_step - (self.skipped() - record.skipped)

    def _network_faults(self, phase: Phase) -> list[str]:
        """List the faults of the network that may also come in the middle of a phase."""
        return [
            *gradient_faults(self.model, phase),
            *membership_faults(self.model, self.optimizer),
            *mode_faults(self.model, phase),
        ]

    def _optimizer_faults(self, record: PhaseRecord, step: int) -> list[str]:
        """List where the optimizer is no longer as planned, or as it was when the phase began."""
        groups, expected, scale = self.optimizer.param_groups, record.expected, self.rate_scale()
        faults = option_faults(record.options, groups)
        if expected is not None:
            live = live_table(self.model, self.optimizer, phase=record.phase.name, step=step)
            faults += expected.differences(live, rate_scale=scale, decay=self.scheduled_options is not None)
        # With the rates of a step that begins another phase its own beginning is concerned.
        begins_another = self.plan is not None and any(step == table.steps[0] for table in self.plan.phases)
        compared = expected is not None and scale is not None and expected.knows_rates(step)
        return faults if begins_another or compared else faults + rate_faults(self.scheduled_rates(), groups)

    def _report_notes(self, record: PhaseRecord, lines: Iterable[str]) -> None:
        """Report what does not end the run and has not been reported yet."""
        for line in lines:
            text = f"{record.phase.name}: {line}"
            if text not in record.reported:
                record.reported.add(text)
                self.report(f"audit: {text}")

    def _report_faults(self, faults: Iterable[str], when: str, reported: set[str]) -> None:
        """Raise or report what any process has found and has not been reported yet."""
        lines = [line for line in self.ranks.unite(faults) if line not in reported]
        ends = None
        if self.action == "fail":
            ends = "not what was to be trained", "finetune.audit", "finetune.audit=warn"
            if lines:
                self._close_record()
        reported.update(lines)
        announce(lines, when, who="audit", tell=self.report, ends=ends)
