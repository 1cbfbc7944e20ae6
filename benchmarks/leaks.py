"""What the look for leaks at the start of a run costs: its share of the CPU time of the whole run.

    python -m benchmarks.leaks [--epochs 5] [--rows 100000] [--files 1000]

Each run is a process of its own that trains wine, digits, a table of twenty features, or JPEG files, and counts the
look, with its imports, apart. It ends with status 1 where the look takes more than 2 % of a run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

MOST = 0.02
_FEATURES, _WIDTH, _HEIGHT = 20, 320, 240


def train(words: Sequence[str]) -> None:
    """Train in this process, and print the CPU seconds of the look and of the whole process."""
    from lightkit.cli import main as lightkit
    from lightkit.runner import run

    look, taken = run.look_for_leaks, list[float]()

    def timed(*given: Any) -> Any:
        began = time.process_time()
        found = look(*given)
        taken.append(time.process_time() - began)
        return found

    run.look_for_leaks = timed
    code = lightkit(["train", *words, "logger.console.style=quiet"])
    print(json.dumps({"look": sum(taken), "run": time.process_time(), "code": code}))


def write_table(path: Path, rows: int) -> None:
    """Write a table whose target follows from the first feature, with noise."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, _FEATURES))
    y = x[:, :1] + draw.normal(size=(rows, 1)) > 0
    np.savetxt(path, np.hstack([x, y]), "%.5g", ",", header=",".join([*map("f{}".format, range(20)), "y"]), comments="")


def write_files(folder: Path, files: int) -> None:
    """Write JPEG files of two classes."""
    draw = np.random.default_rng(0)
    for number in range(files):
        place = folder / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(draw.integers(256, size=(12, 16, 3), dtype=np.uint8))
        coarse.resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC).save(place / f"{number}.jpg", quality=90)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Train each of them, print and judge."""
    parser = argparse.ArgumentParser(description="what the look for leaks costs")
    for name, usual in (("epochs", 5), ("rows", 100_000), ("files", 1000)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    chosen, holds = parser.parse_args(arguments), True
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_table(place / "rows.csv", chosen.rows)
        write_files(place / "images", chosen.files)
        epochs = f"trainer.epochs={chosen.epochs}"
        cases = {
            "wine": ["data=wine"],
            "digits": ["data=digits", epochs],
            f"table of {chosen.rows:,} rows": ["data=csv", "data.dataset.path=rows.csv", "data.dataset.target=y"],
            f"{chosen.files:,} JPEG files": ["data=image_folder", "data.dataset.root=images", "data.dataset.size=64"],
        }
        cases[f"table of {chosen.rows:,} rows"] += ["data.dataset.task=multiclass", "data.batch_size=1024", epochs]
        cases[f"{chosen.files:,} JPEG files"] += ["model=cnn", epochs]
        print(f"{'run':<26}{'look':>10}{'run':>10}{'share':>9}")
        for title, words in cases.items():
            command = [sys.executable, "-c", f"from benchmarks.leaks import train; train({words!r})"]
            said = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True, env=_here()).stdout
            found = json.loads(said.splitlines()[-1])
            share = found["look"] / found["run"]
            holds = holds and share <= MOST and not found["code"]
            print(f"{title:<26}{1000 * found['look']:>7.0f} ms{found['run']:>8.1f} s{share:>9.2%}", flush=True)
    print(f"\nthe look takes at most {MOST:.0%} of a run: {'holds' if holds else 'MISSED'}")
    return holds


def _here() -> dict[str, str]:
    """Return the variables of this process, with the path of this project and one thread."""
    import os

    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    raise SystemExit(not main())
