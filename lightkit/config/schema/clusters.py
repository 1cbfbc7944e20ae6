"""Where the jobs of a sweep run, other than in slots of this machine: `sweep.slurm` and `sweep.ray`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from lightkit.config.schema.base import number


@dataclass
class SlurmConfig:
    """Jobs as arrays of Slurm's `sbatch`."""

    time: str = "60"
    """Time limit of a job, as `sbatch` takes it: minutes, `HH:MM:SS` or `D-HH:MM`. A job that needs longer saves before
    the limit and goes on in the queue."""
    partition: Optional[str] = None
    """Partition to submit to; that of the cluster by default."""
    account: Optional[str] = None
    """Account that is charged."""
    cpus: int = number(1, low=1)
    """Processors of a job."""
    memory: Optional[str] = None
    """Memory of a job, such as `16G`."""
    save_before: int = number(90, low=1)
    """Seconds before the time limit at which a job is told to save."""
    requeues: int = number(20, low=0)
    """How often a job that reached its time limit may go on in the queue."""
    options: list[str] = field(default_factory=list)
    """More options of `sbatch`: `["--constraint=a100", "--exclude=node7"]`."""
    setup: list[str] = field(default_factory=list)
    """Lines of shell before the job, such as `module load cuda`."""
    poll_seconds: float = number(10.0, above=0)
    """Seconds between looks at the queue."""


@dataclass
class RayConfig:
    """Jobs as tasks of a Ray cluster."""

    address: Optional[str] = None
    """Address of a running cluster, such as `10.0.0.5:6379` or `auto`; by default Ray starts on this machine alone, and
    listens to nothing outside of it."""
    cpus: float = number(1.0, above=0)
    """Processors that a job needs."""
    lost_nodes: int = number(3, low=0)
    """How often a job goes on elsewhere when its node is lost."""
