"""Batches: lightkit's loader beside PyTorch's DataLoader, and for data in memory also beside bare `index_select`.

Everyone goes through the same samples in a new order each epoch. Of data in memory one number of every batch is read,
of JPEG files the mean of every batch.

    python -m benchmarks.loader [--rounds 9] [--steps 1000]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.harness import Bar, Sample, check_same, interleave, judge, options, show
from lightkit.data import Data, build_data
from lightkit.data.tensors import TensorData

LIGHTKIT, BARE, TORCH = "lightkit", "index_select", "DataLoader"
BATCHES_PER_EPOCH = 100


class Case(NamedTuple):
    """A kind of data.

    Args:
        title: What it is.
        batch: Samples per batch.
        shape: Shape of an input.
        levels: Whether inputs are uint8 levels, which become floats from 0 to 1 batch by batch.
    """

    title: str
    batch: int
    shape: tuple[int, ...]
    levels: bool = False


CASES = [
    Case("32 × 64 floats", 32, (64,)),
    Case("256 × 64 floats", 256, (64,)),
    Case("128 × 3 × 32 × 32 levels", 128, (3, 32, 32), levels=True),
]


def tensors(case: Case, rows: int) -> tuple[Tensor, Tensor]:
    """Inputs and classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(10, (rows,), generator=generator)
    if case.levels:
        return torch.randint(256, (rows, *case.shape), generator=generator, dtype=torch.uint8), y
    return torch.randn(rows, *case.shape, generator=generator), y


def read(epochs: Callable[[int], Iterable[Any]], *, number: int) -> Sample:
    """Go through the batches of so many epochs."""
    samples, total = 0, torch.zeros((), dtype=torch.int64)
    with (sample := Sample()):
        for epoch in range(number):
            for x, y in epochs(epoch):
                samples += len(x)
                total += y[0]
    sample.proof = {"samples": float(samples)}
    return sample


def bare(x: Tensor, y: Tensor, case: Case) -> Iterable[tuple[Tensor, Tensor]]:
    """The least that makes a batch."""
    for rows in torch.randperm(len(x)).split(case.batch):
        taken = x.index_select(0, rows)
        yield taken.to(torch.float32).div_(255.0) if case.levels else taken, y.index_select(0, rows)


class Levels(torch.utils.data.TensorDataset):
    """Sample by sample, as data sets for a DataLoader are written."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(index)
        return (x.to(torch.float32).div_(255.0), y) if x.dtype == torch.uint8 else (x, y)


def build(x: Tensor, y: Tensor, case: Case) -> Data:
    """Lightkit's loaders over all rows."""
    everything = {"by": "ordered", "val": 0.0, "test": 0.0}
    return build_data(dataset=TensorData(x, y), split=everything, batch_size=case.batch)


def measure(case: Case, *, rounds: int, steps: int) -> bool:
    """Measure one case; returns whether the bar holds."""
    per_epoch = min(BATCHES_PER_EPOCH, steps)
    x, y = tensors(case, per_epoch * case.batch)
    data, torchs = build(x, y, case), torch.utils.data.DataLoader(Levels(x, y), batch_size=case.batch, shuffle=True)
    sources: dict[str, Callable[[int], Iterable[Any]]] = {
        LIGHTKIT: data.train.epoch,
        BARE: lambda epoch: bare(x, y, case),
        TORCH: lambda epoch: torchs,
    }
    number = max(1, steps // per_epoch)
    results = interleave(
        {name: partial(read, source, number=number) for name, source in sources.items()}, rounds=rounds
    )
    check_same(results, samples=0)
    show(case.title, results, BARE, per=number * per_epoch, unit="µs")
    return judge(results, [Bar(LIGHTKIT, BARE, 1.3), Bar(LIGHTKIT, TORCH)])


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    args = options("batches of data in memory and of JPEG files", rounds=9, steps=1000).parse_args(arguments)
    torch.set_num_threads(1)
    held = []
    for case in CASES:
        held.append(measure(case, rounds=args.rounds, steps=args.steps))
        print()
    if find_spec("timm") is None:
        print("JPEG files: timm is not installed")
    else:
        from benchmarks import jpegs

        held.append(jpegs.measure(rounds=args.rounds, batches=args.steps))
    return all(held)


if __name__ == "__main__":
    raise SystemExit(not main())
