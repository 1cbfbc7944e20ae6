from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy import stats

from lightkit.common.errors import UserError
from lightkit.compare.comparison import RunComparison, build_comparison
from lightkit.compare.grouping import columns, differing_keys, group, label, short_names, shown
from lightkit.runs.index import read_record
from lightkit.runs.record import RunRecord
from tests.compare.made import CONFIG, SWEEP, a_run, a_sweep

VALUES = {0.1: [0.90, 0.92, 0.91, 0.95], 0.01: [0.80, 0.85, 0.79, 0.90], 0.001: [0.89, 0.93, 0.90, 0.94]}


def compared(root: Path, **options: object) -> RunComparison:
    return build_comparison([read_record(folder) for folder in sorted((root / SWEEP).iterdir())], **options)


def test_seeds_become_mean_and_deviation_and_the_best_is_marked(tmp_path: Path) -> None:
    a_sweep(tmp_path, VALUES)
    made = compared(tmp_path)
    assert (made.keys, made.metrics) == (["optim.lr"], {"val/accuracy": "max", "test/accuracy": "max"})
    assert [row.label for row in made.rows] == ["lr=0.1", "lr=0.001", "lr=0.01"]
    cell = made.rows[0].cells["val/accuracy"]
    assert (cell.mean, cell.sd, cell.n, cell.best) == (pytest.approx(0.92), pytest.approx(0.0216025, rel=1e-5), 4, True)
    assert [row.cells["test/accuracy"].best for row in made.rows] == [True, False, False]
    assert made.seed_tests == []


def test_a_baseline_gives_differences_and_tests_as_scipy_has_them(tmp_path: Path) -> None:
    a_sweep(tmp_path, VALUES)
    made = compared(tmp_path, baseline="optim.lr=0.01,seed=2", metrics=["val/accuracy"])
    assert made.baseline == "lr=0.01"
    assert [row.cells["val/accuracy"].delta for row in made.rows] == [pytest.approx(0.085), pytest.approx(0.08), None]
    plain = {
        test.label: stats.ttest_rel(VALUES[float(test.label[3:])], VALUES[0.01]).pvalue for test in made.seed_tests
    }
    for entry in made.seed_tests:
        assert entry.test is not None
        assert entry.test.t == pytest.approx(plain[entry.label], rel=1e-8)
    smallest, largest = sorted(plain.values())
    assert sorted(entry.p_holm or 0 for entry in made.seed_tests) == pytest.approx(
        [2 * smallest, max(2 * smallest, largest)], rel=1e-8
    )
    assert [entry.verdict for entry in made.seed_tests] == ["better", "better"]


def test_of_two_groups_that_of_the_first_run_is_the_baseline(tmp_path: Path) -> None:
    a_sweep(tmp_path, {0.1: [0.9], 0.01: [0.1]})
    made = compared(tmp_path)
    assert made.baseline == "lr=0.01"
    assert {(entry.verdict, entry.p_holm) for entry in made.seed_tests} == {("too few seeds", None)}


def test_runs_that_go_on_are_told_and_no_test_counts_them(tmp_path: Path) -> None:
    a_sweep(tmp_path, {0.1: [0.5, 0.75], 0.01: [0.25, 0.5]})
    a_run(tmp_path / SWEEP / "late", lr=0.01, seed=2, val=None, curve=[0.3, 0.9, 0.2])
    made = compared(tmp_path, baseline="lr=0.1")
    row = made.row("lr=0.01")
    assert (row.cells["val/accuracy"].n, row.cells["val/accuracy"].mean) == (3, pytest.approx(0.55))
    assert made.seed_tests[0].test is not None
    assert made.seed_tests[0].test.n == 2
    assert made.notes == ["of the runs 1 unfinished: their values are the best so far, and no test counts them"]


def test_a_search_within_folds_is_judged_by_the_rows_that_took_no_part_in_it(tmp_path: Path) -> None:
    """In fold 0 the rate 0.1 is chosen, in fold 1 the other one: its test value there counts, not that of the best."""
    reached = {0.1: [(0.9, 0.70), (0.6, 0.95)], 0.01: [(0.8, 0.90), (0.8, 0.60)]}
    for lr, folds in reached.items():
        for fold, (val, test) in enumerate(folds):
            split = f"data:\n  split:\n    by: fold\n    fold: {fold}\n    seed: 0\n"
            a_run(tmp_path / f"{lr}/members/fold-{fold}", lr=lr, val=val, test=test, config=CONFIG + split)
    records = [read_record(tmp_path / f"{lr}/members/fold-{fold}") for lr in reached for fold in (0, 1)]

    (line,) = build_comparison(records).notes
    assert "test/accuracy is 0.6500 ± 0.0707 over 2 outer folds" in line
    assert "val/accuracy 0.8500, was 0.2000 too optimistic" in line
    assert [row.cells["test/accuracy"].n for row in build_comparison(records).rows] == [2, 2]
    assert build_comparison(records[:3]).notes == []


def test_a_repeat_with_the_same_seed_counts_once(tmp_path: Path) -> None:
    a_sweep(tmp_path, {0.1: [0.5, 0.75]})
    a_run(tmp_path / SWEEP / "again", lr=0.1, seed=1, val=0.25, status="failed")
    made = compared(tmp_path)
    assert made.rows[0].cells["val/accuracy"].mean == pytest.approx(0.625)
    assert made.notes == ["1 run left out: the same configuration and seed as another"]


def test_smaller_losses_are_better_and_an_open_metric_has_no_best(tmp_path: Path) -> None:
    for lr, loss in ((0.1, 0.4), (0.01, 0.3)):
        more = {"best": {"val/loss": loss, "val/odd": loss}}
        a_run(tmp_path / SWEEP / f"{lr}", lr=lr, more=more)
    made = compared(tmp_path, metrics=["val/loss", "val/o*"])
    assert made.metrics == {"val/loss": "min", "val/odd": None}
    assert [(row.label, row.cells["val/loss"].best) for row in made.rows] == [("lr=0.01", True), ("lr=0.1", False)]
    assert not any(row.cells["val/odd"].best for row in made.rows)


def test_order_by_a_key_or_a_metric(tmp_path: Path) -> None:
    a_sweep(tmp_path, VALUES)
    for sort, labels in (("lr", ["lr=0.001", "lr=0.01", "lr=0.1"]), ("-optim.lr", ["lr=0.1", "lr=0.01", "lr=0.001"])):
        assert [row.label for row in compared(tmp_path, sort=sort).rows] == labels
    assert [row.label for row in compared(tmp_path, sort="-test/accuracy").rows] == ["lr=0.01", "lr=0.001", "lr=0.1"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"sort": "epochs"}, "--sort: no such column"),
        ({"metrics": ["val/accurracy"]}, r"(?s)--metric: no run has this metric.*nearest: val/accuracy"),
        ({"baseline": "lr=0.2"}, "--baseline: none of the runs that are compared"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, options: dict[str, object], what: str) -> None:
    a_sweep(tmp_path, VALUES)
    with pytest.raises(UserError, match=what):
        compared(tmp_path, **options)


def test_all_of_it_as_json(tmp_path: Path) -> None:
    a_sweep(tmp_path, {0.1: [0.5, 0.75], 0.01: [0.25, 0.5]})
    found = json.loads(json.dumps(compared(tmp_path, baseline="lr=0.1").plain(), allow_nan=False))
    first = found["groups"][0]
    assert (first["label"], first["values"], found["baseline"]) == ("lr=0.1", {"optim.lr": 0.1}, "lr=0.1")
    assert [run["values"]["val/accuracy"] for run in first["runs"]] == [0.5, 0.75]
    assert found["seed_tests"][0]["test"]["n"] == 2


def records(tmp_path: Path, *configs: str) -> list[RunRecord]:
    return [read_record(a_run(tmp_path / str(i), config=text, seed=i)) for i, text in enumerate(configs)]


def test_only_what_differs_is_a_key_and_the_seed_with_what_follows_it_is_none(tmp_path: Path) -> None:
    follows = CONFIG + "data:\n  split:\n    seed: {seed}\n"
    found = records(tmp_path, follows, follows.replace("{lr}", "0.3").replace("demo", "other"))
    assert differing_keys(found) == ["optim.lr"]


def test_where_runs_paused_makes_no_difference(tmp_path: Path) -> None:
    paused = [CONFIG + f"trainer:\n  epochs: 9\n  stop_at: {place}\n" for place in ("null", "1", "600 steps")]
    assert differing_keys(records(tmp_path, *paused)) == []


def test_a_key_that_some_lack_differs(tmp_path: Path) -> None:
    found = records(tmp_path, CONFIG, CONFIG + "extra:\n  note: 1\n")
    assert differing_keys(found) == ["extra.note"]
    assert [one.values for one in group(found, ["extra.note"])] == [{}, {"extra.note": 1}]


def test_arguments_that_go_with_a_class_say_no_more(tmp_path: Path) -> None:
    other = CONFIG.replace("MLP", "CNN").replace("hidden", "channels")
    found = records(tmp_path, CONFIG, other)
    differing = differing_keys(found)
    assert sorted(differing) == ["model._target_", "model.channels", "model.hidden"]
    assert columns(found, differing) == ["model._target_"]
    wider = records(tmp_path / "wider", CONFIG, other, CONFIG.replace("- 8", "- 16"))
    assert columns(wider, differing_keys(wider)) == ["model._target_", "model.hidden"]


def test_groups_are_ordered_by_seed_and_told_in_short(tmp_path: Path) -> None:
    found = [read_record(a_run(tmp_path / f"{lr}-{seed}", lr=lr, seed=seed)) for seed in (2, 0) for lr in (0.1, 0.2)]
    groups = group(found, ["optim.lr"])
    assert [(label(one, ["optim.lr"]), [run.seed for run in one.runs]) for one in groups] == [
        ("lr=0.1", [0, 2]),
        ("lr=0.2", [0, 2]),
    ]


def test_names_are_as_short_as_they_can_be() -> None:
    keys = ["optim.lr", "finetune.head.lr", "model._target_", "model.hidden"]
    assert list(short_names(keys).values()) == ["optim.lr", "finetune.head.lr", "model", "hidden"]
    assert shown("model._target_", "lightkit.models.MLP") == "MLP"
    assert shown("model.hidden", [8, 8]) == "[8, 8]"
