"""lightkit's own metrics: of language models, and of retrieval by embeddings."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F
from torchmetrics.retrieval import (
    RetrievalHitRate,
    RetrievalMAP,
    RetrievalMRR,
    RetrievalNormalizedDCG,
    RetrievalPrecision,
    RetrievalRecall,
)
from torchmetrics.text import Perplexity as Reference

from lightkit.metrics import SplitMetrics, retrieval
from lightkit.metrics.language import BitsPerCharacter, Perplexity, TokenAccuracy
from lightkit.metrics.retrieval import EmbeddingRetrieval


def make():
    return {"bpc": BitsPerCharacter(), "perplexity": Perplexity(), "accuracy": TokenAccuracy()}


@pytest.mark.parametrize("batch", [4, 21])
def test_equal_to_torchmetrics_whatever_the_batch_size(batch):
    draw = torch.Generator().manual_seed(0)
    logits, target = torch.randn(21, 12, 9, generator=draw), torch.randint(0, 9, (21, 12), generator=draw)
    metrics = SplitMetrics("val", make, block=3)
    for x, y in zip(logits.split(batch), target.split(batch)):
        metrics.update(x, y, torch.zeros(()), len(x))
    values = metrics.compute()
    expected = float(Reference()(logits, target))
    assert values["val/perplexity"] == pytest.approx(expected, rel=1e-5)
    assert values["val/bpc"] == pytest.approx(math.log2(expected), rel=1e-5)
    assert values["val/accuracy"] == pytest.approx(float((logits.argmax(-1) == target).double().mean()))
    assert [group.names for group in metrics._collection.groups] == [["bpc", "perplexity", "accuracy"]]


def test_padding_is_not_counted():
    logits, target = torch.randn(2, 4, 5), torch.randint(0, 5, (2, 4))
    padded = torch.cat([target, torch.full((2, 3), -100)], 1)
    whole, part = BitsPerCharacter(), BitsPerCharacter()
    whole.update(logits, target)
    part.update(torch.cat([logits, torch.randn(2, 3, 5)], 1), padded)
    assert float(whole.compute()) == pytest.approx(float(part.compute()), rel=1e-6)


def test_uniform_guess_costs_the_logarithm_of_the_vocabulary():
    metric = BitsPerCharacter()
    metric.update(torch.zeros(1, 3, 32), torch.zeros(1, 3, dtype=torch.long))
    assert float(metric.compute()) == pytest.approx(5.0)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"logits \(B, T, V\) and targets \(B, T\) expected"):
        BitsPerCharacter().update(torch.zeros(2, 3, 4), torch.zeros(2, 4, dtype=torch.long))


def reference(vectors, labels, k, action="neg", above=2.0):
    similarity = F.normalize(vectors, dim=1) @ F.normalize(vectors, dim=1).T
    similarity = similarity + above  # torchmetrics' mean average precision takes scores of 0 and less as irrelevant
    count = len(labels)
    query, other = torch.meshgrid(torch.arange(count), torch.arange(count), indexing="ij")
    apart = query != other
    inputs = (similarity[apart], (labels[query] == labels[other])[apart], query[apart])
    options = {"empty_target_action": action}
    metrics = {
        "map": RetrievalMAP(**options),
        "mrr": RetrievalMRR(**options),
        "ndcg": RetrievalNormalizedDCG(**options),
        f"precision_at_{k}": RetrievalPrecision(top_k=k, **options),
        f"recall_at_{k}": RetrievalRecall(top_k=k, **options),
        f"hit_rate_at_{k}": RetrievalHitRate(top_k=k, **options),
    }
    return {name: float(metric(inputs[0], inputs[1], indexes=inputs[2])) for name, metric in metrics.items()}


@pytest.mark.parametrize(("k", "action"), [(1, "neg"), (5, "skip")])
def test_equal_to_torchmetrics(k, action, monkeypatch):
    monkeypatch.setattr(retrieval, "BLOCK_ELEMENTS", 200)  # several blocks of queries
    draw = torch.Generator().manual_seed(1)
    vectors = torch.randn(57, 6, generator=draw)
    labels = torch.cat([torch.randint(0, 4, (55,), generator=draw), torch.tensor([10, 11])])  # two without a partner
    metrics = SplitMetrics("test", lambda: {"retrieval": EmbeddingRetrieval(k, empty_target_action=action)}, block=2)
    for x, y in zip(vectors.split(8), labels.split(8)):
        metrics.update(x, y, torch.zeros(()), len(x))
    values = metrics.compute()
    for name, expected in reference(vectors, labels, k, action).items():
        assert values[f"test/retrieval/{name}"] == pytest.approx(expected, abs=1e-5), name


@pytest.mark.parametrize("positive", [True, False])
def test_average_precision_is_that_of_torchmetrics_where_all_similarities_are_above_0(positive):
    draw = torch.Generator().manual_seed(2)
    vectors, labels = torch.randn(40, 6, generator=draw), torch.arange(40) % 3
    vectors = vectors.abs() if positive else vectors
    metric = EmbeddingRetrieval(k=5)
    metric.update(vectors, labels)
    values, expected = metric.compute(), reference(vectors, labels, 5, above=0.0)
    same = [float(values[name]) == pytest.approx(value, abs=1e-6) for name, value in expected.items()]
    assert same == [positive or name != "map" for name in expected]


def test_perfect_clusters():
    labels = torch.arange(3).repeat_interleave(4)
    metric = EmbeddingRetrieval(k=3)
    metric.update(F.one_hot(labels).float(), labels)
    assert {name: float(value) for name, value in metric.compute().items()} == pytest.approx(
        dict.fromkeys(["map", "mrr", "ndcg", "precision_at_3", "recall_at_3", "hit_rate_at_3"], 1.0)
    )


def test_a_single_sample_finds_nothing():
    metric = EmbeddingRetrieval(k=3)
    metric.update(torch.ones(1, 2), torch.zeros(1, dtype=torch.long))
    assert float(metric.compute()["map"]) == 0.0


def test_bad_arguments():
    with pytest.raises(ValueError, match="k must be at least 1"):
        EmbeddingRetrieval(k=0)
    with pytest.raises(ValueError, match="empty_target_action must be neg or skip"):
        EmbeddingRetrieval(empty_target_action="error")
    with pytest.raises(ValueError, match=r"vectors \(N, D\) and labels \(N,\) expected"):
        EmbeddingRetrieval().update(torch.ones(3, 2), torch.ones(3, 2))
