"""A sweep of small jobs in two slots, beside what its jobs took: what the sweep itself costs.

The start of a sweep, until its first job is started, is paid once. After it the wall time should be that of the jobs
shared out to the slots, and little more: the time between two jobs in a slot, and the wait for the last one.

    python -m benchmarks.sweeps [--jobs 16] [--slots 2] [--rounds 3]
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

TRAIN = ("train", "-m", "data=wine", "model.hidden=[8]", "trainer.epochs=2", "device=cpu", "device.threads=1")
LIMIT = 1.15


def sweep(project: Path, name: str, *, jobs: int, slots: int) -> dict[str, float]:
    """Run a sweep and return its seconds: to the first job, of all jobs together, to its end.

    Raises:
        RuntimeError: It fails.
    """
    given = (f"seed=range({jobs})", f"sweep.slots={slots}", f"hydra.sweep.dir={name}")
    began = time.time()
    done = subprocess.run(
        [*LIGHTKIT, *TRAIN, *given], cwd=project, env=environment(), capture_output=True, text=True, check=False
    )
    wall = time.time() - began
    if done.returncode:
        raise RuntimeError(f"the sweep ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    events = [json.loads(line) for line in (project / name / "sweep.jsonl").read_text().splitlines()]
    started, ended = ({e["name"]: e["time"] for e in events if e["event"] == kind} for kind in ("started", "ended"))
    total = sum(ended[job] - started[job] for job in started)
    return {"start": min(started.values()) - began, "jobs": total, "wall": wall}


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bar holds."""
    parser = options("what a sweep costs beside its jobs", rounds=3)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--slots", type=int, default=2)
    args = parser.parse_args(arguments)
    ratios, rows = list[float](), list[list[str]]()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "conf").mkdir()
        for number in range(args.rounds):
            found = sweep(Path(name), f"sweep-{number}", jobs=args.jobs, slots=args.slots)
            ratios.append((found["wall"] - found["start"]) / (found["jobs"] / args.slots))
            rows.append([f"round {number}", *(f"{seconds:.2f}" for seconds in found.values()), f"{ratios[-1]:.3f}"])
    print_table([f"{args.jobs} jobs, {args.slots} slots", "start s", "jobs s", "wall s", "ratio"], rows)
    ratio = statistics.median(ratios)
    print(f"(wall - start) / (jobs / slots): {ratio:.3f} (at most {LIMIT}: {'ok' if ratio <= LIMIT else 'MISSED'})")
    return ratio <= LIMIT


if __name__ == "__main__":
    sys.exit(not main())
