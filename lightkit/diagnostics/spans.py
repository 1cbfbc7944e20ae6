"""Named stretches of a run's time: counted by the host's clock, and shown in traces and to other profilers.

The loop marks what it does by an object that is handed to it: `NoSpans`, or a `lightkit.diagnostics.profiling.Recorder`
where the run is profiled.

    clock.leave_out(spans.before_step(state.step))
    with spans.span("forward"):
        result = task.step(...)
    spans.after_step()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter

import torch
from torch.profiler import record_function


class NoSpans:
    """The plain case: marks cost next to nothing, and nothing is counted."""

    _nothing = nullcontext()  # holds nothing, so that one serves all stretches, also those within others

    def span(self, name: str) -> AbstractContextManager[None]:
        """Return a context whose time is that of `name`."""
        return self._nothing

    def before_step(self, step: int) -> float:
        """Do what is due before an optimizer step.

        Args:
            step: Optimizer steps the run has taken.

        Returns:
            Seconds that it took, which are no training.
        """
        return 0.0

    def after_step(self) -> None:
        """Count an optimizer step; of one that was broken off nobody says so."""


class Spans(NoSpans):
    """Counts the seconds of named stretches of time.

    A stretch within another one counts for the outer one only, so that the seconds add up: the batches of a validation
    are part of the validation. Traces and other profilers see both.

    Args:
        device: On a CUDA device every stretch is an NVTX range too, for `nsys` and the like.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        """Seconds so far by name."""
        self.traced = False
        """Whether PyTorch's profiler records; elsewhere its marks would cost more than the rest."""
        self._nvtx, self._within = device.type == "cuda" and _has_nvtx(), False

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Count the time inside as that of `name`."""
        mark = record_function(name) if self.traced else None
        outermost, self._within = not self._within, True
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)
        began = perf_counter()
        try:
            if mark is None:
                yield
            else:
                with mark:
                    yield
        finally:
            if outermost:
                self._within = False
                self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - began
            if self._nvtx:
                torch.cuda.nvtx.range_pop()


def _has_nvtx() -> bool:
    """Tell whether this build of PyTorch can set ranges; one for AMD's GPUs may not."""
    try:
        torch.cuda.nvtx.mark("lightkit")
    except RuntimeError:
        return False
    return True
