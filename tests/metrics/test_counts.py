"""Confusion matrices and curves, compared with scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score

from lightkit.metrics import figures as drawing
from lightkit.metrics.figures import Counts, per_class
from tests.metrics.test_figures import drawn, outputs


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
