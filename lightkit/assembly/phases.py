"""The phases of a run as a plan for people and as what the loop holds to, and what the patterns of its keys match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from lightkit.common.modules import inside
from lightkit.common.patterns import Matched
from lightkit.common.stepping import take_step
from lightkit.config import to_plain
from lightkit.device.ranks import Ranks
from lightkit.device.recompute import recomputed
from lightkit.finetune.phases import Phase
from lightkit.finetune.plan import FinetunePlan, build_plan, phase_steps, plain_phases, probe_steps
from lightkit.finetune.tuning import NoTuning, Tuning
from lightkit.optim.groups import matched_rules
from lightkit.optim.wrapped import alters, due, rate_scale, rates
from lightkit.trainer.audit.phases import FinetuneAudit
from lightkit.trainer.learner import Learner


def phases_of(parts: Learner) -> tuple[Phase, ...]:
    """Return the phases, which say what trains when; in plain training there is one."""
    return parts.made.prepared.phases if parts.made.prepared else plain_phases(parts.model)


def build_plan_of(parts: Learner) -> FinetunePlan:
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
    plan: FinetunePlan,
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


COLUMNS = ["key", "pattern", "modules", "tensors", "parameters"]


@dataclass(frozen=True)
class Match:
    """A pattern with what it stands for."""

    found: Matched
    """The pattern, and the names it stands for."""
    names: tuple[str, ...]
    """Names of the parameters, of modules those in them."""
    parameters: int
    """Number of elements in them."""

    def cells(self) -> list[str]:
        """Return the cells of a table's row, in the order of `COLUMNS`."""
        key, pattern, names, modules = self.found
        return [key, pattern, f"{len(names):,}" if modules else "", f"{len(self.names):,}", f"{self.parameters:,}"]

    def to_json(self) -> dict[str, Any]:
        """Return the pattern and all matched names as plain values."""
        key, pattern, names, modules = self.found
        listed = {"modules": list(names)} if modules else {}
        return {"key": key, "pattern": pattern, **listed, "names": list(self.names), "parameters": self.parameters}


def matches_of(cfg: DictConfig, parts: Learner) -> list[Match]:
    """List the patterns of `optim`, `finetune` and `device`, in this order, with what they match.

    Parameters have the names they had before anything was injected; a tensor with several names counts once.
    """
    prepared = parts.made.prepared
    aliases = prepared.original_names if prepared else {}
    elements = {aliases.get(name, name): tensor.numel() for name, tensor in parts.model.named_parameters()}
    trained = {aliases.get(name, name) for name in (prepared.trained if prepared else ())}
    of_rules = [] if prepared else matched_rules(parts.model, to_plain(cfg.optim.get("rules") or []))
    of_device = recomputed(parts.model, parts.engine.switches.activation_checkpointing)
    own = set(elements) - set(prepared.injected if prepared else ())
    every = [*of_rules, *(prepared.matched if prepared else ()), *of_device]
    matches = []
    for found in every:
        names = found.names
        if prepared and found.key.startswith("optim."):  # what is frozen is in no group
            names = tuple(name for name in names if name in trained)
        if found.modules:
            within = (name for name in elements if name in own)
            names = tuple(name for name in within if any(inside(name, path) for path in found.names))
        matches.append(Match(found, names, sum(elements[name] for name in names)))
    return matches
