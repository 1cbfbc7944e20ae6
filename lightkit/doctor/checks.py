"""All checks of a run before it starts, in the order in which they are made; none is imported before its turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

from lightkit.common.doors import SHIPPED, import_path
from lightkit.common.errors import UserError
from lightkit.common.failures import is_out_of_memory
from lightkit.config.doors import load, names
from lightkit.diagnostics.memory import release
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.first_steps import failure

Check = Callable[[Patient], Iterator[Finding]]
"""Looks at a patient and yields what it finds, also that all is well; what it has no time for it leaves out.

`always = True` on it makes it however little time there is; `as_run = True` says that it does what a run does, so that
what it cannot do would end the run."""
DOOR = "doctor"

CHECKS: tuple[tuple[str, str], ...] = tuple(SHIPPED[DOOR].items())
"""Name of a check, and the dotted path of it; the quick ones first, as time may run out."""


def find_check(place: str) -> Check:
    """Import a check by its dotted path."""
    found: Check = import_path(place)
    return found


def own_checks(entries: Iterable[str] = ()) -> list[tuple[str, Check]]:
    """Return the checks that the project and packages add, by name.

    Args:
        entries: What `trust` adds.

    Raises:
        UserError: One may not be made, or cannot be imported.
    """
    added = [(name, *load(DOOR, name, entries=entries)) for name in names(DOOR) if name not in SHIPPED[DOOR]]
    return [(name, made(**own) if isinstance(made, type) else partial(made, **own)) for name, made, own in added]


def examine(patient: Patient, tell: Callable[[str], None] = lambda line: None) -> Iterator[Finding]:
    """Make all checks for which there is time, and yield what they find.

    A check that fails itself is a finding too, and keeps no other from being made. The first steps of the run are made
    however little time there is: what would end the run must not pass for lack of it.

    Args:
        patient: The run.
        tell: Called with the name of each check before it is made.
    """
    late, own = list[str](), own_checks(patient.cfg.get("trust") or ())
    count = len(CHECKS) + len(own)
    for name, check in chain(((name, find_check(place)) for name, place in CHECKS), own):
        if patient.seconds_left() <= 0 and not getattr(check, "always", False):
            late.append(name)
            yield Finding(name, "skipped", "no time was left for it")
            continue
        tell(name)
        try:
            for finding in check(patient):
                patient.found.append(finding)
                yield finding
        except Exception as error:
            patient.found.append(_failed(patient, name, check, error))
            yield patient.found[-1]
        release()  # what the next one needs on a GPU
    if late:
        few = 2 * len(late) > count
        measured = f"there was none for {len(late)} of {count} checks"
        why = "hardly anything was looked at, so nothing can be said of the run" if few else ""
        yield Finding("time", "error" if few else "note", measured, why, fix="a longer --seconds" if few else "")


def _failed(patient: Patient, name: str, check: Check, error: Exception) -> Finding:
    """Say what it means that a check ended in an error."""
    if patient.step_error:
        return Finding(name, "skipped", "a training step fails")
    if getattr(check, "as_run", False) or isinstance(error, UserError) or is_out_of_memory(error):
        return failure(error, name)
    said = failure(error, name)
    why = "the run's own steps go through; batches of another size, or with other inputs, do not"
    return replace(said, status="note", measured=f"the check itself failed: {said.measured}", why=why)
