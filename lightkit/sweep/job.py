"""A job of a sweep, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightkit.common.reading import UnreadableError, parse_mapping

Status = Literal["finished", "paused", "pruned", "stopped", "failed", "interrupted"]
"""How a job ended: at its end, at a rung (`trainer.stop_at`), stopped as it promised little, or as somebody asked for
its end alone, by an error, by a signal."""


@dataclass(frozen=True)
class Job:
    """A run that a sweep has planned: what it trains is fixed before it starts.

    Attributes:
        name: Name of its folder, which tells its overrides from those of the other jobs.
        folder: Where it runs; absolute.
        overrides: What was typed for it.
        config: Its whole configuration as YAML.
        environment: Variables of its process (`hydra.job.env_set`).
    """

    name: str
    folder: Path
    overrides: tuple[str, ...]
    config: str
    environment: Mapping[str, str] = field(default_factory=dict)


def content_of(config: str) -> dict[str, Any]:
    """Return the configuration of a job as plain values; empty where it is damaged, as it may come from elsewhere."""
    with suppress(UnreadableError):
        return parse_mapping(config)
    return {}


def section_of(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of it; empty where there is none."""
    found = content.get(name)
    return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True)
class Start:
    """A job that is to start, or to go on, now.

    Attributes:
        job: The job.
        stop_at: Where it pauses, as `trainer.stop_at` takes it (epochs, such as `3`, or `300 steps`); None runs to its
            end.
    """

    job: Job
    stop_at: str | None = None


@dataclass(frozen=True)
class JobOutcome:
    """How a part of a job ended.

    Attributes:
        name: The job's.
        status: How.
        values: The last values by name, such as `val/accuracy`; `objective` is the best of the monitored one.
        epoch: Epochs done.
        step: Optimizer steps done.
        code: Exit status of its process; None where nobody saw it end.
        reason: Why it failed, in a line; empty where it did not.
    """

    name: str
    status: Status
    values: Mapping[str, float] = field(default_factory=dict)
    epoch: int = 0
    step: int = 0
    code: int | None = 0
    reason: str = ""
