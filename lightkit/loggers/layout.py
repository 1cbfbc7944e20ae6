"""The layout of TensorBoard's Custom Scalars page: charts in which what belongs together is drawn together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

TAG = "custom_scalars__config__"
"""Tag that TensorBoard reads a layout from; of several in a run the last counts."""
RESULTS, OPTIMIZATION, MACHINE = "training and validation", "optimization", "machine"
CATEGORIES = (RESULTS, OPTIMIZATION, MACHINE)
"""Parts of the page. Every layout has all of them in this order: TensorBoard merges those of several runs by their
names, and loses charts where a later run brings a category of its own."""
_CURVE = re.compile(r"(?:train|val)/(?P<name>.+)")
_OTHERS = (
    (OPTIMIZATION, "learning rate", "vitals/lr/"),
    (OPTIMIZATION, "gradient norm", "vitals/grad/norm$"),
    (MACHINE, "samples per second", "vitals/speed/samples_per_second$"),
    (MACHINE, "seconds of waiting for data", "vitals/speed/data_wait$"),
    (MACHINE, "GPU: utilisation (%)", r"vitals/system/gpu\d+_(mig_)?utilisation$"),
    (MACHINE, "GPU: memory (GiB)", r"vitals/system/gpu\d+_(mig_)?memory_gib$"),
    (MACHINE, "GPU: power (W)", r"vitals/system/gpu\d+_(mig_)?power_w$"),
    (MACHINE, "GPU: temperature (°C)", r"vitals/system/gpu\d+_(mig_)?temperature_c$"),
    (MACHINE, "CPU (%)", r"vitals/system/cpu(_machine)?_percent$"),
    (MACHINE, "memory (%)", "vitals/system/ram_used_percent$"),
)
"""Category, title and tags, as a regular expression, of the charts of what is not a result."""
_PLACES = {title: place for place, (_, title, _) in enumerate(_OTHERS)}


class Layout:
    """The charts for the curves that a run has so far. A value of training and of validation has one chart for both."""

    def __init__(self) -> None:
        self._charts: dict[str, dict[str, str]] = {category: {} for category in CATEGORIES}
        self._is_written = True

    def add(self, tags: Iterable[str]) -> None:
        """Make room for curves.

        Args:
            tags: Their tags; those that no chart is for are left out.
        """
        before = sum(map(len, self._charts.values()))
        for tag in tags:
            if curve := _CURVE.fullmatch(tag):
                # the loss of single steps is as rough as a gradient: beside means of epochs it hides them
                category = OPTIMIZATION if tag.endswith("_step") else RESULTS
                self._charts[category][curve["name"]] = f"(train|val)/{re.escape(curve['name'])}$"
            for category, title, pattern in _OTHERS:
                if re.match(pattern, tag):
                    self._charts[category][title] = pattern
        self._is_written = self._is_written and sum(map(len, self._charts.values())) == before

    def unwritten(self) -> list[Any]:
        """Return the layout as values of a summary that is written then; nothing where it is as it was before."""
        from torch.utils.tensorboard.summary import custom_scalars

        if self._is_written:
            return []
        self._is_written = True
        charts = {
            category: {
                title: ["Multiline", [found[title]]]
                for title in sorted(found, key=lambda title: _PLACES.get(title, -1))
            }
            for category, found in self._charts.items()
        }
        return list(custom_scalars(charts).value)


def layouts(values: Iterable[Any]) -> list[bytes]:
    """Return the layouts among values of summaries, as they are written."""
    return [value.tensor.string_val[0] for value in values if value.tag == TAG]
