"""What changes in a run without being saved, also where it has made no difference so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lightkit.runner.proving.held import Held

_KINDS = {
    "trainer.callbacks": "return it from the callback's state_dict() and take it back in load_state_dict()",
    "model": "make it a buffer (register_buffer), or return it from the module's get_extra_state()",
    "metrics": "register it with the metric's add_state()",
    "scheduler": "return it from the schedule's state_dict() and take it back in load_state_dict()",
    "optim": "keep it in the optimizer's `state`, or return it from its state_dict()",
    "loss": "nothing of a loss is saved: keep it in a buffer of the model, or in a callback's state_dict()",
    "trainer.task": "nothing of a task is saved: keep it in a buffer of the model, or in a callback's state_dict()",
    "data": "nothing of data is saved: make it a function of the row, and draw from the global generators",
}
"""What to do about it, by the beginning of the path."""


@dataclass(frozen=True)
class Unsaved:
    """A value that a resumed run has otherwise than one that was never stopped."""

    path: str
    """Where it is."""
    shown: str
    """Both values in words."""

    @property
    def fix(self) -> str:
        """How to save it."""
        return next(text for start, text in _KINDS.items() if self.path.startswith(f"{start}."))

    def __str__(self) -> str:
        return f"{self.path}: {self.shown}"


class Snapshots:
    """What the objects of a run held, by the moments of its trace.

    Args:
        trace: The trace.
    """

    def __init__(self, trace: Sequence[Mapping[str, Any]]) -> None:
        self.start, self.end, self.first_step = dict[str, Held](), dict[str, Held](), 0
        self.saves: dict[int, dict[str, Held]] = {}
        for row in trace:
            found = {path: Held(*value) for path, value in row.get("held", {}).items()}
            if row["phase"] == "start":
                self.start, self.first_step = found, row["step"]
            elif row["phase"] == "held":
                self.saves[row["step"]] = found
            elif row["phase"] == "end":
                self.end = found

    def changed(self) -> set[str]:
        """Paths of what did not stay the same from the start to the end."""
        moments = [self.start, *self.saves.values(), self.end]
        return {path for a, b in pairwise(moments) for path in a.keys() & b.keys() if a[path].digest != b[path].digest}


def lost(reference: Snapshots, resumed: Snapshots) -> list[str]:
    """Paths of what a resumed run begins with otherwise than the run without interruption had it at that step."""
    before, changed = reference.saves.get(resumed.first_step, {}), reference.changed()
    return [path for path, value in before.items() if path in changed and _differ(value, resumed.start.get(path))]


def unsaved(reference: Snapshots, repeated: Snapshots, resumed: Snapshots) -> list[Unsaved]:
    """What changes while training, is not saved, and is another after a resume.

    Left out is what two runs without interruption do not have in common, such as times, and a cache that is filled
    anew: one that is empty after the resume and at the end as it would have been.

    Args:
        reference: A run without interruption.
        repeated: The same once more, as far as it came.
        resumed: The run that went on.
    """
    both = [(reference.saves[step], repeated.saves[step]) for step in reference.saves.keys() & repeated.saves.keys()]
    own = {path for a, b in both for path, value in a.items() if _differ(value, b.get(path))}
    at = reference.saves.get(resumed.first_step, {})
    found, changed = [], reference.changed() - own
    for path in dict.fromkeys([*reference.end, *at]):
        if path not in changed:
            continue
        if _differ(reference.end.get(path), resumed.end.get(path)):
            shown = _told(reference.end[path], "after training", resumed.end[path], "after the resume")
        elif _differ(at.get(path), resumed.start.get(path)) and not resumed.start[path].heals:
            shown = _told(
                at[path], f"at step {resumed.first_step}", resumed.start[path], "right after the resume there"
            )
        else:
            continue
        found.append(Unsaved(path, shown))
    return found


def _differ(one: Held | None, other: Held | None) -> bool:
    """Whether a value that is there in both differs; what is made later in one of them will be compared later."""
    return one is not None and other is not None and one.digest != other.digest


def _told(one: Held, when: str, other: Held, then: str) -> str:
    same = " with other content" if one.shown == other.shown else ""
    return f"{one.shown} {when}, {other.shown}{same} {then}"
