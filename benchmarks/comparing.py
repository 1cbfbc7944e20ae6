"""`lightkit runs` and `lightkit compare` over many run folders, beside reading and looking at the same files alone.

    python -m benchmarks.comparing [--rounds 5] [--runs 1000] [--folders 10000]

The contestants read the folders of one made-up sweep: the floor reads each file as text (cold) or looks at its time
and size (warm). What a process takes to start is in none of them. The commands themselves are timed over more folders,
as whole processes, with an index that is there.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import Bar, Results, Sample, interleave, judge, options, show
from benchmarks.startup import LIGHTKIT, process
from lightkit.common import run_files
from lightkit.compare.comparison import build_comparison
from lightkit.runs.index import RunIndex, all_records

READ, LOOK = "reading the files", "looking at the files"
COLD, WARM, COMPARED = "runs, without the index", "runs, with the index", "compare, with the index"
BARS = [
    Bar(COLD, READ, 8.0, kind="cpu"),
    Bar(WARM, LOOK, 12.0, kind="cpu"),
    Bar(COMPARED, LOOK, kind="cpu"),
    Bar(COLD, ""),
    Bar(WARM, ""),
    Bar(COMPARED, ""),
]
RUNS, PS, COMPARE = "lightkit runs", "lightkit ps", "lightkit compare"
COMMANDS = [Bar(name, "", 1.0, kind="cpu") for name in (RUNS, PS, COMPARE)]
_NAMES = (run_files.CONFIG, run_files.RESULT, run_files.OVERRIDES, run_files.ENVIRONMENT)


def make_runs(root: Path, count: int) -> None:
    """Write as many run folders as a sweep of 20 seeds leaves, with a whole configuration in each."""
    from lightkit.config import compose
    from lightkit.config.saved import to_yaml

    text = to_yaml(compose(["data=wine"]).cfg)
    sweep = root / run_files.OUTPUTS / run_files.SWEEPS / "2026-01-31" / "12-00-00-many"
    for number in range(count):
        seed, lr = number % 20, 0.1 / (1 + number // 20)
        folder = sweep / f"optim.lr={lr!r},seed={seed}"
        (folder / run_files.CHECKPOINTS).mkdir(parents=True)
        mine = text.replace("\n  lr: 0.001\n", f"\n  lr: {lr}\n").replace("\nseed: 0\n", f"\nseed: {seed}\n")
        (folder / run_files.CONFIG).write_text(mine)
        (folder / run_files.OVERRIDES).write_text(f'- "optim.lr={lr}"\n- "seed={seed}"\n')
        facts = {"time": "2026-01-31T12:00:00+0000", "data": "f00d", "packages": {f"p{i}": "1.0" for i in range(60)}}
        (folder / run_files.ENVIRONMENT).write_text(json.dumps(facts, indent=2))
        values = {f"{split}/{name}": 0.5 for split in ("val", "test") for name in ("loss", "accuracy", "f1")}
        objective = {"name": "val/accuracy", "mode": "max", "value": (number * 7919 % 1000) / 1000, "step": 160}
        result = {"status": "finished", "objective": objective, "metrics": values, "epochs": 20}
        (folder / run_files.RESULT).write_text(json.dumps(result, indent=2))


def time_commands(root: Path, *, rounds: int) -> Results:
    """Time `lightkit runs`, `ps` and `compare` over the runs of a project."""
    (root / "conf").mkdir(exist_ok=True)
    sweep = str(next(root.glob(f"**/{run_files.CONFIG}")).parents[1])
    words = {RUNS: ("runs",), PS: ("ps",), COMPARE: ("compare", sweep)}
    return interleave({name: partial(process, (*LIGHTKIT, *more), root) for name, more in words.items()}, rounds=rounds)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Measure, print and judge; returns whether the bars hold."""
    parser = options(__doc__, rounds=5)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--folders", type=int, default=10_000)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        make_runs(root, chosen.runs)
        folders = [path.parent for path in root.glob(f"**/{run_files.CONFIG}")]
        index = root / run_files.OUTPUTS / run_files.INDEX

        def read() -> Sample:
            with Sample() as sample:
                sample.proof["bytes"] = sum(len((folder / each).read_text()) for folder in folders for each in _NAMES)
            return sample

        def look() -> Sample:
            with Sample() as sample:
                sample.proof["files"] = sum((folder / each).stat().st_size > 0 for folder in folders for each in _NAMES)
            return sample

        def cold() -> Sample:
            index.unlink(missing_ok=True)
            with Sample() as sample:
                sample.proof["runs"] = len(all_records(root))
            return sample

        def warm() -> Sample:
            all_records(root)
            with Sample() as sample:
                sample.proof["runs"] = len(all_records(root))
            return sample

        def compared() -> Sample:
            all_records(root)
            with Sample() as sample:
                made = build_comparison(RunIndex(root).records(sorted(folders)))
                sample.proof["groups"] = len(made.rows)
            return sample

        contestants = {READ: read, LOOK: look, COLD: cold, WARM: warm, COMPARED: compared}
        results = interleave(contestants, rounds=chosen.rounds)
    show(f"{chosen.runs} runs", results, READ)
    with tempfile.TemporaryDirectory() as name:
        make_runs(Path(name), chosen.folders)
        commands = time_commands(Path(name), rounds=chosen.rounds)
    show(f"{chosen.folders} folders, whole processes", commands, RUNS, unit="s")
    return judge(results, BARS) & judge(commands, COMMANDS)


if __name__ == "__main__":
    raise SystemExit(not main())
