"""Whatever a metric of torchmetrics gives is logged as numbers or kept as arrays, and comes back after a resume."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics import Metric, classification, regression, retrieval, text, wrappers

from lightkit.common.errors import UserError
from lightkit.metrics.drawing import draw
from lightkit.metrics.results import Shaped, flatten
from lightkit.metrics.split import SplitMetrics

N, BATCH = 40, 8
OPTIONS = {
    "beta": 2.0,
    "num_groups": 2,
    "num_classes": 3,
    "num_labels": 3,
    "min_recall": 0.5,
    "min_precision": 0.5,
    "min_specificity": 0.5,
    "min_sensitivity": 0.5,
    "threshold": 0.5,
    "p": 3,
}
"""Arguments that some classes cannot do without."""


class Case(NamedTuple):
    """A metric, and what it gets."""

    make: Callable[[], Any]
    preds: Any
    target: Any
    more: dict[str, Any] = {}


def numbers(*shape: int, most: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + most)
    return torch.randint(most, shape, generator=generator) if most else torch.randn(shape, generator=generator)


WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "two", "dogs", "ran", "far", "away"]


def sentences(shift: int) -> list[str]:
    return [" ".join(WORDS[(i * shift + j) % len(WORDS)] for j in range(4 + i % 3)) for i in range(N)]


SAID, MEANT = sentences(3), sentences(2)
ONE, MANY = {"preds": SAID, "target": MEANT}, {"preds": SAID, "target": [[one, one.upper()] for one in MEANT]}
ANSWERS = {
    "preds": [{"prediction_text": one, "id": str(i)} for i, one in enumerate(SAID)],
    "target": [{"answers": {"answer_start": [1], "text": [one]}, "id": str(i)} for i, one in enumerate(MEANT)],
}
PROBABILITIES = {"preds": numbers(N, 3).softmax(1), "target": numbers(3, N).T.softmax(1).contiguous()}
BINARY = {"preds": numbers(N), "target": numbers(N, most=2)}
CLASSES = {"preds": numbers(N, 3), "target": numbers(N, most=3)}
LABELS = {"preds": numbers(N, 3), "target": numbers(N, 3, most=2)}
AMOUNTS = {"preds": numbers(N).abs(), "target": numbers(N, 1)[:, 0].abs()}
OTHERWISE: dict[str, dict[str, Any]] = {
    "MulticlassExactMatch": {"preds": numbers(N, 3, 4), "target": numbers(N, 4, most=3)},
    "KLDivergence": PROBABILITIES,
    "JensenShannonDivergence": PROBABILITIES,
    "CosineSimilarity": PROBABILITIES,
    "ContinuousRankedProbabilityScore": {"preds": numbers(N, 3), "target": numbers(N)},
    "Perplexity": {"preds": numbers(N, 5, 3), "target": numbers(N, 5, most=3)},
    "SQuAD": ANSWERS,
    "BLEUScore": MANY,
    "SacreBLEUScore": MANY,
    "CHRFScore": MANY,
    "TranslationEditRate": MANY,
}
NOT_HERE = ("BERTScore", "InfoLM", "MetricTracker", "FeatureShare", "MultitaskWrapper")
"""Those that load a model from elsewhere, and wrappers that take no outputs and targets."""


def _inside(**inputs: Any) -> Iterator[tuple[str, Case]]:
    """Yield a case for each wrapper."""
    accuracy = classification.MulticlassAccuracy
    one = {
        "BootStrapper": lambda: wrappers.BootStrapper(accuracy(num_classes=3), num_bootstraps=3, raw=True),
        "ClasswiseWrapper": lambda: wrappers.ClasswiseWrapper(accuracy(num_classes=3, average=None)),
        "MinMaxMetric": lambda: wrappers.MinMaxMetric(accuracy(num_classes=3)),
        "Running": lambda: wrappers.Running(accuracy(num_classes=3), window=2),
    }
    yield from ((name, Case(make, **inputs)) for name, make in one.items())
    kind = classification.BinaryAccuracy
    two = {
        "BinaryTargetTransformer": lambda: wrappers.BinaryTargetTransformer(kind(), threshold=0.5),
        "LambdaInputTransformer": lambda: wrappers.LambdaInputTransformer(kind(), transform_pred=lambda x: 1 - x),
        "MetricInputTransformer": lambda: wrappers.LambdaInputTransformer(kind()),
    }
    yield from ((name, Case(make, **BINARY)) for name, make in two.items())
    several = {"preds": numbers(N, 3), "target": numbers(N, 3, most=5).float()}
    yield "MultioutputWrapper", Case(lambda: wrappers.MultioutputWrapper(regression.MeanSquaredError(), 3), **several)


def _cases() -> Iterator[tuple[str, Case]]:
    families = {"Binary": BINARY, "Multiclass": CLASSES, "Multilabel": LABELS}
    rest = {classification: CLASSES, regression: AMOUNTS, retrieval: BINARY, text: ONE}
    for module, usual in rest.items():
        for name in module.__all__:
            kind = getattr(module, name)
            if name in NOT_HERE or (module is classification and not name.startswith(tuple(families))):
                continue  # `Accuracy(task="binary")` makes a `BinaryAccuracy`
            needed = inspect.signature(kind.__init__).parameters
            options = {key: value for key, value in OPTIONS.items() if key in needed and key != "threshold"}
            options |= {"threshold": 0.5} if name == "CriticalSuccessIndex" else {}
            options |= {"rouge_keys": ("rouge1", "rougeL")} if name == "ROUGEScore" else {}
            inputs = next((of for start, of in families.items() if name.startswith(start)), usual)
            more: dict[str, Any] = {"indexes": torch.arange(N) // 5} if module is retrieval else {}
            more |= {"groups": numbers(N, most=2)} if "num_groups" in options else {}
            inputs = OTHERWISE.get(name, inputs)
            yield name, Case(lambda kind=kind, options=options: kind(**options), **inputs, more=more)  # type: ignore[misc]
    yield from _inside(**CLASSES)


CASES = dict(_cases())
FEW = (
    "BinaryPrecisionAtFixedRecall",
    "MulticlassROC",
    "MultilabelConfusionMatrix",
    "RetrievalRecallAtFixedPrecision",
    "WordErrorRate",
    "BLEUScore",
    "Running",
)
pytestmark = pytest.mark.filterwarnings("ignore:::torchmetrics", "ignore::UserWarning")


def fed(case: Case, metrics: SplitMetrics, start: int = 0, stop: int = N) -> SplitMetrics:
    """Feed batches of samples."""
    for at in range(start, stop, BATCH):
        part = slice(at, at + BATCH)
        more = {name: value[part] for name, value in case.more.items()}
        metrics.update(case.preds[part], case.target[part], torch.tensor(0.5), BATCH, more or None)
    return metrics


def found(metrics: SplitMetrics) -> tuple[dict[str, float], dict[str, Any]]:
    values = metrics.compute()
    return values, {name: result.arrays() for name, result in metrics.figures_data.items()}


def made(case: Case) -> SplitMetrics:
    return SplitMetrics("val", lambda: {"it": case.make()}, block=2)


@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(name, marks=pytest.mark.thorough) for name in CASES if name not in FEW)]
)
def test_a_metric_gives_all_that_it_finds(name: str, tmp_path: Any) -> None:
    """See that a metric loses nothing, and not in the middle of an epoch either."""
    case = CASES[name]
    torch.manual_seed(3)
    values, arrays = found(fed(case, made(case)))
    assert any(key.startswith("val/it") for key in values) or arrays, "nothing came out"
    for stop in (BATCH, 3 * BATCH):
        torch.manual_seed(3)
        state = fed(case, made(case), stop=stop).state_dict()
        torch.save(state, tmp_path / "state.pt")
        second = made(case)
        second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        again, drawn = found(fed(case, second, start=stop))
        assert str(again) == str(values)  # by text: NaN is equal to NaN there
        np.testing.assert_equal(drawn, arrays)
    for result in arrays.values():
        assert draw(result, title=name) is not None


def test_every_class_of_torchmetrics_is_walked() -> None:
    known = {*CASES, *NOT_HERE}
    for module in (classification, regression, retrieval, text, wrappers):
        starts = ("Binary", "Multiclass", "Multilabel") if module is classification else ("",)
        assert {name for name in module.__all__ if name.startswith(starts)} <= known


def test_texts_in_one_batch_or_many_give_the_same() -> None:
    for name in ("WordErrorRate", "BLEUScore", "CharErrorRate"):
        case = CASES[name]
        whole = made(case)
        whole.update(case.preds, case.target, torch.tensor(0.5), N)
        metric = case.make()
        metric.update(case.preds, case.target)
        values = fed(case, made(case)).compute()
        assert values == pytest.approx(whole.compute())
        assert values["val/it"] == pytest.approx(float(metric.compute()))


def test_a_value_and_its_place_are_two_numbers() -> None:
    case = CASES["BinaryPrecisionAtFixedRecall"]
    metric = case.make()
    metric.update(case.preds.sigmoid(), case.target)
    value, threshold = metric.compute()
    values = fed(case, made(case)).compute()
    assert values["val/it"] == pytest.approx(float(value))
    assert values["val/it_threshold"] == pytest.approx(float(threshold))


def test_tensors_for_text_and_texts_for_tensors_are_refused_by_name() -> None:
    accuracy = SplitMetrics("val", lambda: {"it": classification.BinaryAccuracy()}, block=1)
    with pytest.raises(UserError, match="metrics.val.it: the metric does not take what the model gives: it takes tens"):
        accuracy.update(SAID, MEANT, torch.tensor(0.5), N)


class Odd(Metric):
    """A metric whose result is nothing that can be logged."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count nothing."""

    def compute(self) -> object:
        """Return no number."""
        return object()


def test_what_cannot_be_logged_is_refused_by_name() -> None:
    metrics = SplitMetrics("val", lambda: {"odd": Odd()})
    metrics.update(torch.ones(2), torch.ones(2), torch.tensor(0.5), 2)
    with pytest.raises(UserError, match="metrics.val.odd: its result is of a kind that cannot be logged: object"):
        metrics.compute()


def test_metrics_that_get_nothing_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = SplitMetrics("val", lambda: {"f1": classification.BinaryF1Score()})
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            metrics.update(None, None, torch.tensor(0.5), 2)
            metrics.compute()
    assert [record.getMessage() for record in caplog.records] == [
        "metrics.val.f1 has no value: the task gives no outputs for it"
    ]


def test_long_vectors_texts_and_tuples_are_kept() -> None:
    values, rest = flatten("m", (torch.ones(2, 3), "hash", torch.arange(500)), [])
    assert not values
    assert {name: sorted(result.arrays()) for name, result in rest.items()} == {
        "m/0": ["classes", "kind", "value"],
        "m/1": ["classes", "kind", "text"],
        "m/2": ["classes", "kind", "value"],
    }
    assert flatten("m", np.float32(2), [])[0] == {"m": torch.tensor(2.0)}
    assert draw(Shaped("values", {"text": "a"}).arrays(), title="m") is None
