"""From the start of a process to the first optimizer step of `lightkit train`, beside importing torch alone.

Every measurement is a fresh process, the interpreter's start included. Those that end at a fixed point leave at once,
without what Python does at its end; otherwise importing torch would look slower than it is.

    python -m benchmarks.startup [--rounds 9] [--profile]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks.harness import Bar, Sample, interleave, judge, options, print_table, show

ROOT = Path(__file__).resolve().parents[1]
TORCH, BY_HAND, FIRST = "import torch", "first step, by hand", "first step, lightkit train"
MEASURED, WHOLE, DOCTOR = "the same, with metrics", "lightkit train", "lightkit doctor"
HELP, CONFIG, COMPLETION = "lightkit --help", "lightkit train --cfg job", "completion of `optim.`"
LEAVE = "import os; os._exit(0)"
HAND_WRITTEN = f"""
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters())
torch.nn.functional.cross_entropy(model(torch.randn(64, 64)), torch.randint(10, (64,))).backward()
optimizer.step()
{LEAVE}
"""
TRAIN = ("train", "data=digits", "model=mlp", "trainer.callbacks={first: {_target_: benchmarks.first_step.FirstStep}}")
LIGHTKIT = (sys.executable, "-m", "lightkit")
COMMANDS: dict[str, tuple[str, ...]] = {
    TORCH: (sys.executable, "-c", f"import torch; {LEAVE}"),
    BY_HAND: (sys.executable, "-c", HAND_WRITTEN),
    FIRST: (*LIGHTKIT, *TRAIN, "metrics=none"),
    MEASURED: (*LIGHTKIT, *TRAIN),  # as the default run has them: they are tried before the first step
    WHOLE: (*LIGHTKIT, "train"),
    DOCTOR: (*LIGHTKIT, "doctor"),
    HELP: (*LIGHTKIT, "--help"),
    CONFIG: (*LIGHTKIT, "train", "--cfg", "job"),
    COMPLETION: (*LIGHTKIT, "train", "-sc", "query=bash"),
}
BARS = [
    Bar(FIRST, TORCH, 0.8, minus=True),
    Bar(FIRST, TORCH, 0.8, kind="cpu", minus=True),
    Bar(MEASURED, TORCH, 1.0, kind="cpu", minus=True),
    Bar(WHOLE, "", 5.0, kind="cpu"),
    Bar(DOCTOR, "", 6.0, kind="cpu"),
    Bar(HELP, "", 0.15, kind="cpu"),
    Bar(CONFIG, "", 0.35, kind="cpu"),
    Bar(COMPLETION, "", 0.25, kind="cpu"),
]


def process(command: Sequence[str], folder: Path) -> Sample:
    """Run a command to its end in an empty folder.

    Raises:
        RuntimeError: It fails.
    """
    began = perf_counter()
    with (folder / "errors.txt").open("w+") as errors:
        child = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=errors, stdin=subprocess.DEVNULL
        )
        _, status, used = os.wait4(child.pid, 0)  # not `wait`: it does not tell the CPU time of this one child
        sample = Sample(perf_counter() - began, used.ru_utime + used.ru_stime)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read()
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}:\n{said}")
    if found := re.search(r"^(\d+) slow modules", said, re.M):
        sample.proof["slow modules loaded"] = float(found[1])
    return sample


def environment() -> dict[str, str]:
    """One thread, byte code kept between processes, and what the completion of a shell sends."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    line = "lightkit train optim."
    fixed = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | fixed


def profile(folder: Path, *, count: int = 40) -> None:
    """Print the slowest imports before the first step: milliseconds with and without what they import themselves."""
    command = [sys.executable, "-X", "importtime", "-m", "lightkit", *TRAIN, "metrics=none"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=True)
    found = re.findall(r"^import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)", done.stderr, re.M)
    slowest = sorted(((int(total), int(own), name) for own, total, name in found), reverse=True)[:count]
    print_table(
        ["module", "ms", "own ms"], [[n, f"{total / 1e3:.0f}", f"{own / 1e3:.0f}"] for total, own, n in slowest]
    )
    print(done.stderr.splitlines()[-1])


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    parser = options("time from the start of a process to the first optimizer step", rounds=9)
    parser.add_argument("--profile", action="store_true", help="only list the slowest imports")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        if args.profile:
            profile(Path(name))
            return True
        contestants = {title: partial(process, command, Path(name)) for title, command in COMMANDS.items()}
        results = interleave(contestants, rounds=args.rounds)
    show("a fresh process", results, TORCH, unit="s")
    return judge(results, BARS)


if __name__ == "__main__":
    raise SystemExit(not main())
