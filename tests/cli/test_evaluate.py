"""Finished runs: measured, asked, gone on with, shown and combined."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sklearn.datasets import load_wine

from tests.conftest import Cli
from tests.runner.finished_runs import trained as finished


@pytest.fixture
def trained(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with the configuration of a real run, and a Runner that computes nothing."""
    folder = project / "outputs" / "runs" / "2026-01-31" / "12-00-00-run"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(cli("train", "--cfg", "job", "--resolve").out)
    return folder


def test_metrics_as_table_and_file(cli: Cli, runner: Any, trained: Path) -> None:
    done = cli("eval", "last")
    assert done.code == 0, done.err
    rows = [line.split() for line in done.out.splitlines()[1:3]]
    assert rows == [["test/loss", "0.5000"], ["test/accuracy", "0.9877"]]
    content = json.loads((trained / "eval-test.json").read_text())
    metrics = {"test/loss": 0.5, "test/accuracy": 0.987654}
    assert content == {"split": "test", "checkpoint": "best", "overrides": [], "metrics": metrics}
    other = cli("eval", "run", "data.split.seed=1")  # by its name, and with what it has learnt from
    assert (other.code, "warning: data.split is not that of the run" in other.err) == (0, True)
    assert json.loads((trained / "eval-test.json").read_text())["overrides"] == ["data.split.seed=1"]
    done = cli("eval", "--split", "val", str(trained), "data.eval_batch_size=7", "--checkpoint=last")
    assert (done.code, done.err) == (0, "")
    assert (trained / "eval-val.json").exists()
    assert cli("eval", "last", "--members", "00,03").code == 0
    assert json.loads((trained / "eval-test.json").read_text())["members"] == ["00", "03"]
    assert cli("predict", "last", "--members=01").code == 0
    assert runner.asked == [
        ("evaluate", trained, ("test", "best")),
        ("evaluate", trained, ("test", "best")),
        ("evaluate", trained, ("val", "last")),
        ("evaluate", trained, ("test", "best", "00", "03")),
        ("predict", trained, ("test", "best", "01")),
    ]


def test_predictions_as_csv(cli: Cli, runner: Any, trained: Path, project: Path) -> None:
    assert cli("predict", "last", "--output", "out.csv").code == 0
    with (project / "out.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["index", "prediction", "target"], ["4", "class, 4", "4"], ["7", "class, 7", "7"]]
    assert cli("predict", "last").code == 0
    assert (trained / "predictions-test.csv").exists()
    assert cli("predict", "last", "--output", "-").out.splitlines()[1] == '4,"class, 4",4'
    nothing = cli("predict", "last", "--split", "train", "--output", "none.csv")
    assert (nothing.code, "nothing to predict" in nothing.err, list(project.glob("none.csv*"))) == (2, True, [])
    nowhere = cli("predict", "last", "--output", "missing/folder/out.csv")
    assert (nowhere.code, "cannot write the file" in nowhere.err) == (2, True)


def test_resume_goes_on_in_the_same_folder_and_from_starts_a_new_run(cli: Cli, runner: Any, trained: Path) -> None:
    assert cli("train", "--from", "last", "seed=4").code == 0
    assert cli("resume", str(trained), "trainer.epochs=20").code == 0
    (_, begun, _), (_, resumed, how) = runner.asked
    assert (resumed, how) == (trained, (True, "trainer.epochs=20"))
    assert begun != trained


def test_resume_leaves_a_finished_run_alone(cli: Cli, runner: Any, trained: Path) -> None:
    (trained / "config.yaml").write_text(cli("train", "--cfg", "job", "--resolve", "trainer.epochs=7").out)
    (trained / "result.json").write_text('{"status": "finished"}')
    for overrides in ((), ("trainer.epochs=7",)):
        done = cli("resume", "last", *overrides)
        assert (done.code, "has finished already; make it longer with trainer.epochs=N" in done.out) == (0, True)
    assert runner.asked == []
    assert cli("resume", "last", "trainer.epochs=8").code == 0
    assert len(runner.asked) == 1


def test_data_as_page_and_picture(cli: Cli, project: Path) -> None:
    done = cli("show", "data", "data=wine", "--split", "val", "--count", "3")
    assert done.code == 0, done.err
    place = project / "outputs" / "show" / "wine_mlp"
    assert {path.name for path in place.iterdir()} == {"data-val.html", "data-val.png"}
    assert str(place / "data-val.html") in done.out
    assert "no runs" in cli("runs").out  # a page is no run


@pytest.mark.thorough(first=0)
def test_finished_runs_are_shown_and_become_one(cli: Cli, project: Path) -> None:
    sweep = project / "outputs" / "sweeps" / "2026-01-31" / "12-00-00-run"
    folder = finished(sweep / "seed=0", "seed=0")
    finished(sweep / "seed=1", "seed=1")
    done = cli("show", "worst", str(folder), "--count", "4", "--split", "val")
    assert done.code == 0, done.err
    assert done.out.splitlines()[1].split() == ["row", "loss", "target", "prediction"]
    assert (folder / "show" / "worst-val.html").is_file()
    rows = json.loads(cli("show", "results", str(folder), "--json", "--count", "2", "--output", "here").out)
    heads = ["confidence", "loss", "prediction", "right", "row", "target"]
    assert [sorted(row) for row in rows["samples"]] == [heads] * 2
    assert (project / "here" / "results-test.png").is_file()
    assert cli("show", "data", "--from", str(folder), "--count", "1").code == 0
    done = cli("ensemble", str(sweep), "--name", "both", "--weights", "validation", "data.eval_batch_size=7")
    assert done.code == 0, done.err
    assert "best member (0" in done.out
    assert "01-run-seed=1  0." in done.out
    assert cli("eval", "both").code == 0
    (sweep / "seed=1" / "result.json").write_text('{"status": "interrupted"}')
    assert f"note: 1 of the 2 runs in {sweep}" in cli("ensemble", str(sweep)).err


def test_each_run_that_is_missing_is_named(cli: Cli, trained: Path) -> None:
    one, both = cli("ensemble", "run", "nothing").err, cli("ensemble", "nothing", "nowhere").err
    assert ("'nothing'" in one, "'run'" in one, "1 problem found" in one, "choices:" in one) == (
        True,
        False,
        True,
        True,
    )
    assert ("'nothing'" in both, "'nowhere'" in both, "2 problems found" in both) == (True, True, True)


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and a table of new rows with an id and a column of remarks."""
    folder = tmp_path_factory.mktemp("wine")
    finished(folder / "run")
    frame = load_wine(as_frame=True).data.iloc[::9]
    frame.assign(id=[f"w{i}" for i in range(len(frame))], prediction="?").to_csv(folder / "new.csv", index=False)
    return folder


def cells_of(text: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(text))]


def test_new_rows_are_predicted(cli: Cli, wine: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, new = str(wine / "run"), wine / "new.csv"
    done = cli("predict", run, "--input", str(new), "--proba")
    assert (done.code, done.err) == (0, ""), done.err
    found = cells_of((wine / "run" / "predictions-of-new.csv").read_text())
    assert [*found[0]] == ["row", "id", "input:prediction", "prediction", "p(class_0)", "p(class_1)", "p(class_2)"]
    assert [row["id"] for row in found] == [f"w{i}" for i in range(20)]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(new.read_bytes())))
    piped = cells_of(cli("predict", run, "--input", "-").out)
    assert piped == [{name: cell for name, cell in row.items() if not name.startswith("p(")} for row in found]
    pd.read_csv(new).to_parquet("new.parquet")
    assert (
        "20 rows written to out.parquet" in cli("predict", run, "--input", "new.parquet", "--output", "out.parquet").out
    )
    assert pd.read_parquet("out.parquet")["prediction"].tolist() == [row["prediction"] for row in found]
    assert cli("predict", run, "--input", str(new), "--out", "out.jsonl").code == 0
    lines = [json.loads(line) for line in (project / "out.jsonl").read_text().splitlines()]
    assert [{name: str(cell) for name, cell in row.items()} for row in lines] == piped


def test_new_rows_that_cannot_be_read_are_named(cli: Cli, wine: Path, project: Path) -> None:
    run, lines = str(wine / "run"), (wine / "new.csv").read_text().splitlines()
    bad = [lines[0], "x" + lines[1], "1,2", *lines[3:]]
    (project / "bad.csv").write_text("\n".join(bad))
    done = cli("predict", run, "--input", "bad.csv", "--output", "out.csv")
    assert (done.code, "bad.csv, line 3: 2 cells, not 15" in done.err, [*project.glob("*out.csv*")]) == (2, True, [])
    done = cli("predict", run, "--input", "bad.csv", "--output", "-", "--skip-bad")
    assert (done.code, [row["row"] for row in cells_of(done.out)][:2]) == (0, ["2", "3"])
    assert "left out: bad.csv, line 2: column 'alcohol' holds 'x" in done.err
    (project / "none.csv").write_text("\n".join(bad[:2]))
    done = cli("predict", run, "--input", "none.csv", "--skip-bad")
    assert (done.code, "nothing to predict in none.csv" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--input", "none.csv"], "--input: there is no such file"),
        (["--input", "."], "there are no tables"),
        (["--input", "new.csv", "--split", "val"], "--split: new rows are in no split"),
        (["--proba"], "--proba: this is for new rows"),
        (["--input", "new.csv", "--output", "./new.csv"], "--output: this is the file of the new rows"),
        (["--input", "new.csv", "--outputs", "x.csv"], "nearest: --output"),
        (["--input", "new.csv", "--out", "x.json"], "choices:  .csv, .parquet, .jsonl"),
        (["--output", "x.xlsx"], "--output: predictions are not written in this form"),
    ],
)
def test_what_cannot_be_predicted(cli: Cli, wine: Path, args: list[str], message: str) -> None:
    done = cli("predict", str(wine / "run"), *args)
    assert (done.code, message in done.err) == (2, True), done.err
