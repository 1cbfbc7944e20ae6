"""A metric from a function of all predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_cohen_kappa

from lightkit.common.errors import UserError
from lightkit.metrics import Function, SplitMetrics
from lightkit.metrics.stacked import StackedMetrics
from lightkit.runs.reading import read_jsonl
from tests.conftest import Cli

DRAW = torch.Generator().manual_seed(0)
LOGITS, CLASSES = torch.randn(57, 3, generator=DRAW), torch.randint(0, 3, (57,), generator=DRAW)
PAIRS, YES = torch.randn(57, 2, generator=DRAW), torch.randint(0, 2, (57,), generator=DRAW)
LABELS = torch.randint(0, 2, (57, 3), generator=DRAW)
SHARES, CHANCES = LOGITS.double().softmax(1), PAIRS[:, 0].double().sigmoid()
BEST, GAP = LOGITS.argmax(1), PAIRS[:, 1] - PAIRS[:, 0]
MANY, TWO = ("multiclass", LOGITS, CLASSES), ("multiclass", PAIRS, YES)
ONE, EACH = ("binary", PAIRS[:, :1], YES.float()), ("multilabel", LOGITS, LABELS.float())
MACRO = {"beta": 2, "average": "macro"}
CASES: list[tuple[tuple[str, Tensor, Tensor], Any, dict[str, Any], float]] = [
    (MANY, sk.fbeta_score, MACRO, sk.fbeta_score(CLASSES, BEST, **MACRO)),
    (MANY, sk.top_k_accuracy_score, {"k": 2}, sk.top_k_accuracy_score(CLASSES, SHARES, k=2)),
    (MANY, sk.log_loss, {}, sk.log_loss(CLASSES, SHARES)),
    (MANY, multiclass_cohen_kappa, {"num_classes": 3}, sk.cohen_kappa_score(CLASSES, BEST)),
    (TWO, sk.roc_auc_score, {}, sk.roc_auc_score(YES, GAP)),
    (TWO, sk.hinge_loss, {}, sk.hinge_loss(YES, GAP)),
    (ONE, sk.matthews_corrcoef, {}, sk.matthews_corrcoef(YES, PAIRS[:, 0] > 0)),
    (ONE, sk.brier_score_loss, {}, sk.brier_score_loss(YES, CHANCES)),
    (EACH, sk.hamming_loss, {}, sk.hamming_loss(LABELS, LOGITS > 0)),
    (EACH, sk.average_precision_score, {}, sk.average_precision_score(LABELS, LOGITS)),
    (("regression", PAIRS[:, :1], GAP), sk.median_absolute_error, {}, sk.median_absolute_error(GAP, PAIRS[:, 0])),
    (("regression", LOGITS, LOGITS * 2), sk.r2_score, {}, sk.r2_score(LOGITS * 2, LOGITS)),
    (("custom", LOGITS, CLASSES), sk.accuracy_score, {}, sk.accuracy_score(CLASSES, BEST)),
    (("custom", PAIRS[:, 0], GAP), sk.max_error, {}, sk.max_error(GAP, PAIRS[:, 0])),
]


def split(make: Any) -> SplitMetrics:
    return SplitMetrics("val", lambda: {"f": make()}, block=2)


def classes(function: Any, **more: Any) -> Any:
    return lambda: Function(function, task="multiclass", **more)


def value(metrics: SplitMetrics, preds: Tensor, target: Tensor, batch: int = 57) -> dict[str, float]:
    for x, y in zip(preds.split(batch), target.split(batch)):
        metrics.update(x, y, torch.zeros(()), len(x))
    return metrics.compute()


@pytest.mark.parametrize(("data", "function", "arguments", "expected"), CASES)
def test_values_are_those_of_the_function_whatever_the_batches(
    data: tuple[str, Tensor, Tensor], function: Any, arguments: Any, expected: float
) -> None:
    task, preds, target = data
    for batch in (57, 10):
        found = value(split(lambda: Function(function, task=task, **arguments)), preds, target, batch)
        assert found["val/f"] == pytest.approx(float(expected), rel=1e-6)


def test_what_it_takes_may_be_said() -> None:
    seen: list[tuple[Any, ...]] = []

    def note(y_pred: Any, y_true: Any) -> float:
        seen.append((y_pred, y_true))
        return 1.0

    for takes in ("labels", "probabilities", "scores"):
        value(split(classes(note, takes=takes)), LOGITS, CLASSES)
    assert all(np.array_equal(right, CLASSES) for _, right in seen)
    assert np.array_equal(seen[0][0], LOGITS.argmax(1))
    assert np.allclose(seen[1][0], SHARES)
    assert np.array_equal(seen[2][0], LOGITS)


def test_pixels_tokens_and_shares_of_classes_are_samples() -> None:
    pixels, kinds = torch.randn(4, 3, 2, 2, generator=DRAW), torch.randint(-1, 3, (4, 2, 2), generator=DRAW)
    counted = kinds >= 0
    expected = sk.balanced_accuracy_score(kinds[counted], pixels.argmax(1)[counted])
    assert value(split(classes(sk.balanced_accuracy_score)), pixels, kinds)["val/f"] == expected
    mixed = torch.nn.functional.one_hot(CLASSES).float()
    assert value(split(classes(sk.accuracy_score)), LOGITS, mixed)["val/f"] == sk.accuracy_score(CLASSES, BEST)
    texts, tokens = torch.randn(4, 5, 7, generator=DRAW), torch.randint(0, 7, (4, 5), generator=DRAW)
    tokens[:, 3:] = -100
    right = sk.accuracy_score(tokens[:, :3].flatten(), texts[:, :3].argmax(-1).flatten())
    assert value(split(lambda: Function(sk.accuracy_score, task="language_modeling")), texts, tokens)["val/f"] == right


def test_results_may_be_vectors_matrices_and_mappings() -> None:
    metrics = SplitMetrics("val", lambda: {"f1": classes(sk.f1_score, average=None)()}, class_names=("a", "b", "c"))
    each = sk.f1_score(CLASSES, LOGITS.argmax(1), average=None)
    assert [value(metrics, LOGITS, CLASSES)[f"val/f1/{name}"] for name in "abc"] == pytest.approx(list(each))
    matrix = split(classes(sk.confusion_matrix))
    value(matrix, LOGITS, CLASSES)
    assert np.array_equal(matrix.figures_data["f"].arrays()["value"], sk.confusion_matrix(CLASSES, LOGITS.argmax(1)))
    own = value(split(lambda: Function(lambda y, p: {"n": np.int64(len(y)), "nan": float("nan")})), LOGITS, CLASSES)
    assert own["val/f/n"] == 57
    assert np.isnan(own["val/f/nan"])


def test_those_of_the_same_inputs_keep_them_once_and_a_state_is_gone_on_with() -> None:
    def make() -> dict[str, Any]:
        own = {"f1": classes(sk.f1_score, average="micro"), "mcc": classes(sk.matthews_corrcoef)}
        return {name: one() for name, one in {**own, "loss2": classes(sk.log_loss)}.items()}

    whole, first, second = (SplitMetrics("val", make, block=2) for _ in range(3))
    expected = value(whole, LOGITS, CLASSES, 7)
    assert [group.names for group in whole.collected().groups] == [["f1", "mcc"], ["loss2"]]
    for x, y in zip(LOGITS[:35].split(7), CLASSES[:35].split(7)):
        first.update(x, y, torch.zeros(()), len(x))
    second.load_state_dict(first.state_dict())
    assert value(second, LOGITS[35:], CLASSES[35:], 7) == expected


def test_many_models_at_once() -> None:
    single = split(classes(sk.log_loss))
    both = torch.stack([LOGITS, LOGITS.flip(0)])
    stacked = StackedMetrics(single, 2)
    for start in (0, 30):
        part = slice(start, start + 30)
        stacked.update(both[:, part], CLASSES[part].expand(2, -1), torch.zeros(2), len(CLASSES[part]))
    expected = [value(single.anew(), one, CLASSES)["val/f"] for one in both]
    assert [found["val/f"] for found in stacked.compute()] == pytest.approx(expected)


def test_what_takes_no_two_arrays_is_refused() -> None:
    with pytest.raises(UserError, match=r"does not take both[\s\S]*len\(obj, /\)|does not take both"):
        Function(len)
    with pytest.raises(UserError, match=r"not a function[\s\S]*sklearn\.metrics\.fbeta_score"):
        Function("fbeta")  # type: ignore[arg-type]


RUN = "outputs/runs/one"
SHORT = (
    "train", "data=wine", "model.hidden=[8]", "trainer.epochs=2", "device=cpu", "metrics.figures=[]",
    "logger.tensorboard.enabled=false", f"hydra.run.dir={RUN}",
)  # fmt: skip


def node(function: str, split: str = "val", **more: Any) -> str:
    given = "".join(f", {name}: {one}" for name, one in more.items())
    return f"metrics.{split}.own={{_target_: lightkit.metrics.Function, function: {function}{given}}}"


@pytest.fixture
def own(project: Path) -> Path:
    (project / "scores.py").write_text(
        "def half(target, preds, power: int = 1):\n    return 0.5**power\n\n\n"
        "def fails(target, preds):\n    raise KeyError('nothing')\n\n\n"
        "def table(target, preds):\n    return object()\n"
    )
    return project


def test_a_run_is_ranked_by_a_function(own: Path, cli: Cli) -> None:
    f2 = node("sklearn.metrics.fbeta_score", beta=2, average="macro")
    done = cli(*SHORT, f2, node("scores.half", "test", power=2), "metrics.monitor=val/own", "metrics.mode=max")
    assert done.code == 0, done.err
    assert "best val/own" in done.out
    rows = read_jsonl(own / RUN / "metrics.jsonl")
    assert rows[-1]["test/own"] == 0.25
    assert all(0 < row["val/own"] <= 1 for row in rows if "val/own" in row)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["voting", "bagging"])
def test_members_and_their_ensemble_have_it(own: Path, cli: Cli, method: str) -> None:
    scored = [node("sklearn.metrics.log_loss", split) for split in ("val", "test")]
    done = cli(*SHORT, *scored, f"ensemble={method}", "ensemble.size=2")
    assert done.code == 0, done.err
    values = json.loads((own / RUN / "result.json").read_text())["metrics"]
    assert values["test/own"] == pytest.approx(values["test/loss"], rel=1e-4)
    members = [path.read_text() for path in (own / RUN / "members").glob("*/metrics.jsonl")]
    assert [text.count("val/own") for text in members] == [2, 2]


@pytest.mark.parametrize(
    ("wrong", "key", "message"),
    [
        (node("sklearn.metrics.fbeta_score", betta=2), "metrics.val.own.betta", "did you mean metrics.val.own.beta?"),
        (node("sklearn.metrics.fbeta_scor"), "metrics.val.own.function", "did you mean sklearn.metrics.fbeta_score?"),
        (node("scores.half", power="two"), "metrics.val.own.power", "a whole number"),
        (node("os.system"), "metrics.val.own.function", "not among what may be built"),
        (node("sklearn.datasets.fetch_openml"), "metrics.val.own.function", "not among what may be built"),
        (node("nowhere.score"), "metrics.val.own.function", "there is no such module"),
        (node("fbeta_score"), "metrics.val.own.function", "not a function"),
        (node("scores.fails"), "metrics.val.own", "the metric cannot be computed: KeyError: 'nothing'"),
        (node("scores.table"), "metrics.val.own", "of a kind that cannot be logged"),
        (node("scores.half", takes="ranks"), "metrics.val.own.takes", "choices:  labels, probabilities, scores"),
        (node("scores.half") + "|metrics.monitor=val/own", "metrics.mode", "metrics.mode=max, or min"),
    ],
)
def test_mistakes_are_told_before_the_first_step(own: Path, cli: Cli, wrong: str, key: str, message: str) -> None:
    refused = cli(*SHORT, *wrong.split("|"))
    assert (refused.code, f"error: {key}: " in refused.err, message in refused.err) == (2, True, True), refused.err
    assert "Traceback" not in refused.err
