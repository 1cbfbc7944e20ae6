"""What is learnt of numbers to predict, and the way back, compared with scikit-learn."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import QuantileTransformer, StandardScaler

import lightkit
from lightkit.config import compose
from lightkit.data import TensorData, build_data, table
from lightkit.data.targets import KINDS, TargetTransform
from lightkit.runner import Runner
from tests.conftest import Outcome
from tests.refused import refused

PRICES = torch.from_numpy(np.random.default_rng(0).lognormal(11, 1, 500).round())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("targets", [1, 3])
def test_the_way_back_leads_where_it_came_from(kind: str, targets: int) -> None:
    y = PRICES if targets == 1 else PRICES.reshape(-1, 1) * torch.tensor([1.0, 1e-6, 3.0])
    fitted = TargetTransform(kind).fit(y[:400])
    assert (
        TargetTransform(**json.loads(json.dumps(asdict(fitted)))).undo(fitted(y)).tolist()
        == fitted.undo(fitted(y)).tolist()
    )
    beyond = torch.cat([y, y[:1] / 50, y.max(0, keepdim=True).values * 4])
    assert torch.allclose(fitted.undo(fitted(beyond).double()), beyond, rtol=2e-5), "beyond what it was fitted to, too"
    order = beyond.reshape(len(beyond), -1)[:, 0].argsort()
    learnt = fitted(beyond).reshape(len(beyond), -1)[:, 0][order]
    assert bool((learnt.diff() >= 0).all())


def test_what_is_learnt_is_what_scikit_learn_makes_of_it() -> None:
    column = PRICES.numpy()[:, None]
    scaled = StandardScaler().fit_transform(column)[:, 0]
    assert np.allclose(TargetTransform("standardize").fit(PRICES)(PRICES), scaled, atol=1e-5)
    scaled = StandardScaler().fit_transform(np.log1p(column))[:, 0]
    assert np.allclose(TargetTransform("log").fit(PRICES)(PRICES), scaled, atol=1e-5)
    scaled = QuantileTransformer(n_quantiles=129, output_distribution="normal").fit_transform(column)[:, 0]
    inner = np.abs(scaled) < 2
    assert np.abs(TargetTransform("quantile").fit(PRICES)(PRICES).numpy() - scaled)[inner].max() < 0.02


def test_targets_that_are_all_the_same_or_mostly_so() -> None:
    for kind in KINDS:
        for y in (torch.full((9,), 5.0), torch.tensor([0.0] * 50 + [1.0, 2.0, 7.0])):
            fitted = TargetTransform(kind).fit(y)
            assert torch.allclose(fitted.undo(fitted(y)), y, atol=1e-5)
            assert bool(fitted(y).isfinite().all())
    refused(lambda: TargetTransform("log").fit(torch.tensor([1.0, -1.0])), "target_transform … -1.0 … quantile")
    refused(lambda: TargetTransform("boxcox"), "target_transform … standardize")


def flats(path: Path, rows: int = 160) -> str:
    draw = np.random.default_rng(1)
    made = pd.DataFrame({"flat": [f"f{i}" for i in range(rows)], "area": draw.uniform(30, 150, rows)})
    made["street"], made["price"] = draw.choice(list("abcdefgh"), rows), made.area * 4000
    made.to_parquet(path)
    return str(path)


def test_it_is_fitted_on_training_rows_alone(tmp_path: Path) -> None:
    data = table(flats(tmp_path / "t.parquet"), "price", ["area"], target_transform="standardize")
    assert isinstance(data, TensorData)
    built = build_data(dataset=data, split={"by": "random"}, normalize="none")
    learnt = built.source.y[built.rows["train"]]
    assert float(learnt.mean()) == pytest.approx(0, abs=1e-5)
    assert float(built.source.y.mean()) != pytest.approx(0, abs=1e-5)
    assert built.info.fingerprint == data.info.fingerprint
    assert torch.allclose(built.info.in_unit(built.source.y), data.y.double(), rtol=1e-6)


WORDS = ["data=table", "data.dataset.target=price", "data.dataset.id_column=flat", "data.dataset.embedded=[street]",
         "model=tabular", "data.dataset.target_transform=log", "model.hidden=[8]", "trainer.epochs=2",
         "logger=quiet", "device=cpu", "optim.lr=0.01"]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("ensemble", [[], ["ensemble=voting", "ensemble.size=2"]], ids=["one", "ensemble"])
def test_predictions_and_metrics_are_in_the_unit_of_the_table(tmp_path: Path, ensemble: list[str]) -> None:
    path, run = flats(tmp_path / "t.parquet"), tmp_path / "run"
    cfg = compose([*WORDS, f"data.dataset.path={path}", *ensemble]).cfg
    assert cfg.loss._target_ == "torch.nn.MSELoss"
    Runner(cfg, run).run()
    frame = pd.read_parquet(path)
    rows = Runner(cfg, run).predict("test")
    wanted = frame.set_index("flat").loc[[row["flat"] for row in rows]]
    assert [row["target"] for row in rows] == pytest.approx(wanted.price.tolist(), rel=1e-5)
    errors = np.array([row["prediction"] for row in rows]) - wanted.price.to_numpy()
    measured = Runner(cfg, run).evaluate("test")
    assert measured["test/rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)
    assert measured["test/loss"] < 100, "that of what is learnt"
    model = lightkit.load(run)
    assert model.predict(wanted.reset_index()) == pytest.approx([row["prediction"] for row in rows], rel=1e-5)
    assert model.evaluate(wanted.reset_index())["rmse"] == pytest.approx(measured["test/rmse"], rel=1e-4)
    if ensemble:
        members = [lightkit.load(run, members=[name]).predict(wanted) for name in model.network.names]
        spread = np.std(members, axis=0)
        assert [row["std"] for row in rows] == pytest.approx(spread.tolist(), rel=1e-3)


def test_exports_and_resumes(cli: Callable[..., Outcome], project: Path) -> None:
    flats(project / "t.parquet")
    words = [*WORDS, "data.dataset.path=t.parquet", "trainer.epochs=2"]
    assert cli("train", *words, "name=whole").code == 0
    assert cli("train", *words, "name=parts", "trainer.stop_at=1").code == 0
    assert cli("resume", "parts", "trainer.stop_at=null").code == 0
    found = [Runner.predict(_runner(name), "test") for name in ("whole", "parts")]
    assert found[0] == found[1]
    done = cli("export", "whole", "model.pt2")
    assert done.code == 0, done.err
    frame = pd.read_parquet(project / "t.parquet")
    frame.drop(columns="price").to_csv(project / "new.csv", index=False)
    scope: dict[str, Any] = {"__name__": "exported", "__file__": str(project / "predict_model_pt2.py")}
    exec(compile((project / "predict_model_pt2.py").read_text(), "predict_model_pt2.py", "exec"), scope)
    by_file = scope["predict"](scope["read"]("new.csv")).flatten().tolist()
    assert by_file == pytest.approx(lightkit.load("whole").predict(frame).tolist(), rel=1e-5)


def _runner(name: str) -> Runner:
    folder = lightkit.load(name).folder
    return Runner(compose_of(folder), folder)


def compose_of(folder: Path) -> Any:
    from lightkit.runs.reading import read_run

    return read_run(folder, []).cfg
