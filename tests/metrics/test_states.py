"""States of metrics, copied and loaded."""

from __future__ import annotations

import math

import torch
import torchmetrics

from lightkit.metrics import SplitMetrics
from tests.metrics.test_split import feed, multiclass, outputs


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


def test_moving_keeps_the_state():
    preds, target = outputs()
    metrics = feed(SplitMetrics("val", multiclass), preds, target, 3, stop=150)
    before = metrics.state_dict()
    assert metrics.to("cpu").compute() == feed(SplitMetrics("val", multiclass), preds, target, 3, stop=150).compute()
    assert before["samples"] == 96
