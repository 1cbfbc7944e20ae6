"""Metrics of groups of rows, and of the mean over augmented views, against predictions and by hand."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.cli import main
from lightkit.common.errors import UserError
from lightkit.data import DataInfo, TensorData, build_data
from lightkit.runner.evaluation import check_mean
from lightkit.runner.subgroups import group_labels
from tests.conftest import Cli

RUN, NOISE = "outputs/run", "data.augment=[{_target_: lightkit.data.transforms.GaussianNoise, deviation: %s}]"
TABLE = ("data=csv", "data.dataset.path=t.csv", "data.dataset.target=y", "data.dataset.features=[x]", "optim.lr=0.05")
QUICK = ("model.hidden=[4]", "trainer.epochs=2", "logger.console.style=quiet", "metrics.figures=[]", "~metrics.test.f1")
QUICK += ("~metrics.test.precision", "~metrics.test.recall", "logger.tensorboard.enabled=false")
PLAIN = ("model.hidden=[4]", "trainer.epochs=1", "metrics.figures=[]", "logger.tensorboard.enabled=false")
PLAIN += ("logger.console.style=quiet",)


def rows() -> list[dict[str, str]]:
    with Path("t.csv").open() as file:
        return [*csv.DictReader(file)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place, draw = tmp_path_factory.mktemp("groups"), np.random.default_rng(0)
    (place / "conf").mkdir()
    lines = ["x,site,age,y"]
    for row in range(240):
        x, site = draw.normal(), ["a", "b", "", "b", "a", "b"][row % 6] if row % 40 else "rare"
        lines.append(f"{x:.4f},{site},{row % 83},{'well' if x + (site == 'b') * draw.normal() > 0 else 'sick'}")
    (place / "t.csv").write_text("\n".join(lines))
    with chdir(place):
        assert main(["train", *TABLE, *QUICK, f"hydra.run.dir={RUN}"]) == 0
        yield place


@pytest.fixture(autouse=True)
def quick_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.runner.intervals._DRAWS", 20)


def measured(cli: Cli, *words: str) -> dict[str, Any]:
    done = cli("eval", *words, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)[0]
    return found


def by_hand(cli: Cli, run: str, column: str) -> dict[str, tuple[int, float]]:
    """Number of rows and share of right predictions by the cells of a column."""
    assert cli("predict", run, "--output", "p.csv").code == 0
    hits, table = dict[str, list[bool]](), rows()
    with Path("p.csv").open() as file:
        for row in csv.DictReader(file):
            cell = table[int(row["row"])][column] or "(missing)"
            hits.setdefault(cell, []).append(row["target"] == row["prediction"])
    return {cell: (len(own), sum(own) / len(own)) for cell, own in hits.items()}


def test_groups_are_what_their_rows_say(trained: Path, cli: Cli) -> None:
    with chdir(trained):
        found = measured(cli, RUN, "--by", "site", "--by", "target")
        *groups, whole = found["by"]["site"]
        expected = by_hand(cli, RUN, "site")
        assert {g["group"]: (g["n"], pytest.approx(g["metrics"]["test/accuracy"])) for g in groups} == expected
        assert (whole["group"], whole["n"]) == ("(all rows)", 48)
        assert whole["metrics"] == pytest.approx(found["metrics"], abs=1e-6)
        large = [group["metrics"]["test/accuracy"] for group in groups if group["n"] >= 10]
        assert large == sorted(large), "the worst first"
        assert [g["group"] for g in groups if g["n"] < 10] == [g["group"] for g in groups[len(large) :]] != []
        low, high = groups[0]["intervals"]["test/accuracy"]
        assert low <= groups[0]["metrics"]["test/accuracy"] <= high
        assert all(not group["intervals"] for group in groups if group["n"] < 10)
        assert {group["metrics"]["test/auroc"] for group in found["by"]["target"][:-1]} == {None}
        shown = cli("eval", RUN, "--by", "target")
        assert ("undefined" in shown.out, "worst first" in shown.out, "UserWarning" in shown.err) == (True, True, False)


def test_groups_are_those_of_the_rows_as_they_were_when_the_table_has_changed(trained: Path, cli: Cli) -> None:
    with chdir(trained):
        before, text = measured(cli, RUN, "--by", "site")["by"], Path("t.csv").read_text()
        head, *lines = text.splitlines()
        Path("t.csv").write_text("\n".join([head, "0.5,new,1,well", *lines[::-1]]))
        assert measured(cli, RUN, "--by", "site")["by"] == before
        Path("t.csv").write_text(text)


def test_groups_of_folds_members_and_further_sets(trained: Path, cli: Cli) -> None:
    with chdir(trained):
        assert (
            cli(
                "train", *TABLE, *QUICK, "trainer.epochs=1", "cv=2", "cv.engine=sequential", "hydra.run.dir=outputs/cv"
            ).code
            == 0
        )
        groups = measured(cli, "outputs/cv", "--by", "site")["by"]["site"]
        found = {g["group"]: (g["n"], pytest.approx(g["metrics"]["test/accuracy"])) for g in groups[:-1]}
        assert (found, groups[-1]["n"]) == (by_hand(cli, "outputs/cv", "site"), 240)
        assert "name the run of a fold" in cli("eval", "outputs/cv", "--tta", "3").err
        more = (
            "trainer.epochs=1",
            "data.more={again: {split: {}}}",
            "ensemble=voting",
            "ensemble.size=2",
            "ensemble.engine=sequential",
        )
        assert cli("train", *TABLE, *QUICK, *more, "hydra.run.dir=outputs/both").code == 0
        groups = measured(cli, "outputs/both", "--by", "site")["by"]["site"]
        found = {g["group"]: (g["n"], pytest.approx(g["metrics"]["test/accuracy"])) for g in groups[:-1]}
        assert found == by_hand(cli, "outputs/both", "site")
        own = measured(cli, "outputs/both", "--split", "again", "--by", "x")["by"]["x"]
        assert (own[-1]["n"], "again/accuracy" in own[0]["metrics"]) == (48, True)


def test_features_keep_their_unit_and_rare_values_are_one_group() -> None:
    x, names = torch.tensor([[10.0], [20.0], [10.0], [30.0]]).repeat(30, 1), [f"n{row % 50}" for row in range(120)]
    info = DataInfo("regression", (1,), 1)
    source = TensorData(x, torch.arange(120.0), info, feature_names=["size"], groups=[None, *names[1:]])
    data = build_data(dataset=source, split={"groups": None}, normalize="standard")

    def labels(column: str) -> list[str]:
        return group_labels(column, data, data.source, torch.arange(120), data.source.y)

    assert labels("size")[:4] == ["10", "20", "10", "30"]
    assert (labels("groups")[0], len({*labels("groups")}), labels("groups")[-1]) == ("(missing)", 22, "n19")
    assert labels("target")[0] == "0 to 23.8"
    with pytest.raises(UserError, match="tells no such thing") as told:
        labels("sizes")
    assert told.value.choices == ("target", "size")


DRAWING = ("data=custom", "data.dataset._target_=tests.resume.sets.Drawing", "trust=[tests]")


def test_views_do_not_depend_on_workers_and_batches(cli: Callable[..., Any], project: Path) -> None:
    augment = f"data.augment=[{NOISE[14:-1] % 0.5}, {{_target_: torchvision.transforms.RandomErasing}}]"
    augment = augment.replace("torchvision.transforms.RandomErasing", "torch.nn.Dropout")
    assert cli("train", *DRAWING, *QUICK, augment, f"hydra.run.dir={RUN}").code == 0
    found = measured(cli, RUN, "--tta", "3", "--split", "train")
    assert (found["tta"]["views"], found["tta"]["metrics"] != found["metrics"]) == (3, True)
    again = measured(cli, RUN, "--tta", "3", "--split", "train", "data.num_workers=2", "data.eval_batch_size=7")
    assert again["tta"]["metrics"] == pytest.approx(found["tta"]["metrics"], abs=1e-6)
    assert measured(cli, RUN, "--tta", "2", "--split", "train")["tta"]["metrics"] != found["tta"]["metrics"]
    shown = cli("eval", RUN, "--tta", "2", "--by", "targets")
    assert ("2 views" in shown.out, "(all rows)" in shown.out) == (True, True)


def test_views_are_averaged(trained: Path, cli: Cli) -> None:
    with chdir(trained):
        still = measured(cli, RUN, "--tta", "2", NOISE % 0)
        assert still["tta"]["metrics"] == pytest.approx(still["metrics"], abs=1e-6)
        for views, name in ((1, "one.jsonl"), (2, "two.jsonl")):
            assert cli("predict", RUN, "--tta", str(views), NOISE % 0.5, "--output", name).code == 0
        one, two = ([json.loads(line) for line in Path(f"{n}.jsonl").read_text().splitlines()] for n in ("one", "two"))
        assert [row["row"] for row in one] == [row["row"] for row in two]
        assert [row["p(well)"] for row in one] != [row["p(well)"] for row in two]
        hits = [row["target"] == row["prediction"] for row in two]
        reached = measured(cli, RUN, "--tta", "2", NOISE % 0.5)["tta"]["metrics"]["test/accuracy"]
        assert np.mean(hits) == pytest.approx(reached)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("eval", RUN, "--by", "sites"), "choices:  target, age, site, x, y"),
        (("eval", RUN, "--tta", "3"), "the run augments nothing"),
        (("eval", RUN, "--tta", "many"), "not a whole number"),
        (("predict", RUN, "--tta", "3", "--input", "t.csv"), "never augmented"),
    ],
)
def test_mistakes_are_told(trained: Path, cli: Cli, words: tuple[str, ...], message: str) -> None:
    with chdir(trained):
        done = cli(*words)
    assert (done.code, message in done.err, "Traceback" in done.err) == (2, True, False), done.err


def test_what_has_no_mean_is_refused() -> None:
    with pytest.raises(UserError, match="no probabilities of classes or labels"):
        check_mean(DataInfo("segmentation", (1, 8, 8), 2, ("a", "b")), "--tta")


def test_losses_weigh_rows_as_the_run_does(cli: Cli, project: Path) -> None:
    draw = np.random.default_rng(0)
    table = np.column_stack([draw.normal(size=160), draw.choice([1.0, 9.0], 160), draw.normal(size=160) * 3])
    (project / "w.csv").write_text("x,w,y\n" + "\n".join(",".join(f"{cell:.4f}" for cell in row) for row in table))
    named = ("data.dataset.path=w.csv", "data.dataset.target=y", "data.dataset.weight_column=w")
    run = ("train", "data=table", *named, *PLAIN)
    assert cli(*run, "hydra.run.dir=one").code == 0
    found = json.loads(cli("eval", "one", "--by", "w", "--json").out)[0]
    groups = {row["group"]: row["metrics"] for row in found["by"]["w"]}
    assert groups["(all rows)"]["test/loss"] == pytest.approx(found["metrics"]["test/loss"], rel=1e-5)
    (heavy,) = (metrics for group, metrics in groups.items() if group.startswith("9"))
    assert heavy["test/loss"] == pytest.approx(heavy["test/mse"], rel=1e-5)
    assert groups["(all rows)"]["test/loss"] != pytest.approx(groups["(all rows)"]["test/mse"], rel=1e-3)
    test = list(csv.DictReader(cli("predict", "one", "--output", "-").out.splitlines()))
    errors = np.array([(float(row["prediction"]) - float(row["target"])) ** 2 for row in test])
    weights = table[[int(row["row"]) for row in test], 1]
    assert found["metrics"]["test/loss"] == pytest.approx(np.average(errors, weights=weights), rel=1e-3)
    ends = next(row["intervals"] for row in found["by"]["w"] if row["group"] == "(all rows)")["test/loss"]
    assert ends[0] < found["metrics"]["test/loss"] < ends[1]
    assert cli(*run, "ensemble=voting", "ensemble.size=2", "hydra.run.dir=two").code == 0
    told = json.loads((project / "two/result.json").read_text())["test"]["test/loss"]
    assert told == pytest.approx(json.loads(cli("eval", "two", "--json").out)[0]["metrics"]["test/loss"], rel=1e-5)


def test_a_group_of_one_row_leaves_what_needs_more_undefined(cli: Cli, project: Path) -> None:
    lines = [f"{row % 7},{'odd' if row == 20 else 'even'},{(row % 7) * 2.0 + row % 3}" for row in range(100)]
    (project / "one.csv").write_text("x,site,y\n" + "\n".join(lines))
    named = (
        "data.dataset.path=one.csv",
        "data.dataset.target=y",
        "data.dataset.features=[x]",
        "data.dataset.task=regression",
    )
    run = ("train", "data=table", *named, "data.split={by: ordered, val: 0.05, test: 0.9}", *PLAIN)
    assert cli(*run, "hydra.run.dir=one").code == 0
    found = json.loads(cli("eval", "one", "--by", "site", "--json").out)[0]["by"]["site"]
    single = next(row for row in found if row["group"] == "odd")
    assert (single["n"], single["metrics"]["test/r2"]) == (1, None)
    assert single["metrics"]["test/mse"] >= 0


def test_all_rows_have_the_values_of_an_evaluation_though_a_class_is_missing(cli: Cli, project: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [f"{draw.normal() + kind},{'abc'[kind]}" for kind in [0, 1, 2] * 10 + [0, 1] * 20]
    (project / "rare.csv").write_text("\n".join(["x,y", *rows]))
    table = (
        "data=table",
        "data.dataset.path=rare.csv",
        "data.dataset.target=y",
        "data.split={by: ordered, val: 0.2, test: 0.3}",
    )
    assert cli("train", *table, *QUICK, "hydra.run.dir=rare").code == 0
    found = json.loads(cli("eval", "rare", "--by", "target", "--json").out)[0]
    whole = found["by"]["target"][-1]["metrics"]
    assert whole["test/auroc"] == pytest.approx(found["metrics"]["test/auroc"], abs=1e-6)
