"""Train the network with five seeds, and two classics on the same points; print a table of how well points are made.

    python -m experiments.gan_ring.compare [ring.png]

draws the points of the first seed beside those of the data, too.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity

import lightkit
from experiments.gan_ring.ring import drawn, energy_distance, good_points, modes_covered
from lightkit.cli import main
from lightkit.common.drawing import BLUE, INK, panels, png, style

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
    """Return what points drawn from a density come to on the test rows."""
    points, made = drawn(6000, seed).numpy(), density(kind, seed)
    return {name: score(points[4800:], made) for name, score in SCORES.items()}


def density(kind: str, seed: int) -> np.ndarray:
    """Fit a density to as many points as a network learns from, and draw as many as there are test rows."""
    points = drawn(6000, seed).numpy()
    train, test = points[:4200], points[4800:]
    if kind == "Gaussian mixture":
        model: Any = GaussianMixture(8, n_init=5, random_state=seed).fit(train)
        made = model.sample(len(test))[0]
    else:
        made = KernelDensity(bandwidth=0.02).fit(train).sample(len(test), random_state=seed)
    return np.random.default_rng(seed).permutation(made).astype(np.float32)


def draw() -> bytes:
    """Draw points of the data, of the network and of the mixture, for the first seed."""
    model = lightkit.load(FOLDER / "0").network
    with torch.no_grad():
        made = model(torch.randn(1000, model.latent, generator=torch.Generator().manual_seed(0)))
    shown = {"data": drawn(1000, 0), "generator": made, "Gaussian mixture": density("Gaussian mixture", 0)[:1000]}
    figure, all_axes = panels(3, 3, (3.0, 3.0))
    for axes, (title, points) in zip(all_axes, shown.items(), strict=True):
        style(axes)
        axes.scatter(*np.asarray(points).T, s=3, color=INK if title == "data" else BLUE, linewidths=0)
        axes.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal", title=title)
    return png(figure)


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
    if sys.argv[1:]:
        Path(sys.argv[1]).write_bytes(draw())
