"""What the benchmarks for a GPU share: the cases, the loop by hand, a run of lightkit, and clocks that wait.

Everyone starts from the same weights, gets the same samples in the same order, and steps with AdamW. A clock is started
after steps that warm up, and read once more after the last one; each time the GPU has finished what it was given.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import Bar, Results, Sample, figure, options
from lightkit.common.randomness import mix
from lightkit.data.tensors import TensorData
from lightkit.device.casting import channels_last, weights_channels_last
from lightkit.trainer import Callback, Trainer

CLASSES, SEED, RATE, LOG_STEPS = 10, 0, 1e-3, 50
NO_GPU = "this benchmark needs a CUDA GPU: nothing was measured (--device cpu --small shows that its code runs)"


@dataclass(frozen=True)
class Case:
    """A network and its batches.

    Args:
        title: What it is.
        model: Option of the group `model`.
        settings: Settings of the model, by name.
        shape: Shape of a sample.
        batch: Samples a step.
        images: Whether its convolutions are computed with the channels last.
        small: What `--small` makes of the settings, and the shape and the batch.
    """

    title: str
    model: str
    settings: dict[str, Any]
    shape: tuple[int, ...]
    batch: int
    small: tuple[dict[str, Any], tuple[int, ...], int]
    images: bool = False

    def shrunk(self) -> Case:
        """The same at a size that a CPU computes in no time."""
        settings, shape, batch = self.small
        title = f"a small {self.model}"
        return replace(self, title=title, settings={**self.settings, **settings}, shape=shape, batch=batch)

    def overrides(self) -> list[str]:
        """The group `model` for the command line."""
        chosen = [f"model.{name}={value}".replace(" ", "") for name, value in self.settings.items()]
        return [f"model={self.model}", *chosen, f"device.channels_last={str(self.images).lower()}"]


@dataclass(frozen=True)
class Work:
    """How much is to be done, and where.

    Args:
        case: The network.
        device: `cuda` or `cpu`.
        steps: Optimizer steps that are timed.
        warm: Steps before them.
        precision: Of lightkit, and of the loop by hand: `bf16` or `fp32`.
    """

    case: Case
    device: str
    steps: int
    warm: int
    precision: str

    @property
    def rows(self) -> int:
        """Samples of the one epoch there is."""
        return (self.steps + self.warm) * self.case.batch


class Repeated:
    """A data set in memory whose rows come again and again, so that an epoch is as long as a measurement.

    Args:
        shape: Shape of a sample.
        rows: Rows of an epoch.
        kept: Rows in memory.
    """

    exact = True

    def __init__(self, shape: Sequence[int], rows: int, kept: int) -> None:
        self.data, self._rows = _samples(tuple(shape), min(rows, kept)), rows
        self.info = self.data.info

    def __len__(self) -> int:
        return self._rows

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of `rows`, `(B,)` int64."""
        return self.data.take(rows % len(self.data))


@lru_cache(maxsize=2)
def _samples(shape: tuple[int, ...], rows: int) -> TensorData:
    """Noise around a mean that tells the class: there is something to learn."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(rows) % CLASSES
    x = torch.randn(rows, *shape, generator=generator)
    return TensorData(x.add_(0.2 * y.view(-1, *[1] * len(shape))), y)


SAME = {"first loss": 0.02, "loss": 0.3}
"""How far the first loss and the mean loss of two sides may be apart: rounding differs, and grows."""
KEPT = 1024
"""Rows in memory: 0.6 GB of images of 224 × 224 pixels."""


class Span(Callback):
    """Times the steps of a run after those that warm up; the time ends up among the run's values.

    Args:
        warm: Steps before the clock starts.
    """

    def __init__(self, warm: int) -> None:
        self.warm, self._sample, self._first = max(warm, 1), Sample(), 0.0

    def on_step(self, trainer: Trainer) -> None:
        """Start or stop the clock; the loss of the first step is kept, which has to be the same for all."""
        if trainer.state.step == 1:
            self._first = trainer.stepper.loss.item()
        if trainer.state.step == self.warm:
            finish(trainer.engine.device.type)
            self._sample.__enter__()
        elif trainer.state.step == trainer.timetable.total_steps:
            finish(trainer.engine.device.type)
            self._sample.__exit__(None, None, None)

    def on_fit_end(self, trainer: Trainer) -> None:
        """Tell the times."""
        told = {"wall": self._sample.wall, "cpu": self._sample.cpu, "first": self._first}
        trainer.state.last.update({f"span/{name}": value for name, value in told.items()})


def finish(device: str) -> None:
    """Wait until the GPU has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def lightkit(work: Work, *switches: str) -> Sample:
    """A whole run through the public door; its steps after the warm-up are timed."""
    from lightkit import Runner, compose

    shape = str(list(work.case.shape)).replace(" ", "")
    overrides = [
        "data=custom", "data.dataset._target_=benchmarks.gpu.Repeated", f"+data.dataset.shape={shape}",
        f"+data.dataset.rows={work.rows}", f"+data.dataset.kept={KEPT}",
        "data.split.by=ordered", "data.split.val=0", "data.split.test=0", f"data.batch_size={work.case.batch}",
        *work.case.overrides(),
        "optim=adamw", f"optim.lr={RATE}", "optim.weight_decay=0.01", "scheduler=constant", "checkpoint=none",
        f"device={work.device}", f"device.precision={work.precision}",
        f"device.cudnn_benchmark={work.device == 'cuda'}",
        *switches,
        "metrics=none", "metrics.monitor=train/loss", f"logger.every_steps={LOG_STEPS}", f"seed={SEED}",
        "trainer.epochs=1", "trainer.test=none", "logger.console.style=quiet",
        f"trainer.callbacks={{span: {{_target_: benchmarks.gpu.Span, warm: {work.warm}}}}}",
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        values = Runner(compose(overrides).cfg, Path(folder)).run()["metrics"]
    _give_back(work.device)
    proof = {"first loss": values["span/first"], "loss": values["train/loss"]}
    return Sample(values["span/wall"], values["span/cpu"], proof)


def by_hand(work: Work, change: Callable[[nn.Module], Any] = lambda model: model) -> Sample:
    """The loop of somebody who has read the performance guide.

    Page-locked memory that is used again, copies that nothing waits for, autocast, one kernel for the optimizer step,
    gradients set to None, convolutions with their channels last, and a look at the loss every 50 steps only.

    Args:
        work: What is to be done.
        change: What becomes of the model, such as `torch.compile`.
    """
    torch.backends.cudnn.benchmark = work.device == "cuda"
    model = network(work.case).to(work.device)
    model = weights_channels_last(model) if work.case.images else model
    call, criterion, sample = change(model), nn.CrossEntropyLoss(), Sample()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, fused=True)
    losses = torch.zeros(work.steps + work.warm, device=work.device)
    model.train()
    for step, (x, y) in enumerate(batches(work), start=1):
        with _autocast(work):
            output = call(x)
        loss = criterion(output.float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses[step - 1] = loss.detach()
        if step == max(work.warm, 1):
            finish(work.device)
            sample.__enter__()
        if step % LOG_STEPS == 0:
            loss.item()
    finish(work.device)
    sample.__exit__(None, None, None)
    sample.proof = {"first loss": losses[0].item(), "loss": losses.mean().item()}
    del model, call, optimizer, loss, output
    _give_back(work.device)
    return sample


def network(case: Case) -> nn.Module:
    """The network with the weights that a run of lightkit starts from."""
    from lightkit import compose
    from lightkit.config import instantiate

    cfg = compose(case.overrides()).cfg
    torch.manual_seed(mix(SEED, "init"))
    model: nn.Module = instantiate(
        cfg.model, key="model", expected=nn.Module, **_samples(case.shape, CLASSES).info.sizes()
    )
    return model


def batches(work: Work) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches on the device, in lightkit's order; the next one is copied while this one is computed."""
    data = Repeated(work.case.shape, work.rows, KEPT).data
    order = torch.randperm(work.rows, generator=torch.Generator().manual_seed(mix(SEED, "order", 0))) % len(data)
    if work.device != "cuda":
        yield from ((channels_last(data.x[rows]), data.y[rows]) for rows in order.split(work.case.batch))
        return
    rooms = [_Room(data, work.case) for _ in range(2)]
    copies, ahead = torch.cuda.Stream(), None
    for number, rows in enumerate(order.split(work.case.batch)):
        ready, ahead = ahead, rooms[number % 2].filled(rows, copies)
        if ready is not None:
            yield _taken(*ready)
    if ahead is not None:
        yield _taken(*ahead)


class _Room:
    """Page-locked memory for one batch."""

    def __init__(self, data: TensorData, case: Case) -> None:
        self._data, self._free = data, torch.cuda.Event()
        self._x = torch.empty(case.batch, *case.shape, pin_memory=True)
        self._y = torch.empty(case.batch, dtype=torch.int64, pin_memory=True)

    def filled(self, rows: Tensor, copies: Any) -> tuple[Tensor, Tensor, Any]:
        """A batch on its way to the GPU, and the event of its arrival."""
        self._free.synchronize()  # the copy before has left this memory
        torch.index_select(self._data.x, 0, rows, out=self._x)
        torch.index_select(self._data.y, 0, rows, out=self._y)
        with torch.cuda.stream(copies):
            x, y = self._x.cuda(non_blocking=True), self._y.cuda(non_blocking=True)
            self._free.record()
        return x, y, self._free


def _taken(x: Tensor, y: Tensor, arrived: Any) -> tuple[Tensor, Tensor]:
    now = torch.cuda.current_stream()
    now.wait_event(arrived)
    for tensor in (x, y):
        tensor.record_stream(now)
    return channels_last(x), y


def _autocast(work: Work) -> AbstractContextManager[Any]:
    return torch.autocast(work.device, dtype=torch.bfloat16) if work.precision == "bf16" else nullcontext()


def _give_back(device: str) -> None:
    """Let nothing of a contestant be in the way of the next one."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def judge(title: str, results: Results, name: str, *, base: str, least: float | None) -> bool:
    """Print how many times the throughput of `base` a contestant has, beside the bar; returns whether it holds."""
    value = 1 / figure(results, Bar(name, base))
    kept = least is None or value >= least
    wanted = "" if least is None else f" (at least {least:g}: {'ok' if kept else 'MISSED'})"
    print(f"{title}: {name} / {base}, throughput: {value:.3f}{wanted}")
    return kept


def arguments(description: str, given: Sequence[str] | None, *, rounds: int, steps: int) -> argparse.Namespace | None:
    """The options of such a benchmark; None where there is no GPU, which is told."""
    chosen = options(description, rounds=rounds, steps=steps)
    chosen.add_argument("--warm", type=int, default=50, help="steps before those that are timed")
    chosen.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="where to compute")
    chosen.add_argument("--small", action="store_true", help="small networks, to see that everything runs")
    args = chosen.parse_args(given)
    if args.device == "cuda" and not torch.cuda.is_available():
        print(NO_GPU)
        return None
    return args
