from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from lightkit.common.csv_lines import CsvWriter
from lightkit.common.errors import UserError
from lightkit.compare.comparison import RunComparison, build_comparison
from lightkit.compare.report import html_page, tables
from lightkit.compare.seeds import SeedTest, check_alike, compare_rows, is_current, predictions_file, read_predictions
from lightkit.runs.index import read_record
from tests.compare.made import CONFIG, a_run, predictions

COUNTED = CONFIG.replace(
    "metrics:\n",
    "metrics:\n  val:\n    accuracy:\n      _target_: torchmetrics.classification.MulticlassAccuracy\n",
)
FOLDS = CONFIG + "data:\n  split:\n    by: fold\n    folds: 5\n    fold: FOLD\n    seed: 0\n    val: 0.1\n"
NOISE = [0.0, 6e-8, -6e-8, 3e-8, 0.0, -3e-8, 6e-8, 1e-8, 0.0, -6e-8]
"""What float32 adds to equal values near 1."""


def compared(root: Path, values: Mapping[float, Mapping[int, float]], *, rows: int | None = None) -> RunComparison:
    """Compare runs with these values by rate and seed; the first rate is the baseline."""
    records = []
    for lr, each in values.items():
        for seed, value in each.items():
            folder = a_run(root / f"{lr}-{seed}", lr=lr, seed=seed, val=value, config=COUNTED if rows else CONFIG)
            if rows:
                np.savez(folder / "rows.npz", split=np.ones(rows, np.uint8))
            records.append(read_record(folder))
    return build_comparison(records, baseline=f"lr={next(iter(values))}", metrics=["val/accuracy"])


def two(root: Path, first: Sequence[float], second: Sequence[float], *, rows: int | None = None) -> SeedTest:
    """Compare two groups with seeds from 0 on."""
    (test,) = compared(root, {0.1: dict(enumerate(first)), 0.2: dict(enumerate(second))}, rows=rows).seed_tests
    return test


def of_rows(rows: int, *right: int) -> list[float]:
    """Return accuracies as float32 gives them."""
    return [float(np.float32(each) / np.float32(rows)) for each in right]


@pytest.mark.parametrize(
    ("first", "second", "rows", "verdict"),
    [
        pytest.param(of_rows(18, 17, 17, 17), of_rows(18, 18, 18, 18), 18, "may be chance", id="one-row-3-seeds"),
        pytest.param(
            of_rows(18, 16, 17, 15), [x + e for x, e in zip(of_rows(18, 17, 18, 16), NOISE)], None, "may be chance",
            id="one-row-and-rounding",
        ),
        pytest.param(of_rows(18, 17, 16), of_rows(18, 18, 17), 18, "too few seeds", id="two-seeds-one-row"),
        pytest.param([0.2, 0.21], [0.9, 0.91], None, "too few seeds", id="two-seeds-far-apart"),
        pytest.param([0.2], [0.9], None, "too few seeds", id="one-seed"),
        pytest.param([0.9] * 5, [0.9] * 5, 18, "no difference", id="all-equal"),
        pytest.param([0.9] * 10, [0.9 + e for e in NOISE], None, "no difference", id="rounding-alone"),
        pytest.param([0.8] * 3, [0.9] * 3, None, "may be chance", id="no-spread-no-rows"),
        pytest.param([0.5] * 4, [0.5, 0.5, 0.5, 0.55], 20, "may be chance", id="one-of-four"),
        pytest.param(of_rows(20, *[10] * 9), of_rows(20, *[10] * 5, *[11] * 4), 20, "may be chance", id="ties-many"),
        pytest.param(
            of_rows(180, 150, 152, 151, 153, 149), of_rows(180, 160, 163, 160, 164, 158), 180, "better", id="real"
        ),
        pytest.param(of_rows(18, *[10] * 5), of_rows(18, *[15] * 5), 18, "better", id="real-without-spread"),
        pytest.param([0.80, 0.81, 0.79, 0.80, 0.82], [0.75, 0.76, 0.75, 0.74, 0.77], None, "worse", id="real-worse"),
        pytest.param(of_rows(50, *[40] * 10), of_rows(50, *[41] * 10), 50, "better", id="one-row-ten-times"),
    ],
)  # fmt: skip
def test_planted_cases(tmp_path: Path, first: list[float], second: list[float], rows: int | None, verdict: str) -> None:
    assert two(tmp_path, first, second, rows=rows).verdict == verdict


def test_runs_that_say_too_little_say_how_many_would_do(tmp_path: Path) -> None:
    few = compared(tmp_path / "few", {0.1: {0: 0.5, 1: 0.6}, 0.2: {0: 0.9, 1: 0.9}, 0.3: {0: 0.5, 1: 0.6}})
    assert [row[-2:] for row in tables(few)[1].rows] == [["too few seeds", "≥ 3"]] * 2
    more = compared(tmp_path / "more", {0.1: dict(enumerate([0.5, 0.6, 0.7])), 0.2: dict(enumerate([0.6, 0.65, 0.9]))})
    (test,) = more.plain()["seed_tests"]
    assert (test["verdict"], test["needed"]) == ("may be chance", 6)
    assert tables(more)[1].rows[0][-1] == "6"
    assert "n needed: with so many in all" in " ".join(tables(more)[1].notes)
    level = two(tmp_path / "level", [0.5, 0.6, 0.7], [0.6, 0.5, 0.7])
    assert (level.verdict, level.needed) == ("may be chance", None)
    sure = compared(
        tmp_path / "sure", {0.1: dict(enumerate([0.5, 0.51, 0.52])), 0.2: dict(enumerate([0.8, 0.82, 0.83]))}
    )
    assert tables(sure)[1].rows[0][-2:] == ["better", ""]


def test_ranks_and_signs_say_nothing_below_six_pairs_that_differ(tmp_path: Path) -> None:
    few = two(tmp_path / "few", [0.5] * 5, [0.61, 0.62, 0.63, 0.64, 0.65]).test
    tied = two(tmp_path / "tied", [0.5] * 8, [*[0.6] * 5, 0.5, 0.5, 0.5 + 1e-8]).test
    six = two(tmp_path / "six", [0.5] * 6, [0.61, 0.62, 0.63, 0.64, 0.65, 0.66]).test
    assert few is not None
    assert tied is not None
    assert six is not None
    assert (few.wilcoxon, few.sign, tied.wilcoxon, tied.sign) == (None, None, None, None)
    assert (six.wilcoxon, six.sign) == (pytest.approx(2 / 2**6), pytest.approx(2 / 2**6))


def test_unequal_seeds_are_paired_where_three_are_in_both(tmp_path: Path) -> None:
    first, second = {0: 0.5, 1: 0.51, 2: 0.52, 3: 0.9}, {0: 0.7, 1: 0.72, 2: 0.73, 7: 0.1}
    made = compared(tmp_path, {0.1: first, 0.2: second})
    (entry,) = made.seed_tests
    assert entry.test is not None
    assert (entry.test.paired, entry.test.n, entry.verdict) == (True, 3, "better")
    assert entry.test.mean == pytest.approx(0.62 / 3)
    delta = made.row("lr=0.2").cells["val/accuracy"].delta
    assert delta == pytest.approx(-0.045)
    (note,) = [note for note in tables(made)[1].notes if "other seeds" in note]
    assert "Δ in the first table is of all runs, here of the seeds of both (paired)" in note


def test_other_seeds_are_compared_unpaired(tmp_path: Path) -> None:
    far = compared(tmp_path / "far", {0.1: {0: 0.5, 1: 0.51, 2: 0.52}, 0.2: {5: 0.7, 6: 0.72, 7: 0.73, 8: 0.71}})
    (entry,) = far.seed_tests
    assert entry.test is not None
    assert (entry.test.paired, entry.test.n, entry.verdict) == (False, 3, "better")
    assert tables(far)[1].rows[0][2:4] == ["unpaired", "3"]
    near = compared(tmp_path / "near", {0.1: {0: 0.5, 1: 0.6, 2: 0.7}, 0.2: {5: 0.6, 6: 0.7, 7: 0.8}})
    assert near.seed_tests[0].verdict == "may be chance"
    few = compared(tmp_path / "few", {0.1: {0: 0.5, 1: 0.6}, 0.2: {5: 0.9, 6: 0.9}})
    assert (few.seed_tests[0].verdict, few.seed_tests[0].p_holm) == ("too few seeds", None)


def test_folds_are_repeats_of_one_configuration(tmp_path: Path) -> None:
    records = [
        read_record(
            a_run(
                tmp_path / f"{lr}-{fold}-{seed}",
                lr=lr,
                seed=seed,
                val=0.5 + lr + fold / 50 + seed / 100 + lr * fold / 40,
                config=FOLDS.replace("FOLD", str(fold)),
            )
        )
        for lr in (0.1, 0.2)
        for fold in range(5)
        for seed in range(2)
    ]
    made = build_comparison(records, baseline="lr=0.1", metrics=["val/accuracy"])
    assert (made.keys, [len(row.group.runs) for row in made.rows], made.notes) == (["optim.lr"], [10, 10], [])
    test = made.seed_tests[0].test
    assert test is not None
    assert (test.paired, test.n, made.seed_tests[0].verdict) == (True, 10, "better")


def test_folds_share_training_rows_so_their_mean_is_less_certain(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).normal(0.03, 0.03, size=5)
    halves = []
    for by in ("fold", "random"):
        records = []
        for lr in (0.1, 0.2):
            for number in range(5):
                config = FOLDS.replace("FOLD", str(number)) if by == "fold" else CONFIG
                val = 0.8 + (drawn[number] if lr == 0.2 else 0)
                folder = tmp_path / by / f"{lr}-{number}"
                records.append(
                    read_record(a_run(folder, lr=lr, seed=0 if by == "fold" else number, val=val, config=config))
                )
        test = build_comparison(records, metrics=["val/accuracy"]).seed_tests[0].test
        assert test is not None
        assert test.low is not None
        assert test.high is not None
        halves.append(test.high - test.low)
    assert halves[0] > halves[1]


def test_a_fold_that_no_split_uses_is_no_repeat(tmp_path: Path) -> None:
    for fold in range(2):
        a_run(tmp_path / str(fold), config=FOLDS.replace("by: fold", "by: random").replace("FOLD", str(fold)))
    made = build_comparison([read_record(folder) for folder in sorted(tmp_path.iterdir())])
    assert made.notes == ["1 run left out: the same configuration and seed as another"]


def test_a_damaged_file_of_rows_is_none(tmp_path: Path) -> None:
    compared(tmp_path, {0.1: {0: 0.5, 1: 0.5, 2: 0.5}, 0.2: {0: 0.6, 1: 0.6, 2: 0.6}}, rows=50)
    for content in (b"", (tmp_path / "0.1-0" / "rows.npz").read_bytes()[:200]):
        for folder in tmp_path.iterdir():
            (folder / "rows.npz").write_bytes(content)
        made = build_comparison(
            [read_record(folder) for folder in sorted(tmp_path.iterdir())], metrics=["val/accuracy"]
        )
        assert made.seed_tests[0].verdict == "may be chance"


def test_groups_that_differ_by_rounding_are_both_best(tmp_path: Path) -> None:
    made = compared(tmp_path, {0.1: {0: 0.9, 1: 0.8}, 0.2: {0: 0.9 + 6e-8, 1: 0.8}})
    assert [row.cells["val/accuracy"].best for row in made.rows] == [True, True]
    assert "* best mean, which may be chance, ± standard deviation over n seeds" in tables(made)[0].notes


def test_many_groups_are_judged_after_holm_and_the_page_colours_what_is_told(tmp_path: Path) -> None:
    values = {0.1: dict(enumerate([0.80, 0.81, 0.82, 0.80, 0.83]))}
    values |= {lr: {seed: v + d for (seed, v), d in zip(values[0.1].items(), (0.0, 0.03, 0.01, 0.03, 0.04))}
               for lr in (0.2, 0.3, 0.4)}  # fmt: skip
    made = compared(tmp_path, values)
    assert {entry.verdict for entry in made.seed_tests} == {"may be chance"}
    assert all(entry.test is not None and entry.test.t is not None and entry.test.t < 0.05 for entry in made.seed_tests)
    page = html_page(made, "x")
    assert "kind(test && test.verdict)" in page
    assert "value > 0) === (mode" not in page


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
