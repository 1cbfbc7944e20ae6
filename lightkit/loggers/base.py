"""The interface of every logger. The base class is the null logger: it takes everything and keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ClassVar


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    epoch: int
    """Epoch under way, counted from 1."""
    epochs: int | None
    """Number of epochs; None when the run is counted in steps."""
    step: int
    """Optimizer steps taken."""
    total_steps: int
    """Optimizer steps of the whole run."""
    batch: int
    """Batches done in this phase."""
    batches: int
    """Batches of this phase."""
    phase: str = "train"
    """`train`, `val` or `test`."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The newest values by name."""
    samples_per_second: float = 0.0
    """Training samples per second; 0 when not known yet."""
    eta_seconds: float | None = None
    """Seconds to the end of training; None when not known yet."""


class Logger:
    """Takes everything a run has to tell; subclasses keep what concerns them.

    One of your own is named in the configuration: `logger.more.NAME._target_: my_project.MyLogger`. Where its
    constructor takes `folder`, `monitor` and `mode`, it gets the run's folder, and the name and mode of the monitored
    value. Of several processes only the first one has loggers.

    Attributes:
        patient: Whether it is called in a thread of its own, where a call that fails is tried again later, in its turn:
            for a logger that sends over a network. Such a logger neither slows a run down nor ends one.
    """

    patient: ClassVar[bool] = False

    def start(self, step: int, kept: Sequence[Mapping[str, Any]] = ()) -> None:
        """Begin before the first value; on a resume, forget what was written after the checkpoint at step `step`.

        Args:
            step: Optimizer steps already taken; 0 for a new run.
            kept: The rows of `metrics.jsonl` written before that checkpoint; all others are forgotten. Each has
                `step`, `epoch`, `time` and the values by name, None where one was not finite.
        """

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """Log numbers by name (`val/accuracy`), measured after optimizer step `step` in epoch `epoch`."""

    def hparams(self, params: Mapping[str, Any], overrides: Sequence[str] = ()) -> None:
        """Log the settings of the run; once, after `start`.

        Args:
            params: The configuration, nested.
            overrides: What of the configuration was typed on the command line (`optim.lr=0.1`).
        """

    def end(self, status: str) -> None:
        """Log how the run has ended; not called of one that is to go on later, nor of one that was killed.

        Args:
            status: `finished` or `failed`.
        """

    def suspend(self, status: str) -> None:
        """Log that the run ends here, and is to go on later; in place of `end`.

        Args:
            status: `paused` or `interrupted`.
        """

    def figure(self, name: str, figure: Any, *, step: int) -> None:
        """Log a matplotlib figure."""

    def text(self, name: str, markdown: str, *, step: int) -> None:
        """Log a piece of Markdown."""

    def images(self, name: str, images: Any, *, step: int) -> None:
        """Log pictures `(N, C, H, W)` of any range; C is 1 or 3, others show their first channel."""

    def histogram(self, name: str, values: Any, *, step: int) -> None:
        """Log the distribution of the values of a tensor."""

    def graph(self, model: Any, example: Any) -> None:
        """Log the graph of a model, traced with an example input."""

    def progress(self, progress: Progress) -> None:
        """Show how far the run is; called at most ten times a second."""

    def message(self, text: str) -> None:
        """Show a line to whoever watches."""

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Show a table to whoever watches."""

    def flush(self) -> None:
        """Hand everything to the operating system, so that it outlives this process."""

    def sync(self) -> None:
        """Force what was flushed to the disk, so that it outlives a power cut; may be called in another thread.

        Raises:
            OSError: The disk is full or broken.
        """

    def close(self) -> None:
        """Write what is left and close files. May be called twice."""


class Loggers(Logger):
    """Hands everything to several loggers, in order.

    Args:
        loggers: The loggers; none makes a null logger.
    """

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self.loggers = list(loggers)

    def _each(self, method: str, *args: Any, **kwargs: Any) -> None:
        for logger in self.loggers:
            getattr(logger, method)(*args, **kwargs)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """See `Logger.table`."""
        self._each("table", title, columns, [tuple(row) for row in rows])

    def close(self) -> None:
        """Close all, even where one fails; the first failure is raised at the end."""
        failures = []
        for logger in self.loggers:
            try:
                logger.close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]


def _handed_on(method: str) -> Callable[..., None]:
    @wraps(getattr(Logger, method))
    def each(self: Loggers, *args: Any, **kwargs: Any) -> None:
        self._each(method, *args, **kwargs)

    return each


for _method in [name for name, value in vars(Logger).items() if name not in vars(Loggers) and callable(value)]:
    setattr(Loggers, _method, _handed_on(_method))
