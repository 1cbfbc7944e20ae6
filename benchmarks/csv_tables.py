"""From a CSV file to tensors: `data=table` beside pandas, by CPU time and by the most memory that the process holds.

Every measurement is a fresh process that has imported torch; importing the library that reads the file counts. Both
give float32 inputs and the classes or values to predict. lightkit's first start also writes its decoded copy, which
later starts read; pandas reads with its engine `pyarrow`. The bar of a second start is its least time on the clock, as
other programs slow all of them.

    python -m benchmarks.csv_tables [--rounds 5] [--steps 1000]
"""

from __future__ import annotations

import importlib.util
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Bar, Sample, check_same, interleave, judge, options, show
from benchmarks.startup import ROOT, environment

LIGHTKIT, AGAIN, PANDAS, FLOOR = "lightkit", "lightkit, second start", "pandas", "import torch alone"
BARS = [
    Bar(LIGHTKIT, PANDAS, 1.5, kind="cpu"),
    Bar(LIGHTKIT, PANDAS, 1.0, kind="peak"),
    Bar(AGAIN, "", kind="cpu"),
    Bar(AGAIN, "", 1.0, kind="wall", least=True),
]
CASES: dict[str, dict[str, Any]] = {
    "19 numbers, a number to predict": {"task": "regression"},
    "18 numbers, a category, a text to predict": {"categorical": ["colour"]},
}
"""Settings of `data.dataset` beside the file and the column `y`."""
COLOURS, KINDS = ("amber", "blue", "green", "red"), ("long", "middle", "short")


def write(path: Path, rows: int, case: dict[str, Any]) -> None:
    """Write a table of random numbers with as many digits as a float64 has."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv

    draw = np.random.default_rng(0)
    names = "categorical" in case
    columns = {f"x{i}": pa.array(draw.normal(size=rows)) for i in range(18)}
    columns["colour" if names else "x18"] = pa.array(draw.choice(COLOURS, rows) if names else draw.normal(size=rows))
    columns["y"] = pa.array(draw.choice(KINDS, rows) if names else draw.normal(size=rows))
    csv.write_csv(pa.table(columns), path)


def by_lightkit(path: str, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The data set, with its checks and its fingerprint."""
    from lightkit.data import table

    data = table(path, "y", **case)
    return data.x, data.y


def by_pandas(path: str, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The shortest way in pandas."""
    import pandas as pd

    names = case.get("categorical", [])
    table = pd.read_csv(path, engine="pyarrow")
    y = table.pop("y")
    if names:
        table = pd.get_dummies(table, columns=names, dtype="float32")
    target = torch.from_numpy(pd.factorize(y, sort=True)[0]) if names else torch.from_numpy(y.to_numpy("float32"))
    return torch.from_numpy(table.to_numpy("float32")), target


def by_nobody(path: str, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Nothing, which tells what the process holds before."""
    return torch.empty(0), torch.empty(0)


READERS = {LIGHTKIT: by_lightkit, AGAIN: by_lightkit, PANDAS: by_pandas, FLOOR: by_nobody}


def read(name: str, path: str, title: str) -> None:
    """Read the file in this process and print the measurement."""
    with Sample() as sample:
        x, y = READERS[name](path, CASES[title])
    proof = {"inputs": x.double().abs().sum().item(), "targets": y.double().abs().sum().item()} if len(x) else {}
    print(json.dumps({"wall": sample.wall, "cpu": sample.cpu, "peak": peak_mib(), "proof": proof}))


def peak_mib() -> float:
    """The most memory that this process has held in MiB."""
    status = Path("/proc/self/status")  # `getrusage` also counts what its parent held when it started this one
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 1024


def measure(name: str, path: Path, title: str) -> Sample:
    """Read the file in a fresh process; a first start finds no decoded copy."""
    if name == LIGHTKIT:
        shutil.rmtree(path.parent / name, ignore_errors=True)
    own = environment() | {"XDG_CACHE_HOME": str(path.parent / name)}
    code = f"from benchmarks import csv_tables; csv_tables.read({name!r}, {str(path)!r}, {title!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=own, stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout)
    return Sample(**found | {"proof": found["proof"] | {"MiB": found["peak"]}})


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    parser = options("from a CSV file to tensors, beside pandas", rounds=5, steps=1000)
    parser.epilog = "--steps is the number of rows in thousands."
    args = parser.parse_args(arguments)
    if importlib.util.find_spec("pandas") is None:
        print("pandas is not installed, so there is nothing to compare with: pip install -e '.[bench]'")
        return True
    held = []
    for title, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "table.csv")
            write(path, args.steps * 1000, case)
            time.sleep(2.5)  # a file that may still be written to is not copied
            results = interleave({name: partial(measure, name, path, title) for name in READERS}, rounds=args.rounds)
        check_same(results, inputs=args.steps * 1e-3, targets=args.steps * 1e-3)
        show(title, results, PANDAS, unit="s")
        held.append(judge(results, BARS))
        print()
    return all(held)


if __name__ == "__main__":
    raise SystemExit(not main())
