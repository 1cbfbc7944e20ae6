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


class Ragged:
    def __len__(self):
        return 40

    def __getitem__(self, row):
        return torch.ones(2 + row % 3), row % 2


class Padded(Ragged):
    def collate_fn(self, samples):
        rows = torch.nn.utils.rnn.pad_sequence([x for x, _ in samples], batch_first=True)
        return torch.nn.functional.pad(rows, (0, 4 - rows.shape[1])), torch.tensor([y for _, y in samples])


class Detect(Task):
    def step(self, model, batch, criterion):
        images, targets = batch
        assert isinstance(targets, list)
        assert targets[0]["boxes"].device == images.device
        labels = torch.tensor([target["label"] for target in targets])
        outputs = model(images)
        return StepOutput(criterion(outputs, labels), outputs, labels)


class Rows(Task):
    def __init__(self):
        self.layer = torch.nn.Linear(4, 2)

    def step(self, model, batch, criterion):
        x, y = batch
        assert x.shape[1] == 4
        outputs = model(x)
        return StepOutput(criterion(outputs, y), outputs, y)
"""
SHORT = ("trainer.steps=3", "logger.tensorboard.enabled=false", "metrics=none", "metrics.monitor=val/loss")
Cli = Callable[..., Any]


@pytest.fixture
def train(project: Path, cli: Cli) -> Cli:
    (project / "ragged.py").write_text(MODULE)
    return lambda dataset, *more: cli("train", "data=custom", f"data.dataset._target_=ragged.{dataset}", *SHORT, *more)


@pytest.mark.parametrize("workers", [0, 1])
def test_targets_in_dictionaries_reach_a_task_of_ones_own(train: Cli, workers: int) -> None:
    task = ("model=cnn", "model.channels=[4]", "trainer.task._target_=ragged.Detect")
    done = train("Boxes", *task, f"data.num_workers={workers}")
    assert done.code == 0, done.err
    assert "result after 3 steps" in done.out


def test_ragged_samples_become_what_the_data_set_makes_of_them(train: Cli) -> None:
    model = ("model=custom", "model._target_=torch.nn.Linear", "model.in_features=4", "model.out_features=2")
    done = train("Padded", *model, "trainer.task._target_=ragged.Rows", "loss.label_smoothing=0.1")
    assert done.code == 0, done.err


def test_ragged_samples_without_it_name_the_way_out(train: Cli) -> None:
    done = train("Ragged")
    assert done.code == 2
    assert "do not make a batch" in done.err
    assert "fix:      a method collate_fn(samples) of the data set" in done.err


def test_a_collate_fn_that_fails_is_named_with_its_line(train: Cli) -> None:
    done = train("Broken", "model=cnn", "trainer.task._target_=ragged.Detect")
    assert done.code == 2
    assert "collate_fn of the data set failed on rows" in done.err
    assert "ragged.py:21" in done.err
