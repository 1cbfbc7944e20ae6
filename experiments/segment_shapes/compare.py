"""Measures network and classic on the same test pictures: python -m experiments.segment_shapes.compare SEED ..."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from scipy.ndimage import gaussian_filter, uniform_filter
from sklearn.ensemble import RandomForestClassifier
from torchmetrics.classification import MulticlassJaccardIndex

from experiments.segment_shapes.scenes import Masks
from lightkit import Runner, compose

COMMON = ("device=cpu", "device.threads=1", "logger.tensorboard.enabled=false", "logger.console.style=quiet")
PIXELS = 60
"""Of each training picture, drawn at random."""


def network(seed: int, experiment: str, key: str) -> float:
    """Train the network of a seed, and return what it reaches on the test split."""
    folder = Path("outputs/compared") / experiment / str(seed)
    if not (folder / "result.json").is_file():
        cfg = compose([f"experiment={experiment}", *COMMON, f"data.dataset.seed={seed}"]).cfg
        Runner(cfg, folder).run()
    return float(json.loads((folder / "result.json").read_text())["metrics"][key])


def features(image: np.ndarray) -> np.ndarray:
    """Describe each pixel of `(3, S, S)`: colours, blurred ones, and how they differ from the usual colour around."""
    usual = np.median(image.reshape(3, -1), 1)[:, None, None]
    far = np.abs(image - usual).sum(0)
    blurred = [gaussian_filter(far, width) for width in (1, 2, 4)]
    edges = [np.hypot(*np.gradient(one)) for one in blurred]
    around = [uniform_filter((blurred[0] > 0.5).astype(np.float32), width) for width in (5, 9, 15, 21)]
    return np.stack([*image, far, *blurred, *edges, *around], -1).reshape(-1, 3 + 1 + 3 + 3 + 4)


def classic(seed: int, data: Masks) -> float:
    """Learn the class of a pixel from its surroundings by a random forest, and return the mean IoU."""
    draw, rows = np.random.default_rng(seed), {name: data.take(own) for name, own in data.splits.items()}
    xs, ys = [], []
    for image, mask in zip(*rows["train"]):
        chosen = draw.choice(mask.numel(), PIXELS, replace=False)
        xs.append(features(image.numpy())[chosen])
        ys.append(mask.numpy().ravel()[chosen])
    forest = RandomForestClassifier(60, min_samples_leaf=2, random_state=0).fit(np.concatenate(xs), np.concatenate(ys))
    images, masks = rows["test"]
    found = forest.predict(np.concatenate([features(image.numpy()) for image in images]))
    metric = MulticlassJaccardIndex(data.info.num_classes, average="macro")
    return float(metric(torch.from_numpy(found).reshape(masks.shape), masks))


def main() -> None:
    """Print a line for each seed."""
    for seed in map(int, sys.argv[1:]):
        own = compose(["experiment=segment_shapes", f"data.dataset.seed={seed}"]).cfg.data.dataset
        data = Masks(**{str(name): value for name, value in own.items() if name != "_target_"})
        values = network(seed, "segment_shapes", "test/miou"), classic(seed, data)
        sys.stdout.write(f"seed {seed}: mean IoU {values[0]:.4f} network, {values[1]:.4f} random forest\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
