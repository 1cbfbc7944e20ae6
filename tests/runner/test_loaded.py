"""A trained ensemble as an object."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

import lightkit
from lightkit.common.errors import UserError
from lightkit.ensemble.oof import MemberPredictions
from tests.runner.finished_runs import trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "v", "ensemble=voting", "ensemble.size=2")


def test_inputs_as_they_are_in_the_data_give_what_the_run_predicts(run: Path) -> None:
    ensemble = lightkit.load_ensemble(run)
    known = MemberPredictions.read(run / "oof.safetensors")
    x, y = load_wine(return_X_y=True)
    found = ensemble.predict(x)
    assert isinstance(found, np.ndarray)
    assert torch.allclose(torch.tensor(found)[known.rows], known.predictions, atol=1e-6)
    assert torch.equal(ensemble.predict(torch.tensor(x)), torch.tensor(found))
    measured = ensemble.evaluate(x, y)
    assert measured["accuracy"] == pytest.approx((found.argmax(1) == y).mean(), abs=1e-6)
    assert ensemble.evaluate(torch.tensor(x), torch.tensor(y)) == measured


def test_it_is_a_sequence_of_its_members(run: Path) -> None:
    ensemble = lightkit.load_ensemble(str(run))
    assert (len(ensemble), ensemble.names, ensemble.weights) == (2, ("00", "01"), [0.5, 0.5])
    assert [*ensemble] == [ensemble[0], ensemble[1]]


def test_other_inputs_and_runs_are_refused(run: Path) -> None:
    ensemble = lightkit.load_ensemble(run)
    with pytest.raises(UserError, match="no inputs of the run"):
        ensemble.predict(torch.zeros(2, 5))
    with pytest.raises(UserError, match="as many targets as inputs"):
        ensemble.evaluate(torch.zeros(2, 13), torch.zeros(1))
    with pytest.raises(UserError, match="this run is no ensemble"):
        lightkit.load_ensemble(run / "members" / "00")
    assert ensemble.predict(torch.zeros(0, 13)).shape == (0, 3)
