"""How the jobs of a sweep are run: engines with their resources, limits, successive halving."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional, Union

from lightkit.config.schema.base import named, number, section


@section
class SlurmConfig:
    """Jobs as arrays of Slurm's `sbatch`."""

    time: Union[int, str] = number("60", low=1)
    """Time limit of a job in the format of `sbatch`: minutes, `HH:MM:SS` or `D-HH:MM`. A job that needs longer saves
    before the limit and is queued again."""
    partition: Optional[Union[int, str]] = None
    """Partition to submit to; by default that of the cluster."""
    account: Optional[Union[int, str]] = None
    """Account that is charged."""
    cpus: int = number(1, low=1)
    """Processors of a job."""
    memory: Optional[Union[int, str]] = number(None, low=1)
    """Memory of a job, such as `16G`; a bare number counts megabytes, as `sbatch` does."""
    save_before: int = number(90, low=1)
    """Seconds before the time limit at which a job gets the signal to save; less than `time`."""
    requeues: int = number(20, low=0)
    """How often a job that reached its time limit is queued again."""
    options: list[str] = field(default_factory=list)
    """More options of `sbatch`: `["--constraint=a100", "--exclude=node7"]`."""
    setup: list[str] = field(default_factory=list)
    """Lines of shell before the job, such as `module load cuda`."""
    poll_seconds: float = number(10.0, above=0)
    """Seconds between two queries of the queue."""


@section
class RayConfig:
    """Jobs as tasks of a Ray cluster."""

    address: Optional[str] = None
    """Address of a running cluster, such as `10.0.0.5:6379` or `auto`; by default Ray starts only on this machine, and
    accepts no connections from outside."""
    cpus: float = number(1.0, above=0)
    """Processors that a job needs."""
    lost_nodes: int = number(3, low=0)
    """How often a job continues on another node after its node failed."""


@dataclass
class HalvingConfig:
    """The jobs of a sweep pause at rungs, and only the best go on."""

    method: Optional[Literal["successive", "hyperband"]] = None
    """Which jobs continue after a rung. `successive`: the best one in `eta`. `hyperband`: the same for several groups
    of jobs, whose first rungs come later and later; for values that are misleading early in the training. Null trains
    all jobs to the end, unless `rungs` is set."""
    rungs: Optional[list[int]] = None
    """Where the jobs pause, such as `[1, 3, 9]`; jobs that continue after the last rung train to the end. Null takes
    `first` as the first rung, and makes each further rung `eta` times the one before."""
    unit: Literal["epoch", "step"] = "epoch"
    """What rungs count: epochs or optimizer steps."""
    first: int = number(1, low=1)
    """The first rung, if `rungs` is null."""
    eta: int = number(3, low=2)
    """One in this many jobs continues after a rung, rounded down, but at least one."""


@section
class SweepConfig:
    """How the jobs of a sweep are run (`lightkit train -m`); no job is another one for it, so it is not swept over."""

    engine: str = named("sweep.engine", "local")
    """Where the jobs run. `local` uses slots on this machine; `slurm` submits them to Slurm; `ray` uses the nodes of a
    Ray cluster. A project or a package can add others."""
    slots: Optional[int] = number(None, low=1, high=4096)
    """Number of jobs that run at once. Null takes one for each free GPU, or for each `gpus_per_job` GPUs. On the CPU,
    null takes as many as fit with `device.threads` each, or one if `device.threads` is null, because each job then uses
    all processors."""
    gpus_per_job: Optional[float] = number(None, low=0, high=1024)
    """Number of GPUs for each job. Null is one (or `device.nproc`) on this machine, and none with Slurm or Ray. With
    0.5, two jobs share a GPU; 0 hides all GPUs."""
    retries: int = number(0, low=0, high=1000)
    """How often a failed job is started again, from its last checkpoint. A job that ran out of memory while others ran
    is repeated once when no other job runs; that does not count as a retry."""
    on_error: Literal["continue", "stop", "stop_if_first"] = "continue"
    """What happens after a job failed. `continue` starts the other jobs. `stop` starts no further job. `stop_if_first`
    starts no further job if no job has finished yet, because then probably all jobs have the same mistake. Running jobs
    always continue."""
    time_limit: Optional[Union[float, str]] = None
    """How long a job may run after each start: seconds, or a text such as `30m` or `2h`. After that it saves and counts
    as failed, and `retries` does not start it again. Null sets no limit."""
    stall_limit: Optional[Union[float, str]] = None
    """How long a running job may make no step and log no value: seconds, or a text such as `30m`. After that it gets
    the signal to save, is killed if it does not, and counts as failed; `retries` starts it again. Set it longer than a
    job needs to load data, to compile or to save. Null sets no limit."""
    budget: Optional[Union[float, str]] = None
    """How long the sweep may run after each start: seconds, or a text such as `12h`. After that no further job starts,
    and running jobs save and end; `lightkit sweep resume` continues them. Null sets no limit."""
    warm: bool = True
    """Fork local jobs from a process that has already imported PyTorch and other packages, so that each job starts
    faster. The results are the same. This works only on Linux; on other systems, and with false, every job is a fresh
    process."""
    over: dict[str, list[int]] = field(default_factory=dict)
    """Replicates of each job, such as `{seed: [0, 1, 2], data.split.fold: [0, 1, 2]}`: a job runs with each combination
    of these seeds and folds, and counts as their mean, with its 95 % interval. They never compete with each other. The
    keys are `seed`, `data.split.seed` and `data.split.fold`."""
    race: Optional[int] = number(None, low=3)
    """Number of replicates after which a job may lose the race, less than `over` has: its other replicates do not run
    once the 95 % interval of its paired differences from the best job so far says that it is worse. Null runs all
    replicates."""
    keep_checkpoints: Optional[int] = number(None, low=0)
    """Number of best jobs (by `metrics.monitor`) that keep their checkpoints when the sweep has ended. Those of other
    jobs that have finished are deleted, unless other runs build on them; what they logged stays. Null deletes none."""
    halving: HalvingConfig = field(default_factory=HalvingConfig)
    """Successive halving: jobs pause at rungs, and only the best continue."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """Resources and options of Slurm."""
    ray: RayConfig = field(default_factory=RayConfig)
    """The Ray cluster, and the resources of a job."""
