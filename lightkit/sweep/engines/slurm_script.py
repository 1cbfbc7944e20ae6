"""The script of an array of jobs for Slurm, and what it asks the queue for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightkit.common.exit_codes import of_signal
from lightkit.common.text import slug

_SAVED = of_signal(10)
"""Exit status of a job that SIGUSR1 has told to save."""


@dataclass(frozen=True)
class SlurmOptions:
    """What the queue is told of each job; the fields are those of `sweep.slurm`.

    Attributes:
        time: Time limit, as `sbatch` takes it; a bare number counts minutes.
        partition: Partition; None for that of the cluster.
        account: Account; None for the user's own.
        cpus: Processors.
        gpus: GPUs.
        memory: Memory, such as `16G`, a bare number counts megabytes; None for the cluster's default.
        save_before: Seconds before the time limit at which a job is told to save.
        requeues: How often it may go on after its time limit.
        options: More options of `sbatch`.
        setup: Lines of shell before the job.
        poll_seconds: Seconds between looks at the queue.
        slots: Jobs at once; None for as many as the cluster lets run.
        ahead: Whether jobs are submitted before there is a slot for them, which the queue then keeps to.
    """

    time: int | str = "60"
    partition: int | str | None = None
    account: int | str | None = None
    cpus: int = 1
    gpus: int = 0
    memory: int | str | None = None
    save_before: int = 90
    requeues: int = 20
    options: Sequence[str] = ()
    setup: Sequence[str] = ()
    poll_seconds: float = 10.0
    slots: int | None = None
    ahead: bool = False


def array_script(options: SlurmOptions, stem: Path, count: int, *, name: str, after: Sequence[str] = ()) -> str:
    """Write the script of an array, each task of which runs a line of the file beside it.

    Args:
        options: What the queue is told.
        stem: Path of the script without its suffix.
        count: Jobs.
        name: Name of the jobs in the queue.
        after: Ids of arrays that are to end before it begins.
    """
    width = f"%{options.slots}" if options.slots else ""
    asked = {
        "job-name": slug(name),
        "array": f"0-{count - 1}{width}",
        "dependency": ":".join(["afterany", *after]) if after else None,
        "time": options.time,
        "signal": f"USR1@{options.save_before}",
        "cpus-per-task": options.cpus,
        "gpus-per-node": options.gpus or None,
        "mem": options.memory,
        "partition": options.partition,
        "account": options.account,
        "open-mode": "append",
        "output": f"{stem}-%a.txt",
    }
    asked |= {key: shlex.quote(value) for key, value in asked.items() if isinstance(value, str)}
    head = [f"#SBATCH --{key}={value}" for key, value in asked.items() if value is not None]
    head += ["#SBATCH --requeue", *(f"#SBATCH {option}" for option in options.options)]
    return "\n".join(
        [
            "#!/bin/bash",
            *head,
            f"cd {shlex.quote(str(Path.cwd()))} || exit 1",
            *options.setup,
            f'row=$(sed -n "$((SLURM_ARRAY_TASK_ID+1))p" {shlex.quote(str(stem.with_suffix(".jobs")))})',
            "eval \"end=${row%%$'\\t'*}\"",
            'rm -f "$end"',
            "eval \"srun ${row#*$'\\t'}\"",
            "code=$?",
            f"# {_SAVED}: saved before the time limit",
            f"if [[ $code == {_SAVED} && ${{SLURM_RESTART_COUNT:-0}} -lt {options.requeues} ]]; then",
            '  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" && exit $code',
            "fi",
            'mkdir -p "${end%/*}"; echo $code >"$end.new"; mv "$end.new" "$end"',
            "exit $code",
            "",
        ]
    )
