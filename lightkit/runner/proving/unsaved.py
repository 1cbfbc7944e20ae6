"""State that changes in a run without being saved, also where it has made no difference so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lightkit.runner.proving.live_state import LiveValue

_FIXES = {
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
class UnsavedValue:
    """A value that a resumed run has otherwise than one that was never stopped."""

    path: str
    """Where it is."""
    text: str
    """Both values in words."""

    @property
    def fix(self) -> str:
        """Say what to do to have it saved."""
        return next(text for start, text in _FIXES.items() if self.path.startswith(f"{start}."))

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class Snapshots:
    """The state of a run's objects that is not saved, by the moments of its trace.

    Args:
        trace: The trace.
    """

    def __init__(self, trace: Sequence[Mapping[str, Any]]) -> None:
        self.start, self.end, self.first_step = dict[str, LiveValue](), dict[str, LiveValue](), 0
        self.saves: dict[int, dict[str, LiveValue]] = {}
        for row in trace:
            found = {path: LiveValue(*value) for path, value in row.get("live", {}).items()}
            if row["phase"] == "start":
                self.start, self.first_step = found, row["step"]
            elif row["phase"] == "live":
                self.saves[row["step"]] = found
            elif row["phase"] == "end":
                self.end = found

    def changed(self) -> set[str]:
        """Return the paths of what did not stay the same from the start to the end."""
        moments = [self.start, *self.saves.values(), self.end]
        return {path for a, b in pairwise(moments) for path in a.keys() & b.keys() if a[path].digest != b[path].digest}


def lost_paths(reference: Snapshots, resumed: Snapshots) -> list[str]:
    """Return the paths of what a resumed run begins with otherwise than the uninterrupted run had it at that step."""
    before, changed = reference.saves.get(resumed.first_step, {}), reference.changed()
    return [path for path, value in before.items() if path in changed and _differ(value, resumed.start.get(path))]


def find_unsaved(reference: Snapshots, repeated: Snapshots, resumed: Snapshots) -> list[UnsavedValue]:
    """Find what changes while training, is not saved, and is another after a resume.

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
            text = _difference(reference.end[path], "after training", resumed.end[path], "after the resume")
        elif _differ(at.get(path), resumed.start.get(path)) and not resumed.start[path].refills:
            when = f"at step {resumed.first_step}"
            text = _difference(at[path], when, resumed.start[path], "right after the resume there")
        else:
            continue
        found.append(UnsavedValue(path, text))
    return found


def _differ(one: LiveValue | None, other: LiveValue | None) -> bool:
    """Tell whether a value that is there in both differs; what is made later in one of them will be compared later."""
    return one is not None and other is not None and one.digest != other.digest


def _difference(one: LiveValue, when: str, other: LiveValue, then: str) -> str:
    """Say what a value was and what it is instead."""
    same = " with other content" if one.text == other.text else ""
    return f"{one.text} {when}, {other.text}{same} {then}"
