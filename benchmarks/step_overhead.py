"""What a training step costs besides the arithmetic: lightkit beside loops written by hand and other frameworks.

Everyone trains the same network on the same data with SGD, keeps five torchmetrics and the mean loss of the epoch, and
logs to TensorBoard every 50 steps. Only the fit is timed. Frameworks that are not installed are left out.

    python -m benchmarks.step_overhead [--rounds 9] [--steps 2000]
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import peers
from benchmarks.harness import Bar, Sample, check_same, interleave, judge, options, show
from benchmarks.work import (
    BATCH,
    CLASSES,
    HIDDEN,
    LOG_STEPS,
    METRICS,
    RATE,
    InMemory,
    Work,
    clouds,
    data_loader,
    metric_collection,
    network,
    sgd,
)

STEPS_PER_EPOCH = 200
LIGHTKIT, MEMORY, LOADER = "lightkit", "by hand, in memory", "by hand, DataLoader"
BLOCKS, FLOOR = "by hand, in memory, metrics in blocks", "by hand, no metrics, no log"
PEERS: dict[str, tuple[str, Callable[[Work, Any], Sample]]] = {
    "ignite": ("ignite", peers.ignite),
    "Accelerate": ("accelerate", peers.accelerate),
    "Lightning": ("lightning", peers.lightning),
}
BARS = [Bar(LIGHTKIT, MEMORY, 1.05), Bar(LIGHTKIT, LOADER, 0.7), Bar(LIGHTKIT, BLOCKS), Bar(LIGHTKIT, FLOOR)]


class InBlocks:
    """The metrics updated for 32 steps at once, as lightkit does it: the loop of somebody who has measured."""

    def __init__(self) -> None:
        self.metrics, self.queue = metric_collection(), []  # type: Any, list[tuple[Tensor, Tensor]]

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Keep the outputs and targets of a step."""
        self.queue.append((preds, target))
        if len(self.queue) == 32:
            self.flush()

    def flush(self) -> None:
        """Count what was kept."""
        if self.queue:
            preds, target = zip(*self.queue)
            self.metrics.update(torch.cat(preds), torch.cat(target))
            self.queue.clear()

    def compute(self) -> dict[str, Tensor]:
        """The values of the epoch."""
        self.flush()
        return dict(self.metrics.compute())

    def reset(self) -> None:
        """Begin an epoch."""
        self.metrics.reset()


def by_hand(work: Work, batches: Iterable[Any], make_metrics: Callable[[], Any] = metric_collection) -> Sample:
    """The loop a careful person writes."""
    from torch.utils.tensorboard import SummaryWriter

    model, criterion, metrics, step = network(), nn.CrossEntropyLoss(), make_metrics(), 0
    optimizer, writer, sample = sgd(model), SummaryWriter(str(work.folder / "hand")), Sample()
    with sample:
        model.train()
        for _ in range(work.epochs):
            metrics.reset()
            total = torch.zeros((), dtype=torch.float64)
            for x, y in batches:
                optimizer.zero_grad()
                output = model(x)
                loss = criterion(output, y)
                loss.backward()
                optimizer.step()
                metrics.update(output.detach(), y)
                total += loss.detach() * len(y)
                step += 1
                if step % LOG_STEPS == 0:
                    writer.add_scalar("train/loss_step", loss.item(), step)
                    writer.add_scalar("lr", optimizer.param_groups[0]["lr"], step)
            values = {**metrics.compute(), "loss": total / work.rows}
            for name, value in values.items():
                writer.add_scalar(f"train/{name}", value, step)
    writer.close()
    return peers.proven(sample, values, steps=step)


def floor(work: Work, batches: Iterable[Any]) -> Sample:
    """The arithmetic alone: nothing is measured, nothing logged."""
    model, criterion, sample = network(), nn.CrossEntropyLoss(), Sample()
    optimizer = sgd(model)
    with sample:
        for _ in range(work.epochs):
            for x, y in batches:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
    return sample


def lightkit(work: Work) -> Sample:
    """A whole run through the public door: its configuration is composed, checked and built, and its fit is timed."""
    from lightkit import Runner, compose

    nodes = json.dumps(METRICS).replace('"', "")
    overrides = [
        "data=custom", "data.dataset._target_=benchmarks.work.data_set", f"+data.dataset.rows={work.rows}",
        "data.split.val=0", "data.split.test=0", f"data.batch_size={BATCH}",
        "model=mlp", f"model.hidden=[{HIDDEN}]",
        "optim=sgd", f"optim.lr={RATE}", "optim.momentum=0", "optim.nesterov=false", "optim.weight_decay=0",
        "scheduler=constant", "checkpoint=none", "device=cpu", "device.threads=1",
        f"metrics.train={nodes}", "metrics.monitor=train/accuracy",
        f"trainer.epochs={work.epochs}", "trainer.test=none", "logger.console.style=quiet",
        "trainer.callbacks={stopwatch: {_target_: benchmarks.work.Stopwatch}}",
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory(dir=work.folder) as folder:
        result = Runner(compose(overrides).cfg, Path(folder)).run()
    values = {name.removeprefix("train/"): value for name, value in result["metrics"].items()}
    sample = Sample(values["stopwatch/wall"], values["stopwatch/cpu"])
    return peers.proven(sample, values, steps=result["steps"])


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    chosen = options("cost of a training step beside loops by hand and other frameworks", rounds=9, steps=2000)
    chosen.add_argument("--no-peers", action="store_true", help="leave the other frameworks out")
    args = chosen.parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    per_epoch = min(STEPS_PER_EPOCH, args.steps)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work = Work(per_epoch, args.steps // per_epoch, Path(folder))
        results = interleave(contestants(work, frameworks=not args.no_peers), rounds=args.rounds)
    logging.disable(logging.NOTSET)
    show(f"{work.steps} steps, batch {BATCH}, {CLASSES} classes", results, LOADER, per=work.steps, unit="µs")
    check_same(results, steps=0, accuracy=0.05 if work.steps >= 1000 else 1.0)
    return judge(results, BARS)


def contestants(work: Work, *, frameworks: bool) -> dict[str, Callable[[], Sample]]:
    """Everyone who can take part here."""
    x, y = clouds(work.rows)
    found = {
        LIGHTKIT: lambda: lightkit(work),
        MEMORY: lambda: by_hand(work, InMemory(x, y)),
        BLOCKS: lambda: by_hand(work, InMemory(x, y), InBlocks),
        LOADER: lambda: by_hand(work, data_loader(x, y)),
        FLOOR: lambda: floor(work, InMemory(x, y)),
    }
    for name, (module, run) in PEERS.items():
        if frameworks and importlib.util.find_spec(module):
            found[name] = lambda run=run: run(work, data_loader(x, y))
    return found


if __name__ == "__main__":
    raise SystemExit(not main())
