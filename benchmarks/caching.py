"""Epochs of JPEG files whose samples are kept (`data.cache`) beside epochs that decode: CPU time of an epoch.

Loader processes count. The first epoch, which fills the caches, is a warm-up and is not timed.

    python -m benchmarks.caching [--rounds 5] [--steps 20]
"""

from __future__ import annotations

import os
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import jpegs
from benchmarks.harness import Bar, check_same, interleave, judge, options, show
from lightkit.data import build_data
from lightkit.data.images import ImageFolder
from lightkit.data.sample_cache import keep_samples
from lightkit.data.sources import as_source

PLAIN, RAM, DISK = "decoded", "data.cache=ram", "data.cache=disk"
BARS = {0: 0.5, 2: 0.75}
"""By the number of loader processes, which have to hand over every batch, whether it was decoded or not."""


def measure(folder: Path, *, workers: int, rounds: int) -> bool:
    """Measure the files in a folder; returns whether the bars hold."""
    everything = {"by": "ordered", "val": 0.0, "test": 0.0}
    made, epochs = {}, count()
    for name, where in ((PLAIN, None), (RAM, "ram"), (DISK, "disk")):
        source = keep_samples(as_source(ImageFolder(str(folder), jpegs.SIZE)), where, workers)
        made[name] = build_data(dataset=source, split=everything, batch_size=jpegs.BATCH, num_workers=workers)
        for _ in made[name].train.epoch(0):
            pass
    looks = {name: partial(jpegs.look, lambda data=data: data.train.epoch(next(epochs))) for name, data in made.items()}
    results = interleave(looks, rounds=rounds, warm_ups=0)
    for data in made.values():
        data.close()
    check_same(results, samples=0, mean=1e-4)
    show(f"JPEG files, workers: {workers}", results, PLAIN, per=made[PLAIN].train.num_samples, unit="µs")
    return judge(results, [Bar(name, PLAIN, BARS[workers], kind="cpu") for name in (RAM, DISK)])


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    args = options("epochs of images whose samples are kept", rounds=5, steps=20).parse_args(arguments)
    torch.set_num_threads(1)
    held, before = [], os.environ.get("XDG_CACHE_HOME")
    with TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
        (photos := Path(name, "photos")).mkdir()
        jpegs.write(photos, args.steps * jpegs.BATCH)
        for workers in BARS:
            held.append(measure(photos, workers=workers, rounds=args.rounds))
            print()
    os.environ.pop("XDG_CACHE_HOME")
    os.environ |= {} if before is None else {"XDG_CACHE_HOME": before}
    return all(held)


if __name__ == "__main__":
    raise SystemExit(not main())
