"""Named stretches of a run's time: counted by the host's clock, and shown in traces and to other profilers.

The loop marks what it does by an object that is handed to it, `NoSpans` unless the run is profiled:

    with spans.span("forward"):
        result = task.step(...)
    for batch in spans.each("data", engine.prefetch(batches)):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import wraps
from time import perf_counter
from typing import Any

import torch
from torch.profiler import record_function


class NoSpans:
    """The plain case: marks cost next to nothing, and nothing is counted."""

    _nothing = nullcontext()  # holds nothing, so that one serves all stretches, also those within others

    def span(self, name: str) -> AbstractContextManager[None]:
        """Return a context whose time is that of `name`."""
        del name
        return self._nothing

    def each(self, name: str, items: Iterator[Any]) -> Iterator[Any]:
        """Return the same items; the time it takes to get them is that of `name`."""
        del name
        return items


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

    __call__ = span

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, whose time is that of `name`."""

        @wraps(call)
        def timed(*args: Any, **options: Any) -> Any:
            with self.span(name):
                return call(*args, **options)

        return timed

    def each(self, name: str, items: Any) -> Iterator[Any]:
        """Yield the same items; the time it takes to get them is that of `name`. `items` is closed when this is."""
        with closing(items):
            while True:
                with self.span(name):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item
                del item


class Timed:
    """Stands for an object some of whose methods are timed; everything else is that of the object.

    Whoever asks what it is hears the class of the object, and what is set is set there: a callback that looks around in
    the loop finds, and changes, what it always does.

    Args:
        part: The object.
        spans: Counts.
        methods: Name of the stretch of time by method.
        streams: The same for methods that give items; it is the getting of an item that is timed.
    """

    def __init__(
        self, part: Any, spans: Spans, methods: Mapping[str, str], streams: Mapping[str, str] | None = None
    ) -> None:
        own = vars(self)
        own["_part"] = part
        for method, name in methods.items():
            own[method] = spans.around(name, getattr(part, method))
        for method, name in (streams or {}).items():
            own[method] = _each(spans, name, getattr(part, method))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the object, for `isinstance`."""
        return type(self._part)

    def __getattr__(self, name: str) -> Any:
        """Return whatever is not timed."""
        return getattr(vars(self)["_part"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set on the object."""
        setattr(self._part, name, value)


def _each(spans: Spans, name: str, call: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    return lambda *args: spans.each(name, call(*args))


def _has_nvtx() -> bool:
    """Tell whether this build of PyTorch can set ranges; one for AMD's GPUs may not."""
    try:
        torch.cuda.nvtx.mark("lightkit")
    except RuntimeError:
        return False
    return True
