from __future__ import annotations

import csv
import subprocess
import sys

import pytest
import torch
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score

from lightkit.loggers import Logger
from lightkit.metrics import Figures
from lightkit.metrics import figures as drawing
from lightkit.metrics.figures import Counts, per_class

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


def test_table_equals_scikit_learn():
    preds, target = outputs("multiclass", 4)
    rows = drawn("multiclass", 4).rows()
    expected = precision_recall_fscore_support(target.numpy(), preds.argmax(1).numpy())
    for at, row in enumerate(rows):
        assert row[1:4] == pytest.approx([expected[0][at], expected[1][at], expected[2][at]])
        assert row.support == expected[3][at]


def test_areas_equal_scikit_learn():
    preds, target = outputs("multiclass", 3)
    figures = drawn("multiclass", 3)
    for at, (roc, pr) in enumerate(
        zip(figures._counts.curves("roc", list("abc")), figures._counts.curves("pr", list("abc")))
    ):
        truth, scores = (target == at).numpy(), preds.softmax(1)[:, at].numpy()
        assert roc.area == pytest.approx(roc_auc_score(truth, scores), abs=1e-5)
        assert pr.area == pytest.approx(average_precision_score(truth, scores), abs=1e-5)


def test_many_samples_go_through_thresholds_with_nearly_the_same_areas(monkeypatch):
    exact = drawn("multiclass", 3)._counts.curves("roc", list("abc"))
    monkeypatch.setattr(drawing, "EXACT_ELEMENTS", 10)
    monkeypatch.setattr(drawing, "_BLOCK_ELEMENTS", 20)
    binned = drawn("multiclass", 3)
    for one, other in zip(exact, binned._counts.curves("roc", list("abc"))):
        assert one.area == pytest.approx(other.area, abs=0.01)
    assert binned._counts._metrics["curve"].thresholds is not None


def test_classes_without_samples_have_no_curve_and_no_recall():
    figures = Counts("multiclass", 3, curves=True)
    figures.update(torch.randn(20, 3), torch.arange(20) % 2)
    assert [curve.label for curve in figures.curves("roc", ["a", "b", "c"])] == ["a", "b"]
    row = per_class(figures.confusion(), ["a", "b", "c"])[2]
    assert row.support == 0
    assert row.recall != row.recall


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("task", "classes"),
    [("multiclass", 5), ("multiclass", 2), ("multiclass", 90), ("binary", 1), ("multilabel", 3)],
)
def test_every_figure_shows_something(task, classes):
    pictures = drawn(task, classes).draw()
    assert list(pictures) == ALL
    for figure in pictures.values():
        axes = figure.axes[0]
        assert axes.lines or axes.images or axes.collections
        figure.draw_without_rendering()


@pytest.mark.thorough
def test_matplotlib_waits_until_something_is_drawn():
    code = "import sys, lightkit.metrics; assert not {'matplotlib', 'torchmetrics', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
