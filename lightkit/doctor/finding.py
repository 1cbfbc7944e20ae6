"""What a check found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

Status = Literal["ok", "note", "warning", "error", "skipped"]
STATUSES: tuple[Status, ...] = ("error", "warning", "note", "ok", "skipped")
"""How bad a finding is, the worst first. A `note` is worth knowing and asks for nothing."""

T = TypeVar("T")


def able(**abilities: bool) -> Callable[[T], T]:
    """Give a check abilities, which are attributes of it: see `lightkit.doctor.checks.Check`."""

    def mark(check: T) -> T:
        vars(check).update(abilities)
        return check

    return mark


@dataclass(frozen=True)
class Finding:
    """What one check measured, and what follows from it."""

    check: str
    """Name of the check, such as `initial loss`."""
    status: Status
    """How bad it is."""
    measured: str
    """What was measured, in a sentence with numbers: `the first loss is 6.91, and ln 10 is 2.30`."""
    why: str = ""
    """Why it matters, in a sentence; empty where nothing is wrong."""
    key: str = ""
    """The key of the configuration that mends it, such as `model.bias`; empty where none does."""
    fix: str = ""
    """What to do, as it would be typed where that is possible: `data.normalize=standard`."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """The measured numbers by name, for a program that reads them."""

    @property
    def is_bad(self) -> bool:
        """Tell whether something should be done about it."""
        return self.status in ("error", "warning")

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)
