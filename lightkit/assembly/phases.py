"""The phases of a run as a plan for people, and as what the loop holds to."""

from __future__ import annotations

from collections.abc import Callable

from omegaconf import DictConfig

from lightkit.device.ranks import Ranks
from lightkit.device.stepping import take_step
from lightkit.finetune.phases import Phase
from lightkit.finetune.plan import Plan, build_plan, phase_steps, plain_phases, probe_steps
from lightkit.finetune.tuning import NoTuning, Tuning
from lightkit.optim.wrapped import alters, due, rate_scale, rates
from lightkit.trainer.audit.phases import FinetuneAudit
from lightkit.trainer.learner import Learner


def phases_of(parts: Learner) -> tuple[Phase, ...]:
    """Return the phases, which say what trains when; in plain training there is one."""
    return parts.made.prepared.phases if parts.made.prepared else plain_phases(parts.model)


def build_plan_of(parts: Learner) -> Plan:
    """Plan what will train, at which rate and when."""
    phases, timetable = phases_of(parts), parts.timetable
    steps = phase_steps(phases, steps_per_epoch=timetable.steps_per_epoch, total_steps=timetable.total_steps)
    wanted = sorted({step for moments in steps for step in moments} | probe_steps(steps, timetable.total_steps))
    found = rates(parts.scheduler, wanted)
    scale = parts.scheduler.rate_scale  # which the audit counts in again as it stands then
    known = None if found is None else {step: [r / scale for r in now] for step, now in zip(wanted, found)}
    return build_plan(
        parts.model,
        parts.optimizer,
        phases,
        steps=steps,
        rates=known,
        frozen_rules=("finetune.freeze",) if parts.made.prepared else (),
        take_step=take_step,
    )


def notes_on_plan(cfg: DictConfig, parts: Learner) -> list[str]:
    """Note where it is not known in which order layers run, and where random weights are frozen.

    Weights are random where neither a file nor the model itself brings pretrained ones.
    """
    given = cfg.finetune.get("weights", {}).get("path") or cfg.model.get("pretrained") or cfg.model.get("weights")
    some = len(phases_of(parts)[0].trainable) < len(list(parts.model.parameters()))
    notes = list(parts.made.order_notes)
    if parts.made.prepared is not None and some and not given:
        notes.append("no pretrained weights are given: what is frozen stays as it was drawn")
    return notes


def build_tuning(
    parts: Learner,
    plan: Plan,
    *,
    audit: str,
    report: Callable[[str], None],
    skipped: Callable[[], int],
    on_phase_end: Callable[[], None] = lambda: None,
    ranks: Ranks | None = None,
) -> NoTuning:
    """Build what freezes and unfreezes the network by its phases, and audits it; in plain training it does nothing.

    Args:
        parts: The parts of the run.
        plan: What the audit compares the live objects with.
        audit: What happens where they differ: `fail`, `warn` or `none`.
        report: Takes lines for people.
        skipped: Tells how many optimizer steps were left out so far.
        on_phase_end: Called when the audit has looked at a phase that ended.
        ranks: The processes that audit together, where each holds a part of the model.

    Raises:
        UserError: A new output layer is never trained.
    """
    prepared = parts.made.prepared
    if prepared is None:
        return NoTuning()
    auditor = FinetuneAudit(
        parts.model,
        parts.optimizer,
        action=audit,
        report=report,
        plan=plan,
        phases=prepared.phases,
        must_train=prepared.fresh,
        rate_scale=lambda: rate_scale(parts.scheduler),
        scheduled_rates=lambda: due(parts.scheduler),
        scheduled_options=alters(parts.scheduler),
        gradient_scale=lambda: parts.engine.vitals().get("amp/scale", 1.0),
        skipped=skipped,
        on_phase_end=on_phase_end,
        ranks=ranks,
    )
    return Tuning(parts.model, prepared.phases, auditor=None if audit == "none" else auditor)
