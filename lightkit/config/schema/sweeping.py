"""How the jobs of a sweep are run: `sweep`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional, Union

from lightkit.config.schema.base import number


@dataclass
class SlurmConfig:
    """Jobs as arrays of Slurm's `sbatch`."""

    time: Union[int, str] = number("60", low=1)
    """Time limit of a job, as `sbatch` takes it: minutes, `HH:MM:SS` or `D-HH:MM`. A job that needs longer saves before
    the limit and goes on in the queue."""
    partition: Optional[Union[int, str]] = None
    """Partition to submit to; that of the cluster by default."""
    account: Optional[Union[int, str]] = None
    """Account that is charged."""
    cpus: int = number(1, low=1)
    """Processors of a job."""
    memory: Optional[Union[int, str]] = number(None, low=1)
    """Memory of a job, such as `16G`; a bare number counts megabytes, as `sbatch` does."""
    save_before: int = number(90, low=1)
    """Seconds before the time limit at which a job is told to save; less than `time`."""
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


@dataclass
class HalvingConfig:
    """The jobs of a sweep pause at rungs, and only the best go on."""

    method: Optional[Literal["successive", "hyperband"]] = None
    """Who goes on from a rung; null trains all jobs to their ends, unless `rungs` are given. `successive`: the best one
    in `eta`. `hyperband`: the same for groups of jobs that begin at later and later rungs, for values that are
    misleading early on."""
    rungs: Optional[list[int]] = None
    """Where the jobs pause, such as `[1, 3, 9]`; who goes on from the last of them trains to the end. Null takes
    `first`, and from each rung to the next `eta` times as far."""
    unit: Literal["epoch", "step"] = "epoch"
    """What rungs count: epochs or optimizer steps."""
    first: int = number(1, low=1)
    """The first rung, where `rungs` is null."""
    eta: int = number(3, low=2)
    """One in so many jobs goes on from a rung, rounded down, but at least one."""


@dataclass
class SweepConfig:
    """How the jobs of a sweep are run (`lightkit train -m`); no job is another one for it, so it is not swept over."""

    engine: Literal["local", "slurm", "ray"] = "local"
    """Where the jobs run. `local` has slots on this machine; `slurm` submits to the queue of a cluster; `ray` has the
    nodes of a Ray cluster."""
    slots: Optional[int] = number(None, low=1, high=4096)
    """Jobs that run at once. Null takes one for each free GPU, or for each `gpus_per_job` of them; on the CPU as many
    as fit with `device.threads` each, and one where that is null, as each job then takes all processors."""
    gpus_per_job: Optional[float] = number(None, low=0, high=1024)
    """GPUs that a job sees; null takes one, or `device.nproc`, of this machine, and none of Slurm or Ray. 0.5 lets two
    jobs share a GPU, 0 hides all of them."""
    retries: int = number(0, low=0, high=1000)
    """How often a job that failed is started again, from its last checkpoint. One that ran out of memory beside others
    comes again alone, and that does not count."""
    on_error: Literal["continue", "stop", "stop_if_first"] = "continue"
    """What a failed job does to those after it. `stop` starts no other; `stop_if_first` does so if none has finished
    before, as then a mistake in all of them is likely. Jobs that run already go on."""
    time_limit: Optional[Union[float, str]] = None
    """How long a job may run each time that it is started: seconds, or a text such as `30m` or `2h`. Then it saves and
    counts as failed, and `retries` does not start it again. Null sets no limit."""
    stall_limit: Optional[Union[float, str]] = None
    """How long a job that runs may log no value and make no step: seconds, or a text such as `30m`. Then it is told to
    save, is killed if it does not, counts as failed, and `retries` starts it again. Give it more than the longest that
    a job loads data, compiles or saves. Null sets no limit."""
    budget: Optional[Union[float, str]] = None
    """How long the sweep may run each time that it is started: seconds, or a text such as `12h`. Then no job begins,
    and those that run save and end; `lightkit sweep resume` goes on with them. Null sets no limit."""
    warm: bool = True
    """Fork the jobs of `local` from a process that has imported PyTorch and what else trainings need, so that each
    starts in a fraction of the time. Results are the same. On Linux only; elsewhere, and with false, every job is a
    fresh process."""
    halving: HalvingConfig = field(default_factory=HalvingConfig)
    """Jobs that pause at rungs, of which only the best go on."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """What Slurm is asked for."""
    ray: RayConfig = field(default_factory=RayConfig)
    """Which Ray cluster, and what a job takes of it."""
