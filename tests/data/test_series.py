"""Windows over series: what they hold, splits that follow time, the next horizon, and what is wrong with a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import TimeSeriesSplit

import lightkit
from lightkit.common.errors import UserError
from lightkit.data import build_data
from lightkit.data.series import Series
from tests.conftest import Cli
from tests.refused import refused

DAYS = 60
SIZES: Any = {"context": 6, "horizon": 4, "season": 3}
Cells = list[list[Any]]


def cells() -> Cells:
    """Two series, whose values are 100 and 5 more than the day, and a covariate: the day of three."""
    return [[day, name, base + day, day % 3] for name, base in (("a", 100), ("b", 5)) for day in range(DAYS)]


def written(path: Path, rows: Cells) -> str:
    lines = [",".join(map(str, row)) for row in [["time", "shop", "value", "turn"], *rows]]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def series(path: Path, rows: Cells | None = None, **options: Any) -> Series:
    known = {"series": "shop", "covariates": ["turn"], **SIZES, **options}
    return Series(path=written(path / "t.csv", rows or cells()), **known)


def test_a_window_has_values_covariates_and_scale_and_nothing_of_what_is_to_come(tmp_path: Path) -> None:
    data = series(tmp_path)
    x, y = data.take(torch.tensor([2]))
    assert x[0, :, 0].tolist() == [102, 103, 104, 105, 106, 107, 105, 106, 107, 105], "then the last season again"
    assert x[0, :, 1].tolist() == [(2 + place) % 3 for place in range(10)], "known ahead"
    assert x[0, :, 2].tolist() == [3] * 10, "three days are three apart"
    assert y.tolist() == [[108, 109, 110, 111]]
    assert series(tmp_path, horizon=1).take(torch.tensor([0]))[1].shape == (1,)


@pytest.mark.parametrize(("gap", "stride"), [(0, 1), (5, 1), (0, 7)])
def test_targets_of_evaluations_lie_after_those_of_training(tmp_path: Path, gap: int, stride: int) -> None:
    data = series(tmp_path, gap=gap, stride=stride, val=0.2, test=0.2)
    days = {name: data.starts[rows] % DAYS for name, rows in data.splits.items()}
    last = {name: int(own.max()) + 9 for name, own in days.items()}
    first = {name: int(own.min()) + 6 for name, own in days.items()}
    assert last["train"] + gap < 36 <= first["val"]
    assert last["val"] < 48 <= first["test"]
    assert all({int(at) // DAYS for at in data.starts[rows]} == {0, 1} for rows in data.splits.values())


def test_a_split_that_nobody_wants_takes_no_window(tmp_path: Path) -> None:
    data = series(tmp_path, horizon=1, val=0.2, test=0)
    assert {name: len(rows) for name, rows in data.splits.items()} == {"train": 84, "val": 24}


def test_the_scale_knows_nothing_of_what_comes_after_training(tmp_path: Path) -> None:
    rows = cells()
    for row in rows:
        row[2] = row[2] if row[0] < 42 else 9999 * (row[0] % 2)
    assert set(series(tmp_path, rows).scales.values()) == {3.0}


def test_folds_train_on_what_was_before_as_those_of_scikit_learn(tmp_path: Path) -> None:
    for fold, (before, test) in enumerate(TimeSeriesSplit(3).split(range(60))):
        data = series(tmp_path, horizon=1, val=0.25, folds=3, fold=fold)
        at = {name: torch.tensor([start % 60 + 6 for start in data.starts[rows]]) for name, rows in data.splits.items()}
        assert [at["test"].min(), at["test"].max()] == [test[0], test[-1]]
        assert at["train"].max() < at["val"].min() <= at["val"].max() == before[-1]
        assert len(at["val"].unique()) == round(len(before) / 4)
    refused(lambda: series(tmp_path, folds=3, fold=3), "there is no such fold")


@pytest.mark.parametrize("way", ["random", "fold", "ordered"])
def test_other_splits_are_refused(tmp_path: Path, way: str) -> None:
    with pytest.raises(UserError, match=r"split.by: the samples overlap, so they are cut in order"):
        build_data(dataset=series(tmp_path), split={"by": way})


def changed(row: int, column: int, value: Any) -> Callable[[Cells], None]:
    def change(rows: Cells) -> None:
        rows[row][column] = value

    return change


WRONG = {
    "no value": (changed(5, 2, ""), "line 7: a number is missing"),
    "NaN": (changed(5, 2, "nan"), "line 7: a number is missing"),
    "a word": (changed(65, 3, "soon"), "line 67: a number is missing"),
    "too large for the network": (changed(5, 2, 1e39), "line 7: a number is too large"),
    "twice": (changed(9, 0, 8), "line 11: the time is none, or not after"),
    "back": (changed(70, 0, 0), "line 72: the time is none, or not after"),
    "no time": (changed(0, 0, "soon"), "line 2: the time is none, or not after"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_series_is_named_by_file_and_line(tmp_path: Path, case: str) -> None:
    change, text = WRONG[case]
    rows = cells()
    change(rows)
    with pytest.raises(UserError, match=rf"t\.csv, {text}"):
        series(tmp_path, rows)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"season": 7}, "season: out of range"),
        ({"value": "sold"}, "no such column"),
        ({"gap": -1}, "gap: out of range"),
        ({"covariates": ["turn", "value"]}, "covariates: the values are not known ahead"),
        (
            {"context": 70},
            "no window of 70 \\+ 4 values lies in train, val, test; 2 of 2 series are shorter than 74 values",
        ),
        ({"gap": 40}, "lies in train\n"),
        ({"val": 0.05}, "lies in val\n"),
        ({"test": 0.05}, "lies in test\n"),
    ],
)
def test_settings_that_no_series_can_have(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        series(tmp_path, **options)


def test_series_without_a_window_are_told(cli: Cli, project: Path) -> None:
    short = [[day, f"s{number}", 1, 0] for number in range(6) for day in range(3)]
    written(project / "t.csv", [*cells(), *short])
    sizes = [f"data.dataset.{name}={size}" for name, size in SIZES.items()]
    run = ["train", "data=series", "data.dataset.path=t.csv", "data.dataset.series=shop", *sizes, "trainer.epochs=1"]
    done = cli(*run, "model=mlp")
    assert done.code == 0, done.err
    assert "6 of 8 series are shorter than 10 values and have no window: 's0', 's1', 's2', 's3', 's4', …" in done.out


def test_a_run_predicts_the_next_horizon(cli: Cli, project: Path) -> None:
    path = written(project / "t.csv", cells())
    sizes = [f"data.dataset.{name}={value}" for name, value in SIZES.items()]
    run = ["train", "data=series", f"data.dataset.path={path}", "data.dataset.series=shop", *sizes, "model=mlp"]
    run += ["data.dataset.covariates=[turn]", "trainer.task._target_=lightkit.trainer.Forecast", "trainer.epochs=60"]
    done = cli(*run, "model.hidden=[8]", "optim=adamw", "optim.lr=0.03", "hydra.run.dir=run")
    assert done.code == 0, done.err
    ahead = [[day, "a", "", day % 3] for day in range(DAYS, DAYS + 4)]
    new = written(project / "new.csv", [*cells()[:DAYS], *ahead])
    model = lightkit.load("run")
    found = np.array(model.predict(new))
    assert found.shape == (1, 4)
    assert np.abs(found - [160, 161, 162, 163]).max() < 1.5, "in the unit of the data"
    with pytest.raises(UserError, match="series 'a': its last 6 values, or covariates ahead, are not all there"):
        model.predict(written(project / "short.csv", [*cells()[:3], *ahead]))
    printed = cli("predict", "run", "--input", new, "--output", "-").out
    assert printed.splitlines()[1].startswith("0,a,")


def test_series_are_learnt_as_forecasts_and_not_scaled_twice(cli: Cli, project: Path) -> None:
    written(project / "t.csv", cells())
    run = ["data=series", "data.dataset.path=t.csv", "data.dataset.series=shop", "data.dataset.covariates=[turn]"]
    run += [*(f"data.dataset.{name}={size}" for name, size in SIZES.items()), "model=mlp", "trainer.epochs=1"]
    done = cli("train", *run, "hydra.run.dir=run")
    assert done.code == 0, done.err
    assert "mase" in done.out, "the data say how they are learnt"
    done = cli("train", *run, "data.normalize=standard")
    assert done.code == 2
    assert "data.normalize: each series is scaled by itself already" in done.err
