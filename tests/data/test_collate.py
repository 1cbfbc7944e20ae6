"""Samples that PyTorch cannot stack: a data set with a `collate_fn`, and a task that takes what it makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODULE = """\
import torch

from lightkit.trainer import StepOutput, Task


class Boxes:
    classes = ("a", "b")

    def __len__(self):
        return 40

    def __getitem__(self, row):
        return torch.full((3, 8, 8), float(row)), {"boxes": torch.ones(1 + row % 3, 4), "label": row % 2}

    def collate_fn(self, samples):
        return torch.stack([image for image, _ in samples]), [target for _, target in samples]


class Broken(Boxes):
    def collate_fn(self, samples):
        raise KeyError("no such thing")


class Ragged(Boxes):
    collate_fn = None

    def __getitem__(self, row):
        return torch.ones(2 + row % 3), row % 2


class Detect(Task):
    def step(self, model, batch, criterion):
        images, targets = batch
        assert isinstance(targets, list)
        assert targets[0]["boxes"].device == images.device
        labels = torch.tensor([target["label"] for target in targets])
        outputs = model(images)
        return StepOutput(criterion(outputs, labels), outputs, labels)
"""
Cli = Callable[..., Any]


DETECT = ("model=cnn", "model.channels=[4]", "trainer.task._target_=ragged.Detect")


@pytest.fixture
def train(project: Path, cli: Cli) -> Cli:
    (project / "ragged.py").write_text(MODULE)
    short = ("trainer.steps=3", "logger.tensorboard.enabled=false", "metrics=none", "metrics.monitor=val/loss")
    return lambda name, *more: cli("train", "data=custom", f"data.dataset._target_=ragged.{name}", *short, *more)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 1])
def test_targets_in_dictionaries_reach_a_task_of_ones_own(train: Cli, workers: int) -> None:
    done = train("Boxes", *DETECT, "loss.label_smoothing=0.1", f"data.num_workers={workers}")
    assert done.code == 0, done.err
    assert "result after 3 steps" in done.out


@pytest.mark.parametrize(
    ("name", "more", "texts"),
    [
        ("Ragged", (), ["do not make a batch", "fix:      a method collate_fn(samples) of the data set"]),
        ("Broken", DETECT, ["collate_fn of the data set failed on rows", "ragged.py:21"]),
    ],
)
def test_samples_that_make_no_batch_name_the_way_out(train: Cli, name: str, more: Any, texts: list[str]) -> None:
    done = train(name, *more)
    assert done.code == 2
    assert not [text for text in texts if text not in done.err], done.err
