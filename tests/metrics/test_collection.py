"""Metrics grouped by what they count, those that are none, and what each family gets to see of the output."""

from __future__ import annotations

import math

import pytest
import torch
import torchmetrics
from torch import nn
from torchmetrics import classification, regression, retrieval

from lightkit.common.errors import UserError
from lightkit.metrics import SplitMetrics
from lightkit.metrics.collection import Collection
from lightkit.metrics.results import flatten, kind_of
from tests.metrics.test_split import CLASSES, feed, multiclass, outputs


def test_a_metric_that_cannot_be_computed_is_named():
    def empty():
        return {"auroc": classification.MulticlassAUROC(CLASSES, thresholds=[])}

    metrics = feed(SplitMetrics("test", empty), *outputs(), 64)
    with pytest.raises(UserError, match=r"^metrics\.test\.auroc: the metric cannot be computed: IndexError"):
        metrics.compute()


@pytest.mark.parametrize("thresholds", [None, 20], ids=["exact", "binned"])
def test_a_ranking_of_rows_of_one_class_is_not_defined(thresholds, caplog):
    def make():
        return {
            "auroc": classification.MulticlassAUROC(CLASSES, thresholds=thresholds),
            "binary": Own(thresholds=thresholds),
        }

    class Own(classification.BinaryAUROC):
        inputs = "raw"

        def update(self, preds, target):
            super().update(preds[:, 0].sigmoid(), (target > 1).long())

    Own.__name__ = "BinaryAUROC"
    preds, target = outputs()
    metrics = SplitMetrics("test", make)
    for whole in (False, True):
        values = feed(metrics, preds, target if whole else torch.full_like(target, 2), 50).compute()
        assert [name for name in values if math.isnan(values[name])] == ([] if whole else ["test/auroc", "test/binary"])
        metrics.reset()
    assert [record.message.partition(" is not defined")[0] for record in caplog.records] == [
        "metrics.test.auroc",
        "metrics.test.binary",
    ]


@pytest.mark.parametrize("thresholds", [None, 2000], ids=["exact", "binned"])
@pytest.mark.parametrize("kind", ["AUROC", "AveragePrecision"])
def test_classes_without_rows_do_not_count_in_a_mean_of_rankings(kind, thresholds, caplog):
    from sklearn.metrics import average_precision_score, roc_auc_score

    def make():
        several = getattr(classification, f"Multiclass{kind}")
        averages = {name: several(CLASSES, average=name, thresholds=thresholds) for name in ("macro", "weighted")}
        each, inside = (several(CLASSES, average="none", thresholds=thresholds) for _ in range(2))
        return {**averages, "each": each, "wrapped": torchmetrics.wrappers.ClasswiseWrapper(inside)}

    preds, target = outputs()
    target = torch.where(target == 1, 0, target)
    metrics = feed(SplitMetrics("test", make), preds, target, 50)
    values, shares = metrics.compute(), preds.softmax(1)
    assert metrics.compute() == pytest.approx(values, nan_ok=True), "a second time the same"
    score = roc_auc_score if kind == "AUROC" else average_precision_score
    there = [one for one in range(CLASSES) if one != 1]
    wanted = [score((target == one).numpy(), shares[:, one].numpy()) for one in there]
    counts = [float((target == one).sum()) for one in there]
    tolerance = 1e-5 if thresholds is None else 5e-3
    assert values["test/macro"] == pytest.approx(sum(wanted) / len(wanted), abs=tolerance)
    weighted = sum(one * count for one, count in zip(wanted, counts)) / sum(counts)
    assert values["test/weighted"] == pytest.approx(weighted, abs=tolerance)
    for name in ("each", "wrapped"):
        each = [value for key, value in values.items() if key.startswith(f"test/{name}")]
        assert [math.isnan(value) for value in each] == [place == 1 for place in range(CLASSES)]
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"metrics.test.{name} is not defined for class 1, which no row or every row has: it is left out"
                    for name in ("macro", "weighted", "each", "wrapped")]  # fmt: skip


@pytest.mark.parametrize("thresholds", [None, 2000], ids=["exact", "binned"])
def test_labels_that_all_rows_or_none_have_do_not_count_in_a_mean_of_rankings(thresholds):
    def make():
        kinds = {"auroc": classification.MultilabelAUROC, "precision": classification.MultilabelAveragePrecision}
        return {
            f"{name}_{average}": kind(3, average=average, thresholds=thresholds)
            for name, kind in kinds.items()
            for average in ("macro", "weighted")
        }

    preds = torch.tensor([[3.0, 1.0, -1.0], [-2.0, 0.5, 0.3], [1.0, -1.0, 2.0], [0.1, -0.5, 1.0]])
    target = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 1, 0], [1, 1, 0]])
    values = feed(SplitMetrics("test", make), preds, target, 4).compute()
    assert values["test/auroc_macro"] == values["test/auroc_weighted"] == pytest.approx(0.75)
    assert values["test/precision_macro"] == pytest.approx((5 / 6 + 1) / 2)
    assert values["test/precision_weighted"] == pytest.approx((2 * 5 / 6 + 4) / 6)


@pytest.mark.parametrize("thresholds", [None, 20], ids=["exact", "binned"])
def test_the_average_precision_of_no_positive_row_is_not_defined(thresholds):
    metrics = SplitMetrics("test", lambda: {"ap": classification.BinaryAveragePrecision(thresholds=thresholds)})
    for target, defined in ((torch.zeros(8), False), (torch.ones(8), True)):
        metrics.update(torch.randn(8), target, torch.zeros(()), 8)
        assert math.isnan(metrics.compute()["test/ap"]) != defined
        metrics.reset()


def test_metrics_that_count_the_same_share_a_state_and_others_do_not():
    # a perfect first block makes top-1 and top-2 accuracy equal: they must not be taken for one
    target = torch.arange(CLASSES).repeat(8)
    metrics = SplitMetrics("val", multiclass)
    metrics.update(nn.functional.one_hot(target).float() * 9, target, torch.zeros(()), len(target))
    metrics.compute()
    names = [group.names for group in metrics._collection.groups]
    assert ["f1", "recall", "by_class"] in names
    assert ["accuracy"] in names
    assert ["top2"] in names
    preds, target = outputs()
    values = feed(metrics, preds, target, 50).compute()
    assert values["val/top2"] > values["val/accuracy"]


def test_state_of_other_metrics_is_refused():
    preds, target = outputs()
    state = feed(SplitMetrics("train", multiclass), preds, target, 5).state_dict()
    other = SplitMetrics("train", lambda: {"f1": classification.MulticlassF1Score(CLASSES)})
    with pytest.raises(UserError, match="in the middle of an epoch with other metrics"):
        other.load_state_dict(state)


def test_outputs_a_metric_does_not_take_are_explained():
    metrics = SplitMetrics("val", lambda: {"f1": classification.MulticlassF1Score(CLASSES)})
    metrics.update(torch.randn(5, 3), torch.zeros(5, dtype=torch.long), torch.zeros(()), 5)
    with pytest.raises(
        UserError, match=r"metrics\.val\.f1: the metric does not take what the model gives(?s:.*)output \(5, 3\)"
    ):
        metrics.compute()


def test_things_that_are_no_metrics_are_refused():
    with pytest.raises(UserError, match=r"metrics\.val\.x: not a metric"):
        Collection({"x": nn.Linear(1, 1)}, key="metrics.val", device=torch.device("cpu"))


def test_unknown_inputs_are_refused():
    metric = Spread()
    metric.inputs = "sideways"
    with pytest.raises(UserError, match=r"metrics\.val\.x\.inputs: unknown kind of inputs"):
        Collection({"x": metric}, key="metrics.val", device=torch.device("cpu"))


def test_flatten_numbers_and_lists():
    numbers, rest = flatten("m", {"a": 1.5, "b": torch.ones(2), "c": (1, 2)}, [])
    assert {name: float(value) for name, value in numbers.items()} == {
        "m/a": 1.5,
        "m/b/0": 1.0,
        "m/b/1": 1.0,
        "m/c/0": 1.0,
        "m/c/1": 2.0,
    }
    assert rest == {}


def test_metrics_that_lack_an_argument_say_where_it_comes_from():
    metrics = SplitMetrics("test", lambda: {"map": retrieval.RetrievalMAP()})
    metrics.update(torch.randn(4), torch.ones(4), torch.zeros(()), 4)
    with pytest.raises(UserError, match=r"(?s)^metrics\.test\.map: .*takes indexes.*fix: .*tasks\.Retrieval"):
        metrics.compute()


def test_loading_replaces_what_was_counted_before():
    preds, target = outputs()
    state = feed(SplitMetrics("train", multiclass), preds, target, 5).state_dict()
    other = feed(SplitMetrics("train", multiclass), *outputs(seed=1), 5)
    other.load_state_dict(SplitMetrics("train", multiclass).state_dict())
    assert math.isnan(other.compute()["train/loss"])
    other.load_state_dict(state)
    assert other.compute() == feed(SplitMetrics("train", multiclass), preds, target, 5).compute()


class Spread(torchmetrics.Metric):
    """A metric of a user's own: takes the output as it is, gives a dict."""

    full_state_update = False

    def __init__(self):
        super().__init__()
        self.add_state("seen", [])

    def update(self, preds, target):
        self.seen.append(preds)

    def compute(self):
        seen = torch.cat(self.seen)
        return {"min": seen.min(), "max": seen.max()}


def test_own_metrics_with_dicts_and_list_states(tmp_path):
    preds, target = outputs()
    metrics = feed(SplitMetrics("val", lambda: {"spread": Spread()}, block=2), preds, target, 10, stop=70)
    other = SplitMetrics("val", lambda: {"spread": Spread()}, block=2)
    other.load_state_dict(metrics.state_dict())
    values = feed(other, preds, target, 10, start=70).compute()
    assert values["val/spread/max"] == float(preds.max())
    assert values["val/spread/min"] == float(preds.min())


# What each family gets to see


def test_shares_of_classes_count_as_their_largest():
    preds, target = outputs()
    soft = nn.functional.one_hot(target, CLASSES).float() * 0.7 + 0.3 / CLASSES
    hard = feed(SplitMetrics("train", multiclass), preds, target, 16).compute()
    metrics = SplitMetrics("train", multiclass)
    for at in range(0, len(preds), 16):
        metrics.update(preds[at : at + 16], soft[at : at + 16], torch.zeros(()), len(preds[at : at + 16]))
    mixed = metrics.compute()
    assert {name: value for name, value in mixed.items() if "loss" not in name} == {
        name: value for name, value in hard.items() if "loss" not in name
    }


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_binary_outputs_are_logits_whatever_their_range(shape):
    # all logits in 0..1: torchmetrics by itself would take them for probabilities
    logits, target = torch.rand(50), (torch.arange(50) % 2).float()
    metrics = SplitMetrics("val", lambda: {"recall": classification.BinaryRecall()})
    metrics.update(logits.view(shape), target.view(shape), torch.zeros(()), 50)
    assert metrics.compute()["val/recall"] == 1.0


def test_multilabel_targets_may_be_floats():
    preds, target = torch.randn(60, 3), (torch.rand(60, 3) > 0.5).float()
    metrics = SplitMetrics("val", lambda: {"exact": classification.MultilabelExactMatch(3)})
    metrics.update(preds, target, torch.zeros(()), 60)
    assert metrics.compute()["val/exact"] == pytest.approx(float(((preds > 0) == (target > 0.5)).all(1).float().mean()))


@pytest.mark.parametrize(("left", "right"), [((90,), (90, 1)), ((90, 1), (90,)), ((90, 2), (90, 2))])
def test_regression_is_counted_in_double_precision(left, right):
    count = 90 if 2 not in left else 180
    target = torch.arange(count, dtype=torch.float32) / count + 10_000
    preds = target + torch.linspace(-0.1, 0.1, count)
    make = lambda: {"r2": regression.R2Score(), "rmse": regression.MeanSquaredError(squared=False)}  # noqa: E731
    values = {}
    for batch in (7, 90):
        metrics = SplitMetrics("val", make)
        for p, t in zip(preds.view(left).split(batch), target.view(right).split(batch)):
            metrics.update(p, t, torch.zeros(()), len(p))
        values[batch] = metrics.compute()
    error = preds.double() - target.double()
    assert values[7]["val/rmse"] == pytest.approx(float(error.square().mean().sqrt()), rel=1e-12)
    assert values[7] == pytest.approx(values[90], rel=1e-6)


def test_half_precision_outputs_are_widened():
    preds, target = outputs()
    metrics = SplitMetrics("val", multiclass)
    metrics.update(preds.bfloat16(), target, torch.zeros((), dtype=torch.bfloat16), len(target))
    assert 0 <= metrics.compute()["val/accuracy"] <= 1


def test_wrapped_metrics_count_as_what_they_wrap():
    wrapped = torchmetrics.wrappers.ClasswiseWrapper(classification.MulticlassF1Score(CLASSES, average=None))
    assert kind_of(wrapped) == "scores"
    preds, target = outputs()
    metrics = feed(SplitMetrics("val", lambda: {"f1": wrapped}), preds, target, 9, stop=45)
    other = SplitMetrics("val", lambda: {"f1": wrapped.clone()})
    other.load_state_dict(metrics.state_dict())
    assert other.compute() == metrics.compute()
    assert len(metrics.compute()) == 1 + CLASSES
