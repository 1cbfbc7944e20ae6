from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from scipy import stats

from lightkit.common.csv_lines import CsvWriter
from lightkit.common.errors import UserError
from lightkit.compare.rows import check_alike, compare_rows, is_current, predictions_file, read_predictions
from lightkit.runs.index import read_record
from tests.compare.made import a_run, predictions

RIGHT = [(row, "a", "a", 0.8) for row in range(20)]
WRONG = [(row, "a", "b" if row < 8 else "a", 0.3 if row < 8 else 0.6) for row in range(20)]


def test_classes_have_errors_and_log_losses(tmp_path: Path) -> None:
    predictions(tmp_path, [(4, "b", "a", 0.25), (1, "a", "a", 0.5)])
    found = read_predictions(tmp_path, "test")
    assert (found.rows, found.targets) == ((1, 4), ("a", "b"))
    assert found.losses["error"].tolist() == [0, 1]
    assert found.losses["log_loss"].tolist() == pytest.approx([math.log(2), math.log(4)])
    assert found.right is not None
    assert found.right.tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "losses"),
    [
        ("row,target,prediction,p\n0,1,0,0.25\n", {"error": [1.0], "log_loss": [math.log(4)]}),
        ("row,target,prediction\n0,1.5,[1.0]\n", {"squared_error": [0.25]}),
        ("row,target,prediction\n0,1.5,1.0\n", {"squared_error": [0.25]}),
        ('row,target,prediction,p(x),p(y)\n0,"[1, 0]","[1, 1]",0.9,0.8\n', {"error": [0.5]}),
    ],
    ids=["binary", "regression", "number", "labels"],
)
def test_losses_of_other_targets(tmp_path: Path, text: str, losses: dict[str, list[float]]) -> None:
    (tmp_path / "predictions-val.csv").write_text(text)
    found = read_predictions(tmp_path, "val").losses
    assert {name: values.tolist() for name, values in found.items()} == {
        name: pytest.approx(values) for name, values in losses.items()
    }


@pytest.mark.parametrize(
    "text", ["", "row,target\n1,2\n", "row,target,prediction\nx,1,1\n", 'row,target,prediction\n0,"[1]","[1, 2]"\n']
)
def test_what_is_no_table_of_predictions_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "predictions-test.csv").write_text(text)
    with pytest.raises(UserError, match="no table of predictions"):
        read_predictions(tmp_path, "test")
    with pytest.raises(UserError, match="no predictions"):
        read_predictions(tmp_path, "val")


def test_two_runs_row_by_row_by_hand(tmp_path: Path) -> None:
    first, other = (read_record(a_run(tmp_path / name)) for name in ("first", "other"))
    predictions(first.folder, WRONG)
    predictions(other.folder, RIGHT)
    tables, tests = compare_rows({"other": [(first, other)]}, "test")
    assert [(one.label, one.seed, one.test.gained, one.test.lost) for one in tables] == [("other", 0, 8, 0)]
    assert tables[0].test.p == tables[0].p_holm == pytest.approx(stats.binomtest(0, 8).pvalue)
    assert [(one.loss, one.seeds, one.test.n) for one in tests] == [("error", 1, 20), ("log_loss", 1, 20)]
    by_hand = (8 * (math.log(0.3)) + 12 * math.log(0.6)) / 20 - math.log(0.8)
    assert [one.test.mean for one in tests] == pytest.approx([-0.4, by_hand])
    assert all(one.p_holm < 0.01 for one in tests)


def test_seeds_are_averaged_row_by_row(tmp_path: Path) -> None:
    runs = {(name, seed): read_record(a_run(tmp_path / f"{name}{seed}", seed=seed)) for name in "ab" for seed in (0, 1)}
    for (name, seed), run in runs.items():
        predictions(run.folder, WRONG if (name, seed) == ("a", 0) else RIGHT)
    tables, tests = compare_rows({"b": [(runs["a", seed], runs["b", seed]) for seed in (0, 1)]}, "test")
    assert [(one.seed, one.test.gained) for one in tables] == [(0, 8), (1, 0)]
    assert (tests[0].seeds, tests[0].test.mean) == (2, pytest.approx(-0.2))
    assert tables[0].p_holm == pytest.approx(2 * tables[0].test.p)


def test_rows_of_other_data_or_another_split_are_refused(tmp_path: Path) -> None:
    first, other = (read_record(a_run(tmp_path / name)) for name in ("first", "other"))
    foreign, unknown = (read_record(a_run(tmp_path / name, data=name[:1])) for name in ("x", "y"))
    predictions(first.folder, RIGHT)
    predictions(other.folder, [*RIGHT[:-1], (33, "a", "a", 0.8)])
    with pytest.raises(UserError, match="other rows than the baseline in split test: 2 differ"):
        compare_rows({"other": [(first, other)]}, "test")
    predictions(other.folder, [*RIGHT[:-1], (19, "b", "b", 0.8)])
    with pytest.raises(UserError, match="other targets than the baseline in split test: 1 differ"):
        compare_rows({"other": [(first, other)]}, "test")
    with pytest.raises(UserError, match="rows of different data cannot be compared"):
        check_alike(first, foreign, "test")
    with pytest.raises(UserError, match="different data"):
        check_alike(foreign, unknown, "test")


def test_predictions_from_before_the_end_are_not_current(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    assert not is_current(run, "test")
    predictions(run, RIGHT)
    assert is_current(run, "test")
    os.utime(run / "predictions-test.csv", (0, 0))
    assert not is_current(run, "test")


def test_classes_that_are_formulas_are_compared_as_they_are(tmp_path: Path) -> None:
    """Their names are written so that no spreadsheet computes them, and read as they were."""
    run = a_run(tmp_path / "run")
    with predictions_file(run, "test").open("w", newline="") as file:
        columns = ["row", "target", "prediction", "p(=1+1)", "p(-x)"]
        CsvWriter(file).rows([columns, [0, "=1+1", "=1+1", 0.9, 0.1], [1, "-x", "=1+1", 0.8, 0.2]])
    assert ",'=1+1," in predictions_file(run, "test").read_text()
    found = read_predictions(run, "test")
    assert found.targets == ("=1+1", "-x")
    assert list(found.losses["error"]) == [0.0, 1.0]
