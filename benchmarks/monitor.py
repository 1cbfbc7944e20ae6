"""What it costs a run to watch its machine: the same run with the thread that samples and without it.

Whole runs are timed, the start and the end of the thread included. It samples every second, ten times as often as by
default. Where there is a GPU the run uses it, and the thread asks its driver.

    python -m benchmarks.monitor [--rounds 31] [--steps 10000]
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from functools import partial
from pathlib import Path

import torch

from benchmarks.harness import Bar, Sample, check_same, interleave, judge, options, show
from benchmarks.work import BATCH, HIDDEN, Work

ON, OFF = "watched every second", "not watched"
OVERRIDES = {ON: ["logger.system.every_seconds=1"], OFF: ["logger.system.enabled=false"]}
STEPS_PER_EPOCH = 200
BARS = [Bar(ON, OFF, 1.01, kind="cpu"), Bar(ON, OFF)]


def run(work: Work, changes: list[str]) -> Sample:
    """Train an MLP from a composed configuration with its usual files, without checkpoints."""
    from lightkit import Runner, compose

    overrides = [
        "data=custom", "data.dataset._target_=benchmarks.work.data_set", f"+data.dataset.rows={work.rows}",
        "data.split.val=0", "data.split.test=0", f"data.batch_size={BATCH}", "model=mlp", f"model.hidden=[{HIDDEN}]",
        "checkpoint=none", "device.threads=1", "metrics=none", "metrics.monitor=train/loss", "metrics.mode=min",
        f"trainer.epochs={work.epochs}", "trainer.test=none", "logger.console.style=quiet", *changes,
    ]  # fmt: skip
    cfg, sample = compose(overrides).cfg, Sample()
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory(dir=work.folder) as folder, sample:
        result = Runner(cfg, Path(folder)).run()
    sample.proof = {"steps": result["steps"], "loss": result["metrics"]["train/loss"]}
    return sample


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bar holds."""
    args = options("cost of watching the machine", rounds=31, steps=10_000).parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    per_epoch = min(STEPS_PER_EPOCH, args.steps)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work = Work(per_epoch, args.steps // per_epoch, Path(folder))
        results = interleave({n: partial(run, work, changes) for n, changes in OVERRIDES.items()}, rounds=args.rounds)
    logging.disable(logging.NOTSET)
    show(f"{work.steps} steps, batch {BATCH}", results, OFF, per=work.steps, unit="µs")
    check_same(results, steps=0, loss=0)
    return judge(results, BARS)


if __name__ == "__main__":
    raise SystemExit(not main())
