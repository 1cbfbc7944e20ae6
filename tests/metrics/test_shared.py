"""Metrics that several processes fill, with the processes played one after the other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC
from torchmetrics.regression import PearsonCorrCoef
from torchmetrics.retrieval import RetrievalMAP

from lightkit.metrics import SharedMetrics, SplitMetrics
from tests.waiting import PATIENCE_SECONDS


class Played:
    """What `Ranks` does, between threads."""

    def __init__(self, rank: int, size: int, common: dict[str, Any]) -> None:
        self.rank, self.size, self._common = rank, size, common

    leads_replica = True

    @property
    def main(self) -> bool:
        return self.rank == 0

    def _all(self, value: Any) -> list[Any]:
        self._common["values"][self.rank] = value
        self._common["barrier"].wait(PATIENCE_SECONDS)
        found = list(self._common["values"])
        self._common["barrier"].wait(PATIENCE_SECONDS)
        return found

    def shared(self, make: Any) -> Any:
        return self._all(make() if self.main else None)[0]

    def least(self, number: int) -> int:
        return min(self._all(number))

    def gather(self, tensors: Sequence[Tensor], note: Any) -> list[Any]:
        found = self._all((note, list(tensors)))
        return found if self.main else []


def play(size: int, job: Any) -> list[Any]:
    common = {"values": [None] * size, "barrier": threading.Barrier(size)}
    results: list[Any] = [None] * size

    def one(rank: int) -> None:
        try:
            results[rank] = job(Played(rank, size, common))
        except BaseException as error:
            results[rank] = error
            common["barrier"].abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return results


def classes() -> dict[str, Any]:
    return {"accuracy": MulticlassAccuracy(3, average="micro"), "auroc": MulticlassAUROC(3)}


def pearson() -> dict[str, Any]:
    return {"pearson": PearsonCorrCoef()}


def batch(index: int, make: Any) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(index)
    size = 7 if index == 69 else 10
    if make is pearson:
        return torch.randn(size, generator=generator), torch.randn(size, generator=generator)
    return torch.randn(size, 3, generator=generator), torch.randint(3, (size,), generator=generator)


def own(rank: int, size: int, samples: int) -> tuple[int, int]:
    base, rest = divmod(samples, size)
    return rank * base + min(rank, rest), base + (rank < rest)


def feed(metrics: Any, make: Any, group: Any, indices: range) -> None:
    for index in indices:
        preds, target = batch(index, make)
        first, count = own(group.rank, group.size, len(preds))
        cut = slice(first, first + count)
        cut = cut if count else slice(None)
        metrics.update(preds[cut], target[cut], *weighed(preds[cut], target[cut], count))


def weighed(preds: Tensor, target: Tensor, count: int) -> tuple[Tensor, int, None, Tensor]:
    """A mean by weights: what a loss gives, and what it weighs."""
    weights = target.double() ** 2 + 0.1
    values = preds.reshape(len(preds), -1).sum(1)
    return (values * weights).sum() / weights.sum(), count, None, weights.sum()


@pytest.mark.parametrize("make", [classes, pearson])
@pytest.mark.parametrize("size", [2, 7])
def test_the_values_are_those_of_one_process(make: Any, size: int) -> None:
    plain = SplitMetrics("val", make)
    for index in range(70):
        preds, target = batch(index, make)
        plain.update(preds, target, *weighed(preds, target, len(preds)))

    def job(group: Played) -> dict[str, float]:
        metrics = SharedMetrics(SplitMetrics("val", make), group)
        feed(metrics, make, group, range(70))
        return metrics.compute()

    expected = plain.compute()
    found = play(size, job)
    assert all(values == found[0] for values in found)
    assert found[0] == pytest.approx(expected, rel=1e-5)


def test_further_arguments_come_along() -> None:
    def make() -> dict[str, Any]:
        return {"map": RetrievalMAP()}

    def job(group: Played) -> dict[str, float]:
        metrics = SharedMetrics(SplitMetrics("val", make), group)
        for index in range(40):
            preds, target = batch(index, pearson)
            first, count = own(group.rank, group.size, len(preds))
            cut = slice(first, first + count)
            kwargs = {"indexes": torch.full_like(preds[cut], index // 2, dtype=torch.long)}
            metrics.update(preds[cut], (target[cut] > 0).long(), preds.sum(), count, kwargs)
        return metrics.compute()

    alone, several = play(1, job)[0], play(3, job)
    assert several == [pytest.approx(alone)] * 3


def test_a_state_goes_on_in_another_number_of_processes() -> None:
    def first(group: Played) -> Any:
        metrics = SharedMetrics(SplitMetrics("train", classes), group)
        feed(metrics, classes, group, range(41))
        return metrics.state_dict()

    states = play(2, first)
    assert states[1]["samples"] == 0

    def second(group: Played) -> Any:
        metrics = SharedMetrics(SplitMetrics("train", classes), group)
        metrics.load_state_dict(states[0])
        feed(metrics, classes, group, range(41, 70))
        return metrics.compute()

    def whole(group: Played) -> Any:
        metrics = SharedMetrics(SplitMetrics("train", classes), group)
        feed(metrics, classes, group, range(70))
        return metrics.compute()

    expected = play(2, whole)[0]
    assert play(2, second)[0] == expected
    assert play(3, second)[0] == pytest.approx(expected, rel=1e-6)


def test_samples_that_every_process_computes_count_once() -> None:
    plain = SplitMetrics("val", classes)
    feed(plain, classes, Played(0, 1, {}), range(3))

    def job(group: Any) -> Any:
        metrics = SharedMetrics(SplitMetrics("val", classes), group)
        group.leads_replica = group.main
        feed(metrics, classes, Played(0, 1, {}), range(3))
        return metrics.compute()

    assert play(2, job) == [plain.compute()] * 2


def test_large_outputs_are_exchanged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.metrics.shared.BLOCK_BYTES", 1)
    seen: list[int] = []

    class Meter:
        def update(self, preds: Any, target: Any, loss: Tensor, size: int, *_more: Any) -> None:
            seen.append(size)

    group = Played(0, 1, {"values": [None], "barrier": threading.Barrier(1)})
    metrics = SharedMetrics(Meter(), group)
    for _ in range(3):
        metrics.update(None, None, torch.zeros(()), 4)
    assert seen == [4, 4, 4]
