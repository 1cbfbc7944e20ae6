from __future__ import annotations

import math

import pytest
import torch
from torchmetrics.text import Perplexity as Reference

from lightkit.metrics import SplitMetrics
from lightkit.metrics.language import BitsPerCharacter, Perplexity, TokenAccuracy


def make():
    return {"bpc": BitsPerCharacter(), "perplexity": Perplexity(), "accuracy": TokenAccuracy()}


@pytest.mark.parametrize("batch", [1, 4, 21])
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
