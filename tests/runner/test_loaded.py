"""A trained ensemble as an object."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_wine

import lightkit
from lightkit.common.errors import UserError
from lightkit.ensemble.oof import MemberPredictions
from lightkit.runner import Runner
from lightkit.runs.reading import read_json, read_run
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


def test_values_are_in_the_unit_of_the_table(tmp_path: Path) -> None:
    own = ("data=diabetes", "data.dataset.target_scale=50", "data.split.val=0.3", "ensemble=voting", "ensemble.size=2")
    run = trained(tmp_path / "v", *own)
    ensemble, known = lightkit.load_ensemble(run), MemberPredictions.read(run / "oof.safetensors")
    x, y = load_diabetes(return_X_y=True, scaled=False)
    found, written = ensemble.predict(x), [*Runner(read_run(run).cfg, run).predict("test")]
    assert found[[row["row"] for row in written], 0] == pytest.approx([row["prediction"] for row in written], rel=1e-4)
    test = known.of_split("test").rows.numpy()
    result, measured = read_json(run / "result.json")["metrics"], ensemble.evaluate(x[test], y[test])
    assert measured == pytest.approx({name: result[f"test/{name}"] for name in measured}, rel=1e-4)


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
