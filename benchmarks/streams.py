"""Samples of shards: lightkit's beside WebDataset's and LitData's; and the order of an epoch of very many rows.

    python -m benchmarks.streams [--rounds 7] [--steps 32] [--draw docs/images/order.png]

All three decode the same JPEG files by the same function, shuffle them anew in each epoch (in windows, or by a buffer,
of as many samples) and make batches of 64. lightkit and WebDataset read the same tar files, LitData the chunks that it
makes of the same samples; where LitData is not installed (`pip install litdata`), a line says so. CPU time is that of
this process and of its workers. The order is measured in a fresh process: time and memory until the first batch of an
epoch is known, beside `torch.randperm`.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.harness import Bar, Sample, check_same, interleave, judge, look, options, print_table, show
from lightkit.data import Data, build_data
from lightkit.data.images import read_image
from lightkit.data.orders import Windows
from lightkit.data.streams import Stream

LIGHTKIT, WEBDATASET, LITDATA = "lightkit", "WebDataset", "LitData"
HAS_LITDATA = find_spec("litdata") is not None
BATCH, SHARDS, WINDOW = 64, 8, 512
SIZES = (32, 224)
"""Pixels a side of the pictures: of small ones little of the time is spent on decoding."""
ROWS = (1_000_000, 3_000_000, 10_000_000)
_ORDER = """
import json, re, sys, time
from pathlib import Path
import torch
from lightkit.data.samplers import EpochOrder
def held(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
kind, rows = sys.argv[1], torch.arange(int(sys.argv[2]))
order = EpochOrder(None, rows, rows, kind)
some = torch.arange(1 << 20)
EpochOrder(None, some, some).stretch(0, 0, 64)[:64]  # what the first call loads is no memory of the order
Path("/proc/self/clear_refs").write_text("5")  # begin a new peak
before, cpu, wall = held("VmRSS"), time.process_time(), time.perf_counter()
epoch = order.stretch(0, len(rows), len(rows))
first = epoch[:64]
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
print(json.dumps({"wall": wall, "cpu": cpu, "peak": max(0.0, held("VmHWM") - before), "first": len(first)}))
"""
BARS = [Bar("feistel-1", "", 0.1, kind="wall"), Bar("feistel-1", "", 1.0, kind="peak")]
"""Of the largest number of rows: seconds and MiB."""


def samples(number: int, size: int) -> list[tuple[bytes, int]]:
    """Smooth random pictures as JPEG files, with classes."""
    generator, found = np.random.default_rng(0), []
    for row in range(number):
        small, content = Image.fromarray(generator.integers(0, 256, (12, 12, 3), dtype=np.uint8)), io.BytesIO()
        small.resize((size, size), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
        found.append((content.getvalue(), row % 10))
    return found


def write(folder: Path, found: list[tuple[bytes, int]]) -> None:
    """Write the same samples as tar files and as LitData's chunks."""
    (folder / "tar").mkdir()
    each = -(-len(found) // SHARDS)
    if HAS_LITDATA:
        from litdata.streaming.writer import BinaryWriter

        (folder / "chunks").mkdir()
        writer = BinaryWriter(str(folder / "chunks"), chunk_size=each)
        for row, (content, label) in enumerate(found):
            writer[row] = {"jpg": content, "cls": label}
        writer.done()
        writer.merge()
    for shard in range(SHARDS):
        with tarfile.open(folder / "tar" / f"{shard}.tar", "w") as tar:
            for row in range(shard * each, min(len(found), (shard + 1) * each)):
                for field, part in (("jpg", found[row][0]), ("cls", str(found[row][1]).encode())):
                    member = tarfile.TarInfo(f"{row:06d}.{field}")
                    member.size = len(part)
                    tar.addfile(member, io.BytesIO(part))


def decoded(content: bytes) -> Tensor:
    """What all contestants make of a picture."""
    return read_image(io.BytesIO(content), size=None, channels=3)


def ours(folder: Path, workers: int) -> Data:
    """Batches of lightkit."""
    return build_data(
        dataset=Stream(str(folder / "tar"), "cls", "jpg"),
        split={"by": "ordered", "val": 0.0, "test": 0.0},
        sampler=lambda **facts: Windows(facts["num_samples"], facts["shards"], WINDOW),
        batch_size=BATCH,
        num_workers=workers,
    )


def of_webdataset(folder: Path, workers: int) -> Iterable[Any]:
    """Batches of WebDataset."""
    import webdataset

    shards = sorted(str(path) for path in (folder / "tar").glob("*.tar"))
    data = webdataset.WebDataset(shards, shardshuffle=SHARDS).shuffle(WINDOW).to_tuple("jpg", "cls")
    batches = data.map_tuple(decoded, int).batched(BATCH)
    return webdataset.WebLoader(batches, batch_size=None, num_workers=workers, persistent_workers=workers > 0)


def of_litdata(folder: Path, workers: int) -> Iterable[Any]:
    """Batches of LitData."""
    from litdata import StreamingDataLoader, StreamingDataset

    def pair(sample: dict[str, Any]) -> tuple[Tensor, int]:
        return decoded(sample["jpg"]), sample["cls"]

    data = StreamingDataset(str(folder / "chunks"), shuffle=True, transform=pair)
    return StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0)


def measure(size: int, workers: int, *, rounds: int, batches: int) -> bool:
    """Measure one size of pictures; returns whether the bars hold."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, samples(batches * BATCH, size))
        data, epochs = ours(folder, workers), count()
        tars = of_webdataset(folder, workers)
        sources: dict[str, Any] = {LIGHTKIT: lambda: data.train.epoch(next(epochs)), WEBDATASET: lambda: tars}
        if HAS_LITDATA:
            chunks = of_litdata(folder, workers)
            sources[LITDATA] = lambda: chunks
        results = interleave({who: partial(look, source) for who, source in sources.items()}, rounds=rounds)
        data.close()
        check_same(results, samples=0, mean=0.001)
        show(f"{size} × {size}, workers: {workers}", results, LIGHTKIT, per=batches * BATCH, unit="µs")
    peers = [peer for peer in (WEBDATASET, LITDATA) if peer in results]
    return judge(results, [Bar(LIGHTKIT, peer, 1.0, kind=kind) for peer in peers for kind in ("wall", "cpu")])


def order(kind: str, rows: int) -> Sample:
    """Begin an epoch of so many rows in a fresh process."""
    command = [sys.executable, "-c", _ORDER, kind, str(rows)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return Sample(found["wall"], found["cpu"], found["peak"], {"first": found["first"]})


def measure_order(*, rounds: int, drawn: Path | None) -> bool:
    """Measure the beginning of an epoch over numbers of rows; returns whether the bars hold."""
    results, table = {}, []
    for rows in ROWS:
        made = {kind: partial(order, kind, rows) for kind in ("feistel-1", "randperm")}
        results[rows] = interleave(made, rounds=rounds, warm_ups=0)
        for kind, found in results[rows].items():
            middle = [float(np.median([getattr(one, name) for one in found])) for name in ("wall", "peak")]
            table.append([f"{rows:,}", kind, f"{middle[0] * 1e3:.2f}", f"{middle[1]:.2f}"])
    print_table(["rows", "order", "ms to the first batch", "MiB"], table)
    if drawn is not None:
        draw(drawn, results)
    return judge(results[ROWS[-1]], BARS)


def draw(path: Path, results: dict[int, Any]) -> None:
    """Draw memory over rows."""
    from lightkit.common.drawing import add_legend, new_figure, png, ruled

    figure, axes = new_figure(6.4, 3.6, "Memory that the order of an epoch takes")
    for kind in ("randperm", "feistel-1"):
        peaks = [float(np.median([one.peak for one in found[kind]])) for found in results.values()]
        axes.plot([rows / 1e6 for rows in results], peaks, marker="o", label=kind)
    axes.set(xlabel="million rows", ylabel="MiB until the first batch")
    ruled(axes)
    add_legend(axes)
    path.write_bytes(png(figure))


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    parser = options("samples of shards, and the order of very many rows", rounds=7, steps=32)
    parser.add_argument("--draw", type=Path, help="where to draw memory over rows")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    held = []
    if not HAS_LITDATA:
        print("LitData does not take part: pip install litdata\n")
    for size in SIZES:
        for workers in (0, 2):
            held.append(measure(size, workers, rounds=args.rounds, batches=args.steps))
            print()
    held.append(measure_order(rounds=args.rounds, drawn=args.draw))
    return all(held)


if __name__ == "__main__":
    raise SystemExit(not main())
