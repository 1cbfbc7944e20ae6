"""Estimators of scikit-learn: its own checks, and what it does with estimators."""

from __future__ import annotations

import pickle
import random
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_diabetes, load_digits, load_wine
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from lightkit.common.errors import UserError
from lightkit.sklearn import EXPECTED_FAILED_CHECKS, Classifier, Regressor
from tests.conftest import Cli

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TINY: dict[str, Any] = {"model__hidden": [16], "data__batch_size": 16, "optim__lr": 0.03}
CHEAP = [
    *("check_estimators_unfitted", "check_no_attributes_set_in_init", "check_set_params", "check_n_features_in"),
    *("check_parameters_default_constructible", "check_classifiers_one_label", "check_complex_data", "check_fit1d"),
    *("check_supervised_y_no_nan", "check_estimator_sparse_array", "check_dict_unchanged", "check_estimator_repr"),
    "check_do_not_raise_errors_in_init_or_set_params",
]
X, Y = load_wine(return_X_y=True)
NAMES = np.array(["red", "white", "rose"])[Y]


def checks(kind: type) -> list[tuple[str, Any]]:
    found = estimator_checks_generator(kind(**TINY, trainer__epochs=10), mark=None)
    return [(getattr(check, "func", check).__name__, check) for _, check in found]


def run(kind: type, name: str, check: Any) -> None:
    try:
        check(kind(**TINY, trainer__epochs=10))
    except AssertionError:
        assert name in EXPECTED_FAILED_CHECKS
    else:
        assert name not in EXPECTED_FAILED_CHECKS


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_checks_of_scikit_learn_that_train_little(kind: type) -> None:
    for name, check in checks(kind):
        if name in CHEAP:
            run(kind, name, check)


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_all_checks_of_scikit_learn(kind: type) -> None:
    for name, check in checks(kind):
        if name not in (*CHEAP, "check_array_api_input"):  # which needs SCIPY_ARRAY_API
            run(kind, name, check)


def test_classes_of_any_type_frames_copies_and_nothing_left(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    frame = pytest.importorskip("pandas").DataFrame(X, columns=load_wine().feature_names)
    model = Classifier("trainer.epochs=3", model="mlp", seed=3, **TINY)
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    model.fit(frame, NAMES)
    assert before == (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist())
    assert [*model.classes_] == ["red", "rose", "white"]
    assert [*model.feature_names_in_] == [*frame.columns]
    assert model.score(frame, NAMES) > 0.9
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"hue": "shade"}))
    twin = clone(model).fit(frame, NAMES)
    assert (twin.predict_proba(frame) == model.predict_proba(frame)).all()
    other = clone(model).set_params(seed=4).fit(frame, NAMES)
    assert (other.predict_proba(frame) != model.predict_proba(frame)).any()
    assert (pickle.loads(pickle.dumps(model)).predict_proba(frame) == model.predict_proba(frame)).all()
    assert Classifier(trainer__epochs=1, **TINY).fit(X, Y == 1).predict(X).dtype == bool
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in project.iterdir()] == ["experiments"]


@pytest.mark.thorough(first=0)
def test_searches_calibration_thresholds_importances_and_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    is_red = Y == 0
    search = GridSearchCV(Classifier(trainer__epochs=2, **TINY), {"optim__lr": [1e-6, 0.03]}, cv=2).fit(X, NAMES)
    assert search.best_params_ == {"optim__lr": 0.03}
    model = search.best_estimator_
    assert permutation_importance(model, X, NAMES, n_repeats=1, random_state=0).importances_mean.max() > 0
    pipeline = make_pipeline(StandardScaler(), Classifier("data.normalize=none", **TINY))
    found = GridSearchCV(pipeline, {"classifier__trainer.epochs": [1, 3]}, cv=2).fit(X, NAMES)
    assert found.best_score_ > 0.8
    calibrated = CalibratedClassifierCV(Classifier(trainer__epochs=2, **TINY), cv=2).fit(X, NAMES)
    assert calibrated.predict_proba(X).shape == (178, 3)
    with joblib.parallel_backend("threading"):
        scores = cross_val_score(Classifier(trainer__epochs=2, **TINY), X, NAMES, cv=2, n_jobs=2)
    sys.stdout.write("still heard\n")
    assert (scores == cross_val_score(Classifier(trainer__epochs=2, **TINY), X, NAMES, cv=2)).all()
    assert capsys.readouterr().out == "still heard\n"
    tuned = TunedThresholdClassifierCV(Classifier(trainer__epochs=2, **TINY), cv=2).fit(X, is_red)
    assert tuned.score(X, is_red) > 0.8


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_weights_of_samples(kind: type) -> None:
    model, kept = kind(trainer__epochs=3, **TINY), np.arange(len(X)) % 3 > 0
    some = clone(model).fit(X, Y, sample_weight=kept * 2.5).predict(X)
    np.testing.assert_allclose(some, clone(model).fit(X[kept], Y[kept], sample_weight=np.ones(kept.sum())).predict(X))
    np.testing.assert_allclose(some, clone(model).fit(X[kept], Y[kept]).predict(X), atol=1e-4)
    twice = clone(model).fit(X, Y, sample_weight=np.where(Y == 2, 50, 1)).predict(X).mean()
    assert twice > clone(model).fit(X, Y, sample_weight=np.where(Y == 0, 50, 1)).predict(X).mean()


def test_values_targets_ensembles_and_rows_held_out() -> None:
    inputs, target = load_diabetes(return_X_y=True)
    both = np.stack([target * 1e6, 3 - target], 1)
    assert Regressor(**TINY).fit(inputs, both).score(inputs, both) > 0.4
    several = Regressor("ensemble=bagging", ensemble__size=2, trainer__epochs=5, **TINY).fit(inputs, target)
    assert several.module_.network.names == ("00", "01")
    assert pickle.loads(pickle.dumps(several)).score(inputs, target) == several.score(inputs, target) > 0.2
    how: dict[str, Any] = {"data__split__val": 0.3, "optim__lr": 0.1, "trainer__epochs": 30}
    best = Regressor(**TINY | how, trainer__early_stopping__patience=3).fit(inputs, target)
    assert best.score(inputs, target) > 0.3


def test_images_and_mistakes(cli: Cli) -> None:
    pictures, digits = load_digits(return_X_y=True)
    model = Classifier("model=cnn", trainer__epochs=1).fit(pictures[:200].reshape(-1, 1, 8, 8), digits[:200])
    assert model.predict_proba(pictures[:3].reshape(-1, 1, 8, 8)).shape == (3, 10)
    with pytest.raises(ValueError, match=r"optim\.lrr: .* takes no such argument"):
        Classifier(optim__lrr=1.0).fit(X, Y)
    with pytest.raises(ValueError, match=r"model: no such option"):
        Classifier("model=mlpp").fit(X, Y)
    with pytest.raises(UserError, match="loss: this loss cannot weigh samples"):
        Classifier("loss=supervised_contrastive").fit(X, Y, sample_weight=X[:, 0])
    done = cli("train", "data=custom", "data.dataset._target_=lightkit.data.memory.held")
    assert (done.code, "was in the memory of the program" in done.err) == (2, True)
