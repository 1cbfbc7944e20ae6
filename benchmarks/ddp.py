"""Two processes that share every batch (`device.parallel=ddp`) beside one, and beside DistributedDataParallel by hand.

The global batch is the same for all, and each process computes with one thread. Processes are started for every
measurement; only the fit is timed, by rank 0. With fewer free cores than processes there is nothing to be won.

    python -m benchmarks.ddp [--rounds 3] [--steps 150]
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Bar, Sample, check_same, interleave, judge, options, show
from benchmarks.work import CLASSES, FEATURES, clouds

ONE, TWO, HAND = "lightkit, one process", "lightkit, two processes", "by hand, two processes"
BATCH, HIDDEN, RATE = 512, 1024, 0.02
BARS = [Bar(TWO, ONE, 0.9), Bar(TWO, HAND, 1.15)]


def measured(kind: str, count: int, steps: int) -> Sample:
    """One measurement in `count` processes of their own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(count):
            named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            env = {**os.environ, "MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in named.items()}}
            command = [sys.executable, "-m", "benchmarks.ddp", "--worker", kind, "--steps", str(steps)]
            command += ["--folder", folder]
            started.append(
                subprocess.Popen(command, env=env, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL)
            )
        text, _ = started[0].communicate()
        if any(process.wait() for process in started):
            raise RuntimeError(f"{kind} in {count} processes failed")
    return Sample(**json.loads(text.splitlines()[-1]))


def by_hand(steps: int) -> Sample:
    """The loop a careful person writes."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = clouds(steps * BATCH)
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
    model = nn.parallel.DistributedDataParallel(inner.append(nn.Linear(HIDDEN, CLASSES)))
    optimizer, criterion, sample = torch.optim.SGD(model.parameters(), lr=RATE), nn.CrossEntropyLoss(), Sample()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    dist.barrier()
    with sample:
        for rows in order.split(BATCH):
            own = rows.chunk(size)[rank]
            optimizer.zero_grad()
            criterion(model(x[own]), y[own]).backward()
            optimizer.step()
    sample.proof = {"steps": float(steps)}
    return sample


def lightkit(steps: int, folder: Path) -> Sample:
    """A whole run from a composed configuration."""
    from lightkit import Runner, compose

    overrides = [
        "data=custom", "data.dataset._target_=benchmarks.work.data_set", f"+data.dataset.rows={steps * BATCH}",
        "data.split.val=0", "data.split.test=0", f"data.batch_size={BATCH}",
        "model=mlp", f"model.hidden=[{HIDDEN},{HIDDEN}]", "model.norm=none", "logger.tensorboard.enabled=false",
        "optim=sgd", f"optim.lr={RATE}", "optim.momentum=0", "optim.nesterov=false", "optim.weight_decay=0",
        "scheduler=constant", "checkpoint=none", "device=cpu", "device.parallel=ddp", "device.threads=1",
        "metrics=none", "metrics.monitor=train/loss", "metrics.mode=min",
        "trainer.epochs=1", "trainer.test=none", "logger.console.style=quiet",
        "trainer.callbacks={stopwatch: {_target_: benchmarks.work.Stopwatch}}",
    ]  # fmt: skip
    result = Runner(compose(overrides).cfg, folder / "run").run()
    values = result["metrics"]
    return Sample(values["stopwatch/wall"], values["stopwatch/cpu"], {"steps": float(result["steps"])})


def contestants(steps: int) -> dict[str, Callable[[], Sample]]:
    """All of them."""
    return {
        ONE: partial(measured, "lightkit", 1, steps),
        TWO: partial(measured, "lightkit", 2, steps),
        HAND: partial(measured, "hand", 2, steps),
    }


def work(kind: str, steps: int, folder: Path) -> None:
    """Be one of the processes of a measurement."""
    torch.set_num_threads(1)
    sample = by_hand(steps) if kind == "hand" else lightkit(steps, folder)
    sys.stdout.write(json.dumps({"wall": sample.wall, "cpu": sample.cpu, "proof": sample.proof}) + "\n")
    sys.stdout.flush()
    os._exit(0)


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    parser = options("Two processes that share every batch beside one.", rounds=3, steps=150)
    parser.add_argument("--worker", choices=["lightkit", "hand"])
    parser.add_argument("--folder", type=Path)
    chosen: Any = parser.parse_args(arguments)
    if chosen.worker:
        work(chosen.worker, chosen.steps, chosen.folder)
    results = interleave(contestants(chosen.steps), rounds=chosen.rounds, warm_ups=0)
    check_same(results, steps=0)
    show(f"MLP {FEATURES} → {HIDDEN} → {HIDDEN} → {CLASSES}, batch {BATCH}", results, ONE, per=chosen.steps)
    return judge(results, BARS)


if __name__ == "__main__":
    sys.exit(not main())
