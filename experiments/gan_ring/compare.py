"""Train the network with five seeds, and two classics on the same points; print a table of how well points are made."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity

from experiments.gan_ring.ring import drawn, energy_distance, good_points, modes_covered
from lightkit.cli import main

SEEDS = range(5)
FOLDER = Path("outputs/measured/gan_ring")
SCORES: dict[str, Callable[[Any, Any], float]] = {
    "modes": modes_covered,
    "good": good_points,
    "distance": energy_distance,
}


def network(seed: int) -> dict[str, float]:
    """Train a network, and return what its points come to on the test rows."""
    folder = FOLDER / str(seed)
    if not (folder / "result.json").is_file():
        main(
            [
                "train",
                "experiment=gan_ring",
                "device=cpu",
                f"seed={seed}",
                f"data.dataset.seed={seed}",
                f"hydra.run.dir={folder}",
            ]
        )
    values = json.loads((folder / "result.json").read_text())["test"]
    return {name: values[f"test/{name}"] for name in SCORES}


def classic(kind: str, seed: int) -> dict[str, float]:
    """Fit a density to as many points as a network learns from, and return what points drawn of it come to."""
    points = drawn(6000, seed).numpy()
    train, test = points[:4200], points[4800:]
    if kind == "Gaussian mixture":
        model: Any = GaussianMixture(8, n_init=5, random_state=seed).fit(train)
        made = model.sample(len(test))[0]
    else:
        made = KernelDensity(bandwidth=0.02).fit(train).sample(len(test), random_state=seed)
    made = np.random.default_rng(seed).permutation(made).astype(np.float32)
    return {name: score(test, made) for name, score in SCORES.items()}


def table() -> list[str]:
    """Return the lines of the table."""
    rows = {
        "generator and discriminator": [network(seed) for seed in SEEDS],
        "Gaussian mixture, 8 parts": [classic("Gaussian mixture", seed) for seed in SEEDS],
        "kernel density, width 0.02": [classic("kernel density", seed) for seed in SEEDS],
    }
    lines = ["|  | n | modes of 8 | good points | energy distance |", "| --- | --- | --- | --- | --- |"]
    for label, found in rows.items():
        cells = [[one[name] for one in found] for name in SCORES]
        texts = [
            f"{statistics.mean(cells[0]):.1f} (least {min(cells[0]):.0f})",
            f"{statistics.mean(cells[1]):.1%} ± {statistics.stdev(cells[1]):.1%}",
            f"{statistics.mean(cells[2]):.4f} ± {statistics.stdev(cells[2]):.4f}",
        ]
        lines.append(f"| {label} | {len(found)} | {' | '.join(texts)} |")
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
