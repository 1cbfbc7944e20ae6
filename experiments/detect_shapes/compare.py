"""Measures network and classic on the same test pictures: python -m experiments.detect_shapes.compare SEED ..."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from scipy.ndimage import find_objects, gaussian_filter, label, zoom
from scipy.special import softmax
from sklearn.svm import SVC
from torch import Tensor

from experiments.report.pictures import oriented_gradients
from experiments.segment_shapes.compare import network
from experiments.segment_shapes.scenes import Boxes
from lightkit import compose
from lightkit.metrics.detection import BoxPrecision

SIDE, LEAST = 24, 40
"""Pixels a side of what the classifier sees, and pixels of a part that counts."""


def parts(image: np.ndarray) -> list[tuple[slice, slice]]:
    """Find connected parts whose colour is far from the most frequent one."""
    usual = np.median(image.reshape(3, -1), 1)[:, None, None]
    numbers, _ = label(gaussian_filter(np.abs(image - usual).sum(0), 0.7) > 0.55)
    found = find_objects(numbers)
    return [place for number, place in enumerate(found, 1) if (numbers[place] == number).sum() >= LEAST]


def seen(image: np.ndarray, place: tuple[slice, slice]) -> np.ndarray:
    """Cut a part out, in grey and of one size."""
    cut = image[:, place[0], place[1]].mean(0)
    return zoom(cut, (SIDE / cut.shape[0], SIDE / cut.shape[1]), order=1)[:SIDE, :SIDE]


def described(cuts: list[np.ndarray]) -> Any:
    """Describe parts by their gradients."""
    return oriented_gradients(np.stack(cuts)[:, None], cell=6)


def classic(data: Boxes) -> float:
    """Classify connected parts by a support vector machine that has learnt from the true boxes; return the mAP."""
    cuts, classes = list[np.ndarray](), list[int]()
    for row in data.splits["train"].tolist():
        image, target = data[row]
        for box, kind in zip(target["boxes"].long().tolist(), target["labels"].tolist()):
            cuts.append(seen(image.numpy(), (slice(box[1], box[3]), slice(box[0], box[2]))))
            classes.append(kind)
    machine, metric = SVC(C=3).fit(described(cuts), classes), BoxPrecision()
    for row in data.splits["test"].tolist():
        image, target = data[row]
        metric.update([answer(machine, image.numpy())], [target])
    return float(metric.compute()["map"])


def answer(machine: SVC, image: np.ndarray) -> dict[str, Tensor]:
    """Find boxes in a picture, each with its class and how sure that is."""
    places = parts(image)
    if not places:
        return {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long(), "scores": torch.zeros(0)}
    chances = softmax(machine.decision_function(described([seen(image, place) for place in places])), 1)
    boxes = [[place[1].start, place[0].start, place[1].stop, place[0].stop] for place in places]
    labels = torch.as_tensor(machine.classes_[chances.argmax(1)])
    return {"boxes": torch.tensor(boxes).float(), "labels": labels, "scores": torch.as_tensor(chances.max(1))}


def main() -> None:
    """Print a line for each seed."""
    for seed in map(int, sys.argv[1:]):
        own = compose(["experiment=detect_shapes", f"data.dataset.seed={seed}"]).cfg.data.dataset
        data = Boxes(**{str(name): value for name, value in own.items() if name != "_target_"})
        values = classic(data), network(seed, "detect_shapes", "test/box/map")
        sys.stdout.write(f"seed {seed}: mAP {values[1]:.4f} network, {values[0]:.4f} connected parts\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
