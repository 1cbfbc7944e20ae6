"""A sweep of small jobs in two slots, beside what its jobs took: what the sweep itself costs, and how soon jobs start.

The start of a sweep, until its first job is started, is paid once. The wall time should be that and the jobs' time
shared out to the slots, and little more: the time between two jobs in a slot, and the wait for the last one.

A job's start-up is the time to its first step. That of forked jobs is compared with that of fresh processes, in sweeps
that take turns; the first job of each slot is left out, as it waits for the process that forks.

The long sweep has jobs that sleep for a second, so that it needs little of the processors that the others share.

    python -m benchmarks.sweeps [--jobs 16] [--long 200] [--slots 2] [--rounds 3]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import options, print_table
from benchmarks.startup import LIGHTKIT, environment

TRAIN = (
    "train", "-m", "data=wine", "model.hidden=[8]", "trainer.epochs=2", "device=cpu", "device.threads=1",
    "logger.every_steps=1",
)  # fmt: skip
LIMIT, LONG_LIMIT, START_LIMIT = 1.05, 1.1, 0.5
PAUSE = "trainer.callbacks={pause: {_target_: benchmarks.pause.Pause, seconds: 1}}"


def sweep(project: Path, name: str, *more: str, jobs: int, slots: int, warm: bool) -> dict[str, float]:
    """Run a sweep and return its seconds: to the first job, to a job's first step, of all jobs together, to its end.

    Raises:
        RuntimeError: It fails.
    """
    given = (f"seed=range({jobs})", f"sweep.slots={slots}", f"sweep.warm={warm}", f"hydra.sweep.dir={name}")
    began = time.time()
    done = subprocess.run(
        [*LIGHTKIT, *TRAIN, *given, *more], cwd=project, env=environment(), capture_output=True, text=True, check=False
    )
    wall = time.time() - began
    if done.returncode:
        raise RuntimeError(f"the sweep ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    events = [json.loads(line) for line in (project / name / "sweep.jsonl").read_text().splitlines()]
    started, ended = ({e["name"]: e["time"] for e in events if e["event"] == kind} for kind in ("started", "ended"))
    total = sum(ended[job] - started[job] for job in started)
    later = list(started)[slots:] or list(started)
    first = statistics.median(_first_step(project / name / job) - started[job] for job in later)
    return {"start": min(started.values()) - began, "first step": first, "jobs": total, "wall": wall}


def _first_step(folder: Path) -> float:
    with (folder / "metrics.jsonl").open() as lines:
        return float(json.loads(next(lines))["time"])


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    parser = options("what a sweep costs beside its jobs, and how soon they start", rounds=3)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--long", type=int, default=200, help="jobs of a second in one more sweep; 0 for none")
    parser.add_argument("--slots", type=int, default=2)
    args = parser.parse_args(arguments)
    costs, starts, rows = list[float](), list[float](), list[list[str]]()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "conf").mkdir()
        for number in range(args.rounds):
            sizes = {"forked": args.jobs, "fresh": min(args.jobs, 2 * args.slots)}
            found = {
                kind: sweep(Path(name), f"{kind}-{number}", jobs=jobs, slots=args.slots, warm=kind == "forked")
                for kind, jobs in sizes.items()
            }
            for kind, times in found.items():
                cost = times["wall"] / (times["jobs"] / args.slots + times["start"])
                label = f"round {number}, {sizes[kind]} {kind}"
                rows.append([label, *(f"{seconds:.2f}" for seconds in times.values()), f"{cost:.3f}"])
                costs += [cost] if kind == "forked" else []
            starts.append(found["forked"]["first step"] / found["fresh"]["first step"])
        long = list[float]()
        if args.long:
            times = sweep(Path(name), "long", PAUSE, jobs=args.long, slots=args.slots, warm=True)
            long.append(times["wall"] / (times["jobs"] / args.slots + times["start"]))
            row = [f"{args.long} of a second, forked", *(f"{seconds:.2f}" for seconds in times.values())]
            rows.append([*row, f"{long[0]:.3f}"])
    print_table([f"{args.slots} slots", "start s", "first step s", "jobs s", "wall s", "ratio"], rows)
    holds = True
    for what, ratios, limit in (
        ("wall / (jobs / slots + start), forked", costs, LIMIT),
        (f"the same, {args.long} jobs of a second", long, LONG_LIMIT),
        ("first step of a job, forked / fresh", starts, START_LIMIT),
    ):
        ratio = statistics.median(ratios or [0.0])
        print(f"{what}: {ratio:.3f} (at most {limit}: {'ok' if ratio <= limit else 'MISSED'})")
        holds &= ratio <= limit
    return holds


if __name__ == "__main__":
    sys.exit(not main())
