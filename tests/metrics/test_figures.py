from __future__ import annotations

import csv

import pytest
import torch

from lightkit.loggers import Logger
from lightkit.metrics import Figures

ALL = ["confusion_matrix", "per_class", "roc", "pr"]


def outputs(task, classes, samples=120):
    draw = torch.Generator().manual_seed(0)
    if task == "multiclass":
        target = torch.randint(0, classes, (samples,), generator=draw)
        return torch.nn.functional.one_hot(target, classes) * 2 + torch.randn(samples, classes, generator=draw), target
    target = (torch.rand(samples, classes, generator=draw) < 0.4).float()
    preds = target * 2 - 1 + torch.randn(samples, classes, generator=draw)
    return (preds[:, 0], target[:, 0]) if task == "binary" else (preds, target)


def drawn(task, classes, names=ALL, class_names=()):
    figures = Figures(task, names, class_names, classes)
    for preds, target in zip(*(tensor.split(32) for tensor in outputs(task, classes))):
        figures.update(preds, target, torch.zeros(()), len(preds))
    return figures


def test_write_hands_over_and_saves(tmp_path):
    seen = []

    class Spy(Logger):
        def figure(self, name, figure, *, step):
            seen.append((name, step))

        def text(self, name, markdown, *, step):
            seen.append((name, markdown.splitlines()[0]))

    drawn("multiclass", 3, class_names=["a|b", "cat", "dog"]).write(Spy(), tmp_path / "figures", step=7)
    assert seen[:4] == [(f"test/{name}", 7) for name in ALL]
    assert seen[4] == ("test/per_class", "| name | precision | recall | f1 | support |")
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {f"{n}.png" for n in ALL} | {"per_class.csv"}
    rows = list(csv.reader((tmp_path / "figures" / "per_class.csv").read_text().splitlines()))
    assert [row[0] for row in rows] == ["name", "a|b", "cat", "dog"]


@pytest.mark.parametrize(("task", "names"), [("regression", ALL), ("multiclass", [])])
def test_nothing_to_draw_writes_nothing(task, names, tmp_path):
    figures = drawn("multiclass", 3, names) if not names else Figures(task, names, (), 1)
    figures.update(torch.ones(3, 1), torch.ones(3), torch.zeros(()), 3)
    figures.write(Logger(), tmp_path / "figures", step=1)
    assert not (tmp_path / "figures").exists()


def test_no_samples_draw_nothing():
    assert Figures("multiclass", ALL, (), 3).draw() == {}
    assert Figures("multiclass", ALL, (), 3).tables() == {}
