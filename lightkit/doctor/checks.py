"""All checks of a run before it starts, in the order in which they are made; none is imported before its turn."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from lightkit.common.errors import UserError
from lightkit.common.failures import is_out_of_memory
from lightkit.diagnostics.memory import release
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.first_steps import NAME as FIRST_STEPS
from lightkit.doctor.training.first_steps import failure

Check = Callable[[Patient], Iterator[Finding]]
"""Looks at a patient and yields what it finds, also that all is well; what it has no time for it leaves out."""

CHECKS: tuple[tuple[str, str], ...] = (
    ("machine", "lightkit.doctor.machine:check"),
    (FIRST_STEPS, "lightkit.doctor.training.first_steps:check"),
    ("labels", "lightkit.doctor.data.labels:check"),
    ("splits", "lightkit.doctor.data.overlap:check"),
    ("order", "lightkit.doctor.data.order:check"),
    ("answers", "lightkit.doctor.data.answers:check"),
    ("pictures", "lightkit.doctor.data.pictures:check"),
    ("features", "lightkit.doctor.data.columns:check"),
    ("leaks", "lightkit.doctor.data.leaks:check"),
    ("scale", "lightkit.doctor.data.scale:check"),
    ("augmentation", "lightkit.doctor.data.augmentation:check"),
    ("initial loss", "lightkit.doctor.training.initial:check"),
    ("loss", "lightkit.doctor.training.objective:check"),
    ("loss of rows", "lightkit.doctor.training.loss:check"),
    ("structure", "lightkit.doctor.training.structure:check"),
    ("gradients", "lightkit.doctor.training.gradients:check"),
    ("activations", "lightkit.doctor.training.activations:check"),
    ("causality", "lightkit.doctor.training.causality:check"),
    ("evaluation", "lightkit.doctor.training.evaluation:check"),
    ("checkpoint", "lightkit.doctor.training.saving:check"),
    ("speed", "lightkit.doctor.training.speed:check"),
    ("one batch", "lightkit.doctor.training.overfit:check"),
    ("baselines", "lightkit.doctor.baselines:check"),
)
"""Name of a check, and `module:function` of it; the quick ones first, as time may run out."""
_AS_A_RUN = ("evaluation", "checkpoint")
"""Checks that do what a run does: what they cannot do ends it."""


def find_check(place: str) -> Check:
    """Import a check by `module:function`."""
    module, _, function = place.partition(":")
    found: Check = getattr(importlib.import_module(module), function)
    return found


def examine(patient: Patient, tell: Callable[[str], None] = lambda line: None) -> Iterator[Finding]:
    """Make all checks for which there is time, and yield what they find.

    A check that fails itself is a finding too, and keeps no other from being made. The first steps of the run are made
    however little time there is: what would end the run must not pass for lack of it.

    Args:
        patient: The run.
        tell: Called with the name of each check before it is made.
    """
    late = list[str]()
    for name, place in CHECKS:
        if patient.seconds_left() <= 0 and name != FIRST_STEPS:
            late.append(name)
            yield Finding(name, "skipped", "no time was left for it")
            continue
        tell(name)
        try:
            for finding in find_check(place)(patient):
                patient.found.append(finding)
                yield finding
        except Exception as error:
            patient.found.append(_failed(patient, name, error))
            yield patient.found[-1]
        release()  # what the next one needs on a GPU
    if late:
        few = 2 * len(late) > len(CHECKS)
        measured = f"there was none for {len(late)} of {len(CHECKS)} checks"
        why = "hardly anything was looked at, so nothing can be said of the run" if few else ""
        yield Finding("time", "error" if few else "note", measured, why, fix="a longer --seconds" if few else "")


def _failed(patient: Patient, name: str, error: Exception) -> Finding:
    """Say what it means that a check ended in an error."""
    if patient.step_error:
        return Finding(name, "skipped", "a training step fails")
    if name in _AS_A_RUN or isinstance(error, UserError) or is_out_of_memory(error):
        return failure(error, name)
    said = failure(error, name)
    why = "the run's own steps go through; batches of another size, or with other inputs, do not"
    return replace(said, status="note", measured=f"the check itself failed: {said.measured}", why=why)
