"""Proof that a phase of a fine-tuning did what it says: what should move did, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lightkit.common.errors import UserError
from lightkit.common.exit_codes import AUDIT_FAILED
from lightkit.finetune.audit.judging import EARLY, SURE, UNUSED, PhaseRecord
from lightkit.finetune.audit.moments import never_moving, stopping
from lightkit.finetune.audit.parts import split
from lightkit.finetune.audit.peers import Alone, PeerGroup
from lightkit.finetune.audit.plan import PhaseTable, Plan, live_table
from lightkit.finetune.audit.settings import option_faults, options_of, rate_faults
from lightkit.finetune.audit.structure import faults, gradient_faults, membership_faults, mode_faults
from lightkit.finetune.audit.wording import some
from lightkit.finetune.phases import Phase


class AuditError(UserError):
    """A run does not train what it was to train."""


class Audit:
    """Compares every phase of a run with what it was to do.

    Args:
        model: The network without wrappers.
        optimizer: Its optimizer.
        action: `fail` ends the run, `warn` reports and goes on, `none` looks at nothing.
        report: Takes lines for people: notes, and with `warn` what else would end the run.
        plan: What was planned; every phase is compared with its part of it.
        phases: All phases, to know what never trains.
        must_train: Names of parameters that some phase has to train: those of a new output layer.
        rate_scale: Tells what all rates are multiplied with besides the schedule; None where the plan's rates no longer
            hold.
        due: Tells the rates that the schedule has set, in the order of the groups; None where it cannot.
        scheduled: Options of the groups that the schedule changes; None for any.
        gradient_scale: Tells what losses are multiplied with.
        skipped: Tells how many optimizer steps were left out so far.
        ended: Called when a phase has ended and `table` knows it.
        witnesses: The processes that look together, each at its part of the model; None where this one sees all of it.
        exit_code: Exit status of a run that fails.

    Raises:
        AuditError: No phase trains something of `must_train`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        action: str = "fail",
        report: Callable[[str], None] = lambda line: None,
        plan: Plan | None = None,
        phases: Sequence[Phase] = (),
        must_train: Collection[str] = (),
        rate_scale: Callable[[], float | None] = lambda: 1.0,
        due: Callable[[], Sequence[float] | None] = lambda: None,
        scheduled: Collection[str] | None = (),
        gradient_scale: Callable[[], float] = lambda: 1.0,
        skipped: Callable[[], int] = lambda: 0,
        ended: Callable[[], None] = lambda: None,
        witnesses: PeerGroup | None = None,
        exit_code: int = AUDIT_FAILED,
    ) -> None:
        self.model, self.optimizer, self.action, self.report = model, optimizer, action, report
        self.plan, self.rate_scale, self.skipped, self.exit_code = plan, rate_scale, skipped, exit_code
        self.due, self.scheduled, self.gradient_scale = due, scheduled, gradient_scale
        self.ended, self.witnesses = ended, witnesses or Alone()
        self._rows: list[dict[str, Any]] = []
        self._watch: PhaseRecord | None = None
        self._last_begin: int | None = None
        self._from_start = False
        trained = frozenset[str]().union(*(phase.trainable for phase in phases))
        idle = [name for name in must_train if phases and name not in trained]
        found = [f"new, but no phase trains it: {some(idle)}"] if idle else []
        found += [f"{table.phase}: {line}" for table in (plan.phases if plan else ()) for line in never_moving(table)]
        if found and action != "none":
            self._settle(found, "before the first step", set())

    def begin(self, phase: Phase, expected: PhaseTable | None = None, *, epoch: int, step: int) -> None:
        """A phase begins, or a resumed run is in the middle of it.

        Args:
            phase: What is to train from here on; the network is in that state already.
            expected: What was planned for it; None takes it from the plan.
            epoch: Epoch under way, counted from 0.
            step: Optimizer steps taken in the run.

        Raises:
            AuditError: The network, the optimizer or the moment is not as the phase says.
        """
        if self.action == "none":
            return
        self._drop()
        if expected is None and self.plan is not None:
            expected = self.plan.find(phase.name)
        planned = expected.rows if expected else ()
        found = self._late(phase, expected, epoch=epoch, step=step)
        found += faults(self.model, self.optimizer, phase, zero_rates={r.group for r in planned if r.rate == 0.0})
        if expected is not None:
            live = live_table(self.model, self.optimizer, phase=phase.name, step=step)
            found += expected.differences(live, rate_scale=self.rate_scale())
        told: set[str] = set()
        self._settle(found, f"{phase.name}, before step {step}", told)
        self._watch = PhaseRecord(
            self.model,
            phase,
            split(self.model, self.optimizer.param_groups, phase.trainable),
            began=step,
            skipped=self.skipped(),
            idle=frozenset(row.group for row in planned if row.rate == 0.0),
            expected=expected,
            options=self._options(expected),
            told=told,
            gradient_scale=self.gradient_scale,
            witnesses=self.witnesses,
        )
        self._watch.see_rates(self.optimizer.param_groups)
        self._note([f"{phase.name}: {line}" for line in (stopping(expected) if expected else [])], told)

    def after_steps(self, step: int) -> None:
        """Look at the beginning of each epoch, and early in the first steps of a phase.

        May be called after each step: most calls do nothing.

        Args:
            step: Optimizer steps taken in the run.

        Raises:
            AuditError: Something frozen moved, no gradient reaches what trains, or the optimizer is not as planned.
        """
        watch = self._watch
        if watch is None:
            return
        if watch.checks and step - watch.began >= watch.checks[0]:
            self._look_early(watch, step)
        if watch.expected is not None and step in watch.expected.steps[1:]:
            watch.see_rates(self.optimizer.param_groups)
            found = [*self._structure(watch.phase), *self._live(watch, step)]
            self._settle(found, f"{watch.phase.name}, after step {step}", watch.told)

    def _look_early(self, watch: PhaseRecord, step: int) -> None:
        first = watch.checks.pop(0) == EARLY[0]
        watch.read()
        watch.see_rates(self.optimizer.param_groups)
        found = [*watch.stirred(watch.changed(resting=True)), *self._structure(watch.phase)] if first else []
        silent = watch.silent() if watch.gradients.touched and self._taken(watch, step) > 0 else []
        lines = [f"no gradient has reached {what} in {step - watch.began} steps" for what in silent]
        if not watch.checks:
            found += [f"{line}; {UNUSED}" for line in lines]
        elif first:
            self._note([f"{watch.phase.name}: {line}" for line in lines], watch.told)
        if watch.gradients.touched and not silent:
            watch.checks.clear()
        self._settle(found, f"{watch.phase.name}, after step {step}", watch.told)

    def end(self, step: int) -> None:
        """The phase ends, or training does.

        Args:
            step: Optimizer steps taken in the run.

        Raises:
            AuditError: Something moved that should rest, or did not that should move.
        """
        watch = self._watch
        if watch is None:
            return
        watch.read()
        watch.see_rates(self.optimizer.param_groups)
        changed, notes = watch.changed(), list[str]()
        found = [*watch.stirred(changed), *self._structure(watch.phase), *self._live(watch, step)]
        steps = self._taken(watch, step) if watch.stepped(changed) else 0
        for part in watch.parts:
            self._rows.append(watch.record(part, changed, step))
            bad, fine = watch.judged(part, changed, sure=steps >= SURE) if steps > 0 else ([], [])
            found, notes = found + bad, notes + fine
        dull = watch.dull() if steps >= SURE and not watch.gradients.broken else []
        found += [f"only gradients of 0 reached half of what trains or more: {some(dull)}"] if dull else []
        self._drop()
        self.ended()
        self._note([f"{watch.phase.name}: {line}" for line in [*notes, *watch.drifting(changed)]], watch.told)
        self._settle(found, f"{watch.phase.name}, until step {step}", watch.told)

    def table(self) -> list[dict[str, Any]]:
        """What was found of every phase that ended, a row for each of its groups, as plain values."""
        return [dict(row) for row in self._rows]

    def _late(self, phase: Phase, expected: PhaseTable | None, *, epoch: int, step: int) -> list[str]:
        """Whether it is the moment. A resumed run, and one that went back, may begin in the middle of a phase."""
        if self._last_begin is None:
            self._from_start = step == 0
        going_on = self._last_begin is not None and step > self._last_begin
        self._last_begin = step
        when = f"begins with {phase.name}, but this is epoch {epoch}, step {step}"
        if not phase.reached(epoch, step):
            return [f"the phase {when}: too early"]
        late = epoch > phase.epoch if phase.epoch is not None else step > (phase.step or 0)
        if expected is not None and self._from_start:  # a resumed run may have epochs of other lengths
            late = late or step > expected.steps[0]
        return [f"the phase {when}: too late"] if going_on and late else []

    def _drop(self) -> None:
        if self._watch is not None:
            self._watch.gradients.close()
        self._watch = None

    def _taken(self, watch: PhaseRecord, step: int) -> int:
        """Optimizer steps of the phase that were not left out."""
        return step - watch.began - (self.skipped() - watch.skipped)

    def _structure(self, phase: Phase) -> list[str]:
        """What may also go wrong in the middle of a phase."""
        return [
            *gradient_faults(self.model, phase),
            *membership_faults(self.model, self.optimizer),
            *mode_faults(self.model, phase),
        ]

    def _options(self, expected: PhaseTable | None) -> dict[str, dict[str, Any]]:
        """What is to stay as it is in the groups, besides what the plan says of them."""
        planned = {"weight_decay"} if expected is not None else set()
        but = None if self.scheduled is None else {*self.scheduled, *planned}
        return options_of(self.optimizer.param_groups, but=but)

    def _live(self, watch: PhaseRecord, step: int) -> list[str]:
        """Where the optimizer is no longer as planned, or as it was when the phase began."""
        groups, expected = self.optimizer.param_groups, watch.expected
        scale = self.rate_scale()
        found = option_faults(watch.options, groups)
        if expected is not None:
            live = live_table(self.model, self.optimizer, phase=watch.phase.name, step=step)
            found += expected.differences(live, rate_scale=scale, decay=self.scheduled is not None)
        # With the rates of a step that begins another phase its own beginning is concerned.
        next_phase = self.plan is not None and any(step == table.steps[0] for table in self.plan.phases)
        told = next_phase or (expected is not None and scale is not None and expected.tells(step))
        return found if told else found + rate_faults(self.due(), groups)

    def _note(self, lines: Iterable[str], told: set[str]) -> None:
        for line in lines:
            if line not in told:
                told.add(line)
                self.report(f"audit: {line}")

    def _settle(self, found: Iterable[str], when: str, told: set[str]) -> None:
        """Raise or report what any process has found and has not been told yet."""
        lines = [line for line in self.witnesses.unite(found) if line not in told]
        if lines and self.action == "fail":
            self._drop()
            text = "".join(f"\n      {line}" for line in lines)
            fix = "finetune.audit=warn goes on all the same"
            raise AuditError(
                f"not what was to be trained ({when}){text}", key="finetune.audit", fix=fix, exit_code=self.exit_code
            )
        told.update(lines)
        for line in lines:
            self.report(f"audit ({when}): {line}")
