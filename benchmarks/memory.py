"""The most memory that reading a table, and beginning an epoch, take over the number of rows, as a picture.

Each measurement is a fresh process that has imported what it needs; what it held before does not count. The table has
three numbers and one to predict. A second start reads the decoded copy that the first one left.

    python -m benchmarks.memory [--rounds 1] [--steps 10000] [--draw docs/images/rows-memory.png]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import options, print_table
from benchmarks.startup import ROOT, environment
from benchmarks.streams import order

FIRST, AGAIN, ITSELF = "CSV file to tensors", "second start", "the tensors themselves"
ORDERS = {"randperm": "order by torch.randperm", "feistel-1": "order of an epoch"}
COLUMNS = 4
ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
_TABLE = """
import json, re, sys
from pathlib import Path
import torch
from lightkit.data import table
from lightkit.data import table_cache
def held(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
torch.set_num_threads(1)
table_cache._LEAST = 1
table(sys.argv[2], "y", task="regression")  # what the first call loads is no memory of the table
Path("/proc/self/clear_refs").write_text("5")  # begin a new peak
before = held("VmRSS")
data = table(sys.argv[1], "y", task="regression")
print(json.dumps([held("VmHWM") - before, len(data)]))
"""


def write(path: Path, rows: int) -> None:
    """Write a table of random numbers."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv

    draw = np.random.default_rng(0)
    with csv.CSVWriter(path, pa.schema([(name, pa.float64()) for name in ("a", "b", "c", "y")])) as file:
        for begin in range(0, rows, 1 << 20):
            numbers = draw.normal(size=(COLUMNS, min(1 << 20, rows - begin))).round(4)
            file.write(pa.record_batch([*map(pa.array, numbers)], names=list("abcy")))


def table(path: Path, small: Path) -> float:
    """Read a table in a fresh process; returns MiB."""
    own = environment() | {"XDG_CACHE_HOME": str(path.parent / "cache")}
    command = [sys.executable, "-c", _TABLE, str(path), str(small)]
    return json.loads(subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True).stdout)[0]


def measure(rows: int, small: Path) -> dict[str, float]:
    """Measure a number of rows; returns MiB by name."""
    path = small.with_name("table.csv")
    write(path, rows)
    time.sleep(2.5)  # a file that may still be written to is not copied
    found = {FIRST: table(path, small), AGAIN: table(path, small), ITSELF: rows * COLUMNS * 4 / 2**20}
    path.unlink()
    return found | {name: order(kind, rows).peak for kind, name in ORDERS.items()}


def draw(path: Path, found: dict[int, dict[str, float]]) -> None:
    """Draw memory over rows, both on logarithmic axes."""
    from lightkit.common.drawing import add_legend, new_figure, png, ruled

    figure, axes = new_figure(6.4, 4.0, "Most memory over rows: a table of 4 columns, and an order")
    for name in next(iter(found.values())):
        line = "--" if name == ITSELF else "-"
        axes.plot([*found], [max(0.01, own[name]) for own in found.values()], line, marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="MiB")
    ruled(axes)
    add_legend(axes)
    path.write_bytes(png(figure))


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; it judges nothing."""
    parser = options("memory over rows", rounds=1, steps=ROWS[-1] // 1000)
    parser.epilog = "--steps is the largest number of rows in thousands."
    parser.add_argument("--draw", type=Path, help="where to draw memory over rows")
    args = parser.parse_args(arguments)
    found = {}
    with TemporaryDirectory() as folder:
        write(small := Path(folder, "small.csv"), 100)
        for rows in (some for some in ROWS if some <= args.steps * 1000):
            runs = [measure(rows, small) for _ in range(args.rounds)]
            found[rows] = {name: min(own[name] for own in runs) for name in runs[0]}
    names = [*next(iter(found.values()))]
    print_table(
        ["rows", *names], [[f"{rows:,}", *(f"{own[name]:.2f}" for name in names)] for rows, own in found.items()]
    )
    if args.draw is not None:
        draw(args.draw, found)
    return True


if __name__ == "__main__":
    raise SystemExit(not main())
