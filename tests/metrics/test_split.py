from __future__ import annotations

import math

import pytest
import torch
import torchmetrics
from torch import nn
from torchmetrics import classification, regression, retrieval

from lightkit.metrics import SplitMetrics, split

CLASSES = 4


def multiclass():
    return {
        "accuracy": classification.MulticlassAccuracy(CLASSES, average="micro"),
        "f1": classification.MulticlassF1Score(CLASSES),
        "recall": classification.MulticlassRecall(CLASSES),
        "top2": classification.MulticlassAccuracy(CLASSES, average="micro", top_k=2),
        "auroc": classification.MulticlassAUROC(CLASSES),
        "by_class": classification.MulticlassF1Score(CLASSES, average=None),
        "matrix": classification.MulticlassConfusionMatrix(CLASSES),
    }


def outputs(samples=203, classes=CLASSES, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(samples, classes, generator=draw), torch.randint(0, classes, (samples,), generator=draw)


def feed(metrics, preds, target, batch, start=0, stop=None):
    losses = nn.functional.cross_entropy(preds, target, reduction="none") if target.ndim == 1 else preds.sum(1)
    for at in range(start, len(preds) if stop is None else stop, batch):
        part = slice(at, at + batch)
        metrics.update(preds[part], target[part], losses[part].mean(), len(preds[part]))
    return metrics


@pytest.mark.parametrize(("batch", "block"), [(1, 32), (7, 3), (64, 1), (1000, 3)])
def test_no_value_depends_on_batches_or_blocks(batch, block):
    preds, target = outputs()
    values = feed(SplitMetrics("val", multiclass, block=block), preds, target, batch).compute()
    whole = classification.MulticlassF1Score(CLASSES)(preds, target)
    assert values["val/f1"] == pytest.approx(float(whole), abs=1e-7)
    auroc = classification.MulticlassAUROC(CLASSES)(preds.softmax(1), target)
    assert values["val/auroc"] == pytest.approx(float(auroc), abs=1e-6)
    assert values["val/top2"] == pytest.approx(
        float((preds.topk(2).indices == target[:, None]).any(1).double().mean()), abs=1e-6
    )
    assert values["val/loss"] == pytest.approx(float(nn.functional.cross_entropy(preds, target)), rel=1e-6)


def test_vectors_are_named_by_class_and_matrices_kept_aside():
    preds, target = outputs()
    metrics = feed(SplitMetrics("test", multiclass, class_names=["a", "b", "c", "d"]), preds, target, 32)
    values = metrics.compute()
    assert {"test/by_class/a", "test/by_class/d"} <= set(values)
    assert metrics.figures_data["matrix"].parts["value"].sum() == len(target)
    assert all(isinstance(value, float) for value in values.values())
    assert [name for name in values if name.count("/") == 1] == [
        "test/loss",
        "test/accuracy",
        "test/f1",
        "test/recall",
        "test/top2",
        "test/auroc",
    ]  # as configured


@pytest.mark.parametrize("steps", [0, 31, 32, 33])
def test_state_in_the_middle_of_a_block_is_exact(steps, tmp_path):
    preds, target = outputs(samples=301)
    straight = feed(SplitMetrics("train", multiclass), preds, target, 5)
    first = feed(SplitMetrics("train", multiclass), preds, target, 5, stop=steps * 5)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    feed(first, preds, target, 5, start=0, stop=100)  # the saved state must not move with it
    second = SplitMetrics("train", multiclass)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    feed(second, preds, target, 5, start=steps * 5)
    assert second.compute() == straight.compute()


def test_reset_forgets_everything():
    preds, target = outputs()
    metrics = feed(SplitMetrics("val", multiclass), *outputs(seed=3), 8)
    metrics.compute()
    metrics.reset()
    assert (
        feed(metrics, preds, target, 8).compute() == feed(SplitMetrics("val", multiclass), preds, target, 8).compute()
    )


def test_without_samples_there_is_a_loss_and_it_is_nan():
    values = SplitMetrics("val", multiclass).compute()
    assert list(values) == ["val/loss"]
    assert math.isnan(values["val/loss"])


def test_without_predictions_only_the_loss_is_known():
    metrics = SplitMetrics("train", multiclass)
    metrics.update(None, None, torch.tensor(2.0), 3)
    metrics.update(None, None, torch.tensor(4.0), 1)
    assert metrics.compute() == {"train/loss": 2.5}
    metrics.update(None, None, torch.tensor(math.nan), 3)
    assert math.isnan(metrics.compute()["train/loss"])


def test_torchmetrics_is_made_at_the_first_block_only():
    made = []
    metrics = SplitMetrics("val", lambda: made.append(1) or {"f1": classification.MulticlassF1Score(CLASSES)}, block=4)
    preds, target = outputs()
    feed(metrics, preds, target, 10, stop=30)
    assert made == []
    assert metrics.state_dict()["metrics"] == {}
    feed(metrics, preds, target, 10, stop=30)
    metrics.reset()
    feed(metrics, preds, target, 10)
    assert made == [1]


def test_a_large_queue_is_counted_early(monkeypatch):
    monkeypatch.setattr(split, "BLOCK_ELEMENTS", 100)
    preds, target = outputs()
    metrics = SplitMetrics("val", multiclass)
    feed(metrics, preds, target, 10, stop=30)
    assert len(metrics._queue) == 0
    state = feed(metrics, preds, target, 10, stop=20).state_dict()
    assert len(state["queue"]) == 2


def test_queue_keeps_no_graph():
    metrics = SplitMetrics("train", dict)
    weight = torch.ones(3, requires_grad=True)
    metrics.update(weight * 2, torch.ones(3), (weight * 2).sum(), 3)
    assert not any(t.requires_grad for t in metrics._queue[0][:3])


def test_inference_tensors_do_not_leak_into_training():
    preds, target = outputs()
    metrics = SplitMetrics("val", multiclass)
    with torch.inference_mode():
        feed(metrics, preds * 1.0, target + 0, 8, stop=104)
    first = metrics.compute()
    feed(metrics, preds, target, 8)
    assert metrics.compute() != first


def test_batches_of_unequal_length_stay_apart():
    metrics = SplitMetrics("val", lambda: {"mse": regression.MeanSquaredError()})
    for length in (3, 5):
        metrics.update(torch.ones(2, length), torch.zeros(2, length), torch.zeros(()), 2)
    assert metrics.compute()["val/mse"] == 1.0


def queries(samples=120, seed=0):
    draw = torch.Generator().manual_seed(seed)
    logits, relevant = torch.randn(samples, generator=draw) * 30, torch.rand(samples, generator=draw) < 0.4
    return logits, relevant.float(), torch.arange(samples) // 8


def ranked(metrics, start=0, stop=None):
    preds, target, indexes = queries()
    for at in range(start, len(preds) if stop is None else stop, 5):
        part = slice(at, at + 5)
        metrics.update(preds[part], target[part], torch.zeros(()), 5, {"indexes": indexes[part], "unused": preds[part]})
    return metrics


def ranking():
    return {
        "map": retrieval.RetrievalMAP(),
        "hits": retrieval.RetrievalHitRate(top_k=2),
        "ndcg": retrieval.RetrievalNormalizedDCG(),
        "accuracy": classification.BinaryAccuracy(),
        "many": torchmetrics.wrappers.MinMaxMetric(retrieval.RetrievalMRR()),
    }


def test_metrics_get_further_arguments_by_name():
    preds, target, indexes = queries()
    values = ranked(SplitMetrics("val", ranking, block=3)).compute()
    order = preds.argsort().argsort() + 1.0  # the same ranking, above 0
    for name, metric in ranking().items():
        if name in ("map", "hits"):
            assert values[f"val/{name}"] == pytest.approx(float(metric(order, target.long(), indexes=indexes)))
    graded = retrieval.RetrievalNormalizedDCG()(order, target.long(), indexes=indexes)
    assert values["val/ndcg"] == pytest.approx(float(graded))
    assert values["val/accuracy"] == pytest.approx(float(((preds > 0) == (target > 0.5)).float().mean()))
    assert values["val/many/raw"] == pytest.approx(
        float(retrieval.RetrievalMRR()(order, target.long(), indexes=indexes))
    )


@pytest.mark.gpu
def test_update_never_waits_for_a_gpu():
    preds, target = (tensor.cuda() for tensor in outputs())
    metrics = SplitMetrics("train", multiclass, device="cuda", block=4)
    loss = torch.zeros((), device="cuda")
    for _ in range(8):
        metrics.update(preds, target, loss, len(preds))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(8):
            metrics.update(preds, target, loss, len(preds))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert metrics.compute()["train/accuracy"] == pytest.approx(float((preds.argmax(1) == target).float().mean()))
