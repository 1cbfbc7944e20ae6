"""All checks of a run before it starts, in the order in which they are made; none is imported before its turn."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, is_out_of_memory
from lightkit.diagnostics.memory import release
from lightkit.doctor.after.traceback import explain
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient

Check = Callable[[Patient], Iterator[Finding]]
"""Looks at a patient and yields what it finds, also that all is well; what it has no time for it leaves out."""

CHECKS: tuple[tuple[str, str], ...] = (
    ("machine", "lightkit.doctor.machine:check"),
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


_ENDS = "a run would end here too"


def find_check(place: str) -> Check:
    """Import a check by `module:function`."""
    module, _, function = place.partition(":")
    found: Check = getattr(importlib.import_module(module), function)
    return found


def examine(patient: Patient, tell: Callable[[str], None] = lambda line: None) -> Iterator[Finding]:
    """Make all checks for which there is time, and yield what they find.

    A check that fails itself is a finding too, and keeps no other from being made.

    Args:
        patient: The run.
        tell: Called with the name of each check before it is made.
    """
    told = False
    for name, place in CHECKS:
        if patient.seconds_left() <= 0:
            yield Finding(name, "skipped", "no time was left for it")
            continue
        tell(name)
        try:
            yield from find_check(place)(patient)
        except UserError as error:
            yield Finding(name, "error", error.what, _ENDS, error.key or "", error.fix or "")
        except Exception as error:
            if is_out_of_memory(error):
                yield Finding(name, "error", "memory ran out", _ENDS, "data.batch_size", "device.batch_size=auto")
            elif patient.step_error:
                yield from [] if told else [_failed_step(patient.step_error)]
                told = True
                yield Finding(name, "skipped", "a training step fails")
            else:
                yield Finding(name, "skipped", f"the check itself failed: {in_short(error)}")
        release()  # what the next one needs on a GPU


def _failed_step(error: str) -> Finding:
    """Say that a training step fails, and what is known of that error."""
    known = explain(error).known[:1]
    fix = "; ".join(text for each in known for text in (each.fix, each.key) if text)
    return Finding(
        "training step", "error", error, _ENDS, "model", fix or "LIGHTKIT_DEBUG=1 lightkit train shows where"
    )
