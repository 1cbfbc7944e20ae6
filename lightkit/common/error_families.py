"""The families of errors, each with a code: `lightkit explain CODE` prints what `docs/reference/errors.md` says of it.

The first digit of a code tells where to look: 1 the command line and the configuration, 2 the data, 3 the model and
its fine-tuning, 4 the machine and the training itself, 5 runs, checkpoints and files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lightkit.common.exit_codes import (
    AUDIT_FAILED,
    FAILED,
    LOST_RANK,
    NOT_FINITE,
    OUT_OF_MEMORY,
    UNREADABLE,
)


@dataclass(frozen=True)
class Family:
    """Errors with the same causes and the same ways to mend them."""

    code: str
    """What the terminal shows, such as `LK101`. It keeps its meaning in later versions."""
    slug: str
    """What the source calls it."""
    title: str
    """Its heading in `docs/reference/errors.md`."""


FAMILIES = (
    Family("LK101", "unknown-key", "Unknown key"),
    Family("LK102", "wrong-value", "Wrong type or value"),
    Family("LK103", "missing-value", "Missing value"),
    Family("LK104", "unknown-option", "Unknown option or group"),
    Family("LK105", "wrong-command", "Wrong command line"),
    Family("LK106", "target-not-found", "Target not found"),
    Family("LK107", "target-not-trusted", "Target not trusted"),
    Family("LK108", "wrong-arguments", "Wrong arguments of a target"),
    Family("LK109", "contradiction", "Keys that contradict each other"),
    Family("LK110", "unreadable-configuration", "Override or YAML that cannot be read"),
    Family("LK111", "hydra", "Hydra setting that is not supported"),
    Family("LK112", "package-missing", "Package not installed"),
    Family("LK201", "data-not-found", "Data not found"),
    Family("LK202", "data-unreadable", "Data that cannot be read"),
    Family("LK203", "data-setting", "Data settings that do not fit the data"),
    Family("LK204", "split", "Split that cannot be made"),
    Family("LK205", "loader-process", "Loader process that ended or hangs"),
    Family("LK206", "loss-or-metric", "Loss or metric that does not suit the data"),
    Family("LK301", "model-misfit", "Model that does not fit the data"),
    Family("LK302", "pattern", "Pattern that cannot be used"),
    Family("LK303", "weights", "Weights that do not fit the model"),
    Family("LK304", "audit-failed", "Audit failed"),
    Family("LK305", "finetuning", "Fine-tuning that cannot be done"),
    Family("LK306", "ensemble", "Ensemble that cannot be made"),
    Family("LK401", "no-such-device", "No such device"),
    Family("LK402", "device-setting", "Setting not supported on this device"),
    Family("LK403", "out-of-memory", "Out of memory"),
    Family("LK404", "lost-process", "Lost process"),
    Family("LK405", "not-finite", "Loss that is not finite"),
    Family("LK406", "process-failed", "Step or process that failed"),
    Family("LK407", "not-learning", "Model that does not learn"),
    Family("LK501", "no-such-run", "No such run"),
    Family("LK502", "folder-in-use", "Folder in use"),
    Family("LK503", "no-checkpoint", "No checkpoint to go on from"),
    Family("LK504", "checkpoint-unreadable", "Checkpoint that cannot be read"),
    Family("LK505", "checkpoint-misfit", "Checkpoint of another configuration"),
    Family("LK506", "cannot-write", "Cannot write"),
    Family("LK507", "run-from-elsewhere", "Run from elsewhere"),
    Family("LK508", "file", "File or folder that cannot be used"),
)
_BY_SLUG = {family.slug: family for family in FAMILIES}
_BY_STATUS = {
    FAILED: "process-failed",
    NOT_FINITE: "not-finite",
    OUT_OF_MEMORY: "out-of-memory",
    UNREADABLE: "checkpoint-unreadable",
    AUDIT_FAILED: "audit-failed",
    LOST_RANK: "lost-process",
}
_BY_KEY = {
    "data.split": "split",
    "data": "data-setting",
    "defaults": "unreadable-configuration",
    "device": "device-setting",
    "finetune.weights": "weights",
    "finetune": "finetuning",
    "loss": "loss-or-metric",
    "metrics": "loss-or-metric",
    "model": "model-misfit",
    "trainer.task": "model-misfit",
    "trust": "target-not-trusted",
}
"""Families by how a key begins, the longer beginning first."""


POINTER = "more: lightkit explain "
"""How the last line of an error begins."""


def pointer(families: Iterable[Family]) -> str:
    """Return the last line of an error on the terminal: the command that says more."""
    return POINTER + " ".join(family.code for family in families)


def family_named(slug: str) -> Family:
    """Return the family with a slug."""
    return _BY_SLUG[slug]


def usual_family(key: str | None, exit_code: int) -> Family:
    """Return the family of an error that names none: by its exit status, or else by how its key begins.

    Args:
        key: Key of the configuration, file, or command and option at fault.
        exit_code: Exit status of the process.
    """
    if exit_code in _BY_STATUS:
        return _BY_SLUG[_BY_STATUS[exit_code]]
    place = key or ""
    if place.startswith(("lightkit ", "-")):
        return _BY_SLUG["wrong-command"]
    beginning = next((known for known in _BY_KEY if f"{place}.".startswith(f"{known}.")), None)
    if beginning is not None:
        return _BY_SLUG[_BY_KEY[beginning]]
    return _BY_SLUG["file" if "/" in place else "wrong-value"]
