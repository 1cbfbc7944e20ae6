"""Probabilities after a calibration, and sets and intervals that cover, against scikit-learn and their formulas."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, make_scorer, matthews_corrcoef
from sklearn.model_selection import TunedThresholdClassifierCV

import lightkit
from lightkit.cli import main
from lightkit.ensemble.combining import as_probabilities
from lightkit.runner.calibrate import GOALS, Curves, conformal_quantile, fit_curves, goal_of, measures

RUN = "outputs/run"
QUICK = ("model.hidden=[8]", "trainer.epochs=4", "optim.lr=0.01", "logger.console.style=quiet", "metrics.figures=[]")
QUICK += ("logger.tensorboard.enabled=false", f"hydra.run.dir={RUN}")


class AsGiven(ClassifierMixin, BaseEstimator):
    """Says what it is given."""

    def __init__(self, classes: int = 3) -> None:
        self.classes = classes

    @property
    def classes_(self) -> np.ndarray:
        return np.arange(self.classes)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, x: np.ndarray, y: np.ndarray) -> AsGiven:
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x.argmax(1)

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return x


def drawn(count: int, seed: int, sharp: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are too sure of themselves, and classes."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, 3, generator=draw)
    targets = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    return logits * sharp, targets


def test_isotonic_probabilities_are_those_of_scikit_learn() -> None:
    (logits, targets), (new, _) = drawn(400, 0), drawn(100, 1)
    given = [as_probabilities(one, "multiclass").double().numpy() for one in (logits, new)]
    theirs = CalibratedClassifierCV(FrozenEstimator(AsGiven()), method="isotonic").fit(given[0], targets.numpy())
    ours = Curves("multiclass", **fit_curves("isotonic", logits, targets, "multiclass"))(new).softmax(1)
    apart, wanted = np.abs(ours.numpy() - theirs.predict_proba(given[1])), theirs.predict_proba(given[1])
    assert apart[(wanted > 0).all(1)].max() < 1e-6
    assert apart.max() < 3e-6  # a logit has no probability of 0


@pytest.mark.parametrize("method", ["temperature", "vector", "isotonic"])
@pytest.mark.parametrize("task", ["multiclass", "binary"])
def test_each_method_makes_what_is_too_sure_of_itself_believable(method: str, task: str) -> None:
    (logits, targets), (new, truth) = drawn(2000, 0), drawn(2000, 1)
    if task == "binary":
        logits, new = (one[:, 1:2] - one[:, :1] for one in (logits, new))
        draw = torch.Generator().manual_seed(2)
        targets, truth = (torch.bernoulli((one / 3).sigmoid(), generator=draw)[:, 0] for one in (logits, new))
    found = Curves(task, **fit_curves(method, logits, targets, task))(new)
    before, after = measures(new, truth, task), measures(found, truth, task)
    assert after["ece"] < before["ece"] / 2
    assert after["log_loss"] < before["log_loss"]
    assert found.shape == new.shape


def test_the_quantile_covers_new_rows_as_often_as_asked() -> None:
    shares = []
    for seed in range(200):
        (logits, targets), (new, truth) = drawn(99, 2 * seed), drawn(99, 2 * seed + 1)
        quantile = conformal_quantile(logits.softmax(1), targets, "multiclass", 0.9)
        shares.append(float((new.softmax(1).gather(1, truth[:, None]) >= 1 - quantile).float().mean()))
    assert 0.89 < np.mean(shares) < 0.92
    assert conformal_quantile(drawn(9, 0)[0].softmax(1), drawn(9, 0)[1], "multiclass", 0.95) == float("inf")
    values, truth = torch.zeros(99, 1), torch.arange(1, 100).float()[:, None]
    assert conformal_quantile(values, truth, "regression", 0.9) == 90  # ceil(100 * 0.9)


@pytest.fixture(autouse=True)
def quick_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.runner.intervals._DRAWS", 20)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("digits")
    (place / "conf").mkdir()
    with chdir(place):
        assert main(["train", "data=digits", *QUICK]) == 0
    return place


def test_a_run_that_is_calibrated_predicts_so_everywhere(digits: Path, cli: Callable[..., Any]) -> None:
    with chdir(digits):
        x = np.random.default_rng(0).uniform(0, 16, size=(5, 64)).astype(np.float32).reshape(5, 1, 8, 8)
        model = lightkit.load(RUN)
        raw = model.outputs(x)
        told = cli("calibrate", RUN, "--coverage", "0.9", "--json")
        assert told.code == 0, told.err
        found = json.loads(told.out)
        assert found["test"]["after"]["ece"] <= found["test"]["before"]["ece"] + 0.01
        assert 0.8 < found["covered"] <= 1
        kept = json.loads(Path(f"{RUN}/calibration.json").read_text())
        expected = (raw * kept["curves"]["scale"][0]).softmax(1).numpy()
        assert np.allclose(lightkit.load(RUN).predict_proba(x), expected, atol=1e-6)

        assert cli("predict", RUN).code == 0
        with Path(f"{RUN}/predictions-test.csv").open() as file:
            rows = list(csv.DictReader(file))
        inside = [row["target"] in row["set"].split() for row in rows]
        assert np.mean(inside) == pytest.approx(found["covered"], abs=1e-6)
        assert (Path(RUN) / "figures" / "calibration" / "after.png").is_file()

        kept["curves"] = {"scale": [1.0, 1.0], "shift": [0.0, 0.0]}
        Path(f"{RUN}/calibration.json").write_text(json.dumps(kept))
        foreign = cli("predict", RUN)
        assert (foreign.code, "another number of classes" in foreign.err) == (2, True)

        assert cli("calibrate", RUN, "--method", "none", "--coverage", "0.95").code == 0
        assert np.allclose(lightkit.load(RUN).predict_proba(x), raw.softmax(1).numpy(), atol=1e-6)


def test_intervals_of_values_cover(cli: Callable[..., Any]) -> None:
    assert cli("train", "data=diabetes", *QUICK).code == 0
    assert "another --method" not in cli("calibrate", RUN).err  # no method changes a value
    told = cli("calibrate", RUN, "--coverage", "0.8", "--json")
    assert told.code == 0, told.err
    found = json.loads(told.out)
    assert cli("predict", RUN).code == 0
    with Path(f"{RUN}/predictions-test.csv").open() as file:
        rows = list(csv.DictReader(file))
    inside = [float(row["low"]) <= float(row["target"]) <= float(row["high"]) for row in rows]
    assert np.mean(inside) == pytest.approx(found["covered"], abs=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "platt"), "choices:  temperature, vector, isotonic, none"),
        (("--method", "none"), "nothing would be done"),
        (("--coverage", "90"), "a number between 0 and 1"),
        (("--split", "later"), "no such split"),
        (("--split", "train"), "the run has learnt from these rows"),
    ],
)
def test_mistakes_are_told(digits: Path, cli: Callable[..., Any], words: tuple[str, ...], message: str) -> None:
    with chdir(digits):
        outcome = cli("calibrate", RUN, *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err


def saved(truth: np.ndarray, said: np.ndarray) -> float:
    """What decisions cost, with a minus, where it costs 1 to say yes wrongly and 5 to say no wrongly."""
    return -float(((said > truth) + 5.0 * (said < truth)).mean())


SCORES: dict[str, Callable[..., float]] = {
    "f1": lambda truth, said: f1_score(truth, said, zero_division=0.0),
    "accuracy": accuracy_score,
    "balanced_accuracy": balanced_accuracy_score,
    "youden": lambda truth, said: balanced_accuracy_score(truth, said, adjusted=True),
    "mcc": matthews_corrcoef,
    "": saved,
}
COST = "{false_positive: 1, false_negative: 5}"


@pytest.mark.parametrize("name", SCORES)
def test_thresholds_are_the_best_of_all(name: str) -> None:
    assert {*SCORES} == {*GOALS, ""}
    draw = np.random.default_rng(3)
    chance = draw.uniform(size=400).round(2)  # many are equal
    truth = draw.uniform(size=400) < chance**2
    goal, score = goal_of(name, "" if name else COST), SCORES[name]
    assert goal is not None
    scores, labels = torch.from_numpy(chance)[:, None], torch.from_numpy(truth)[:, None]
    (found,) = goal.thresholds(scores, labels)
    best = max(score(truth, chance > cut) for cut in (-1.0, *np.unique(chance)))
    assert score(truth, chance > found) == pytest.approx(best, abs=1e-6)
    assert goal.sign * goal.reached(scores > found, labels) == pytest.approx(best, abs=1e-6)
    both, cuts = np.stack([1 - chance, chance], 1), np.unique(chance)
    how: dict[str, Any] = {"cv": "prefit", "refit": False, "thresholds": cuts}
    theirs = TunedThresholdClassifierCV(FrozenEstimator(AsGiven(2)), scoring=make_scorer(score), **how)
    assert score(truth, chance > found) >= theirs.fit(both, truth.astype(int)).best_score_ - 1e-6


def test_thresholds_of_one_side_only_leave_the_other_out() -> None:
    goal, scores = goal_of("accuracy", ""), torch.tensor([[0.0], [0.4], [1.0]])
    assert goal is not None
    never, always = (goal.thresholds(scores, torch.full((3, 1), side))[0] for side in (False, True))
    assert ((scores > never).any(), (scores > always).all()) == (False, True)


def predicted(cli: Callable[..., Any], *words: str) -> list[dict[str, str]]:
    assert cli("predict", *words, "--output", "p.csv").code == 0
    with Path("p.csv").open() as file:
        return [*csv.DictReader(file)]


def test_tuned_thresholds_decide_wherever_a_run_predicts(cli: Callable[..., Any]) -> None:
    assert cli("train", "data=breast_cancer", *QUICK, "data.split.val=0.3").code == 0
    told = cli("calibrate", RUN, "--threshold", "f1", "--json")
    assert told.code == 0, told.err
    found = json.loads(told.out)
    ((name, threshold),) = found["thresholds"].items()
    for split, expected in (("val", found["reached"]), ("test", found["test"]["after"]["f1"])):
        rows = predicted(cli, RUN, "--split", split)
        chance, truth, said = zip(*((float(r["p(benign)"]), r["target"], r["prediction"]) for r in rows))
        assert [one == name for one in said] == [one > threshold for one in chance]
        assert f1_score(truth, said, pos_label=name) == pytest.approx(expected, abs=1e-6)
        if split == "val":
            marks = [one == name for one in truth]
            assert max(f1_score(marks, np.array(chance) >= cut) for cut in chance) == pytest.approx(expected, abs=1e-6)
    assert found["after"]["f1"] <= found["reached"] + 1e-6, "each row by thresholds that others chose"
    model, x = lightkit.load(RUN), np.random.default_rng(0).uniform(0, 30, size=(40, 30)).astype(np.float32)
    assert (model.predict(x) == np.where(model.predict_proba(x)[:, 1] > threshold, "benign", "malignant")).all()
    assert cli("export", RUN, "m.pt2").code == 0
    assert "'thresholds': [0." in Path("predict_m_pt2.py").read_text()
    shown = cli("calibrate", RUN, "--method", "none", "--cost", COST).out
    assert ("decided for cost: benign above" in shown, "too good for other rows" in shown) == (True, True)


def test_each_label_has_a_threshold_and_folds_have_one_together(cli: Callable[..., Any]) -> None:
    assert cli("train", "data=digits_multilabel", *QUICK, "trainer.epochs=1").code == 0
    found = json.loads(cli("calibrate", RUN, "--threshold", "mcc", "--json").out)["thresholds"]
    rows = predicted(cli, RUN)
    said = np.array([json.loads(row["prediction"]) for row in rows])
    chance = np.array([[float(row[f"p({name})"]) for name in found] for row in rows])
    assert (len(found), (said == (chance > [*found.values()])).all()) == (8, True)
    words = ("data=breast_cancer", "data.dataset.binary=true", "loss=bce_with_logits", "metrics=binary", "cv=2")
    assert (
        cli("train", *words, *QUICK[:-1], "trainer.epochs=1", "cv.engine=sequential", "hydra.run.dir=outputs/cv").code
        == 0
    )
    told = json.loads(cli("calibrate", "outputs/cv", "--threshold", "accuracy", "--json").out)
    rows = predicted(cli, "outputs/cv")
    hits = [float(row["target"]) == float(row["prediction"]) for row in rows]
    assert (np.mean(hits), told["test"]) == (pytest.approx(told["reached"]), {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--threshold", "auc"), "choices:  f1, accuracy, balanced_accuracy, youden, mcc"),
        (("--threshold", "f1"), "a threshold parts two classes"),  # of ten digits
        (("--threshold", "f1", "--cost", COST), "without --threshold"),
        (("--cost", "{false_positive: -1, false_negative: 5}"), "0 or more, not both 0"),
        (("--cost", "{false_positive: 0, false_negative: 0}"), "0 or more, not both 0"),
        (("--cost", "{false_positive:1,false_negative:5}"), "with a space after each colon"),
        (("--cost", "[1"), "0 or more, not both 0"),
    ],
)
def test_mistakes_of_thresholds_are_told(
    digits: Path, cli: Callable[..., Any], words: tuple[str, ...], message: str
) -> None:
    with chdir(digits):
        outcome = cli("calibrate", RUN, *words)
    assert (outcome.code, message in outcome.err, "Traceback" in outcome.err) == (2, True, False), outcome.err
