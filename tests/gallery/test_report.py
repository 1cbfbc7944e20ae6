"""Pages about real runs: what is measured, what is said against it, and that nothing in them acts."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from lightkit.gallery.report import SIMPLE, beside_simple
from lightkit.runner import Runner
from lightkit.runs.reading import read_result, read_run
from tests.compare.made import a_sweep
from tests.conftest import Cli
from tests.runner.finished_runs import trained

Page = Callable[..., tuple[str, str]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples of rows, and few trees."""
    monkeypatch.setattr("lightkit.runner.intervals._DRAWS", 40)
    trees = tuple(clone(model).set_params(max_iter=10) for model in SIMPLE["gradient boosting"])
    monkeypatch.setitem(SIMPLE, "gradient boosting", trees)


@pytest.fixture
def page(cli: Cli) -> Page:
    """`page("a")` writes the page of a run, and returns it with the text in its box."""

    def make(*words: str) -> tuple[str, str]:
        done = cli("report", *words, "--json")
        assert done.code == 0, done.err
        text = Path(json.loads(done.out)["file"]).read_text()
        box = re.sub(r"\s+", " ", html.unescape(re.sub("<[^>]+>", "", text[text.index('class="verdict') :]))).strip()
        return text, box[: box.index("What was asked")]

    return make


def test_a_run_stands_beside_models_of_scikit_learn(project: Path) -> None:
    folder = trained(project / "outputs" / "runs" / "a", "data.normalize=none")
    found = beside_simple(folder, seconds=60)
    with Runner(read_run(folder).cfg, folder).trained() as learner:
        source, rows = learner.data.source, learner.data.rows
        x, y = source.x.double().numpy(), source.y.numpy()
    scale, test = StandardScaler().fit(x[rows["train"]]), rows["test"].numpy()
    for name, model in {
        "constant": DummyClassifier(strategy="prior"),
        "linear": LogisticRegression(max_iter=200),
    }.items():
        fitted = model.fit(scale.transform(x[rows["train"]]), y[rows["train"]])
        right = float((fitted.predict(scale.transform(x[test])) == y[test]).mean())
        assert found["values"][f"test/accuracy|{name}"] == pytest.approx(right, abs=1e-6)
    for name, value in read_result(folder)["test"].items():
        assert found["values"][f"{name}|"] == pytest.approx(value, abs=1e-5)
        low, high = found["intervals"][f"{name}|"]
        assert low <= value <= high
    own, other = (found["values"][f"test/accuracy|{name}"] for name in ("", "linear"))
    assert found["values"]["test/accuracy|linear|less"] == pytest.approx(own - other)


def test_a_cross_validation_has_the_intervals_that_it_noted(project: Path, page: Page) -> None:
    folder = trained(project / "outputs" / "runs" / "folds", "cv.folds=2")
    found, noted = beside_simple(folder, seconds=60), read_result(folder)["folds"]
    assert (found["rows"], found["simple"]) == (178, ["constant", "linear", "gradient boosting"])
    for name, ends in noted["intervals"].items():
        assert found["intervals"][f"{name}|"] == pytest.approx(ends, abs=1e-5)
    text, box = page("folds", "--seconds", "0")
    assert "mean of 2 folds" in box
    assert "(--seconds 0)" in box
    assert "test 89 (of the first fold)" in html.unescape(text)
    assert "few test rows" not in box  # 89 are those of one fold: all rows were tested


@pytest.mark.parametrize(
    ("overrides", "seconds", "said"),
    [
        (["data=diabetes", "model.hidden=[8]"], 2, "The best simple model, linear, has"),
        (["ensemble=voting", "ensemble.size=2"], 2, "There are few test rows (36)"),
        pytest.param(["data=digits_multilabel"], 2, "boosting, is better", marks=pytest.mark.thorough),
        (["data.split.test=0"], 0, "These rows have chosen the epoch (val/accuracy)"),
    ],
)
def test_what_speaks_against_a_result(project: Path, page: Page, overrides: list[str], seconds: int, said: str) -> None:
    trained(project / "outputs" / "runs" / "a", *overrides)
    text, box = page("a", "--seconds", str(seconds))
    assert "What speaks against believing it:" in box
    assert said in box
    assert not re.findall(r"<script|<link|(?:src|href)=.(?!data:)", text)


def test_nothing_that_a_user_wrote_acts(project: Path, page: Page) -> None:
    folder, evil = trained(project / "outputs" / "runs" / "a"), "<script>alert(1)</script>\"'&"
    facts = json.loads((folder / "environment.json").read_text())
    (folder / "overrides.yaml").write_text(f"- {json.dumps(f'name={evil}')}\n")
    changed = {**facts, "classes": [evil] * 3, "host": evil, "command": [evil], "git": {"commit": evil, "dirty": True}}
    (folder / "environment.json").write_text(json.dumps(changed))
    finding = {"check": evil, "status": "error", "measured": evil, "why": evil, "fix": evil}
    (folder / "leaks.json").write_text(json.dumps({"findings": [finding]}))
    text, box = page("a", "--seconds", "0")
    assert "<script" not in text
    assert f"The doctor, {evil}" in box


def test_a_run_that_failed_and_one_of_which_little_is_left(project: Path, cli: Cli, page: Page) -> None:
    cli("train", "data=wine", "optim.lr=1e9", "model.hidden=[4]", "name=broken", "logger.console.style=quiet")
    _, box = page("last")
    assert "The run is failed: trainer.nonfinite" in box
    folder = trained(project / "outputs" / "runs" / "a")
    for name in ("environment.json", "metrics.jsonl", "rows.npz", "overrides.yaml", "result.json", "run.log"):
        (folder / name).unlink()
    assert "The run is unfinished" in page("a")[1]


def test_data_that_are_gone_are_told_on_the_page(project: Path, page: Page) -> None:
    table = project / "t.csv"
    table.write_text("a,b,y\n" + "".join(f"{i % 7},{i % 5},{'no' if i % 3 else 'yes'}\n" for i in range(60)))
    trained(project / "outputs" / "runs" / "a", "data=table", f"data.dataset.path={table}", "data.dataset.target=y")
    table.unlink()
    _, box = page("a")
    assert "No simple model stands beside it: " in box
    assert "t.csv" in box


def test_a_sweep_has_the_table_of_its_groups_and_who_failed(project: Path, page: Page) -> None:
    folder = a_sweep(project, {0.1: [0.5, 0.75, 0.7], 0.01: [0.25, 0.5, 0.6]}, curve=[0.1, 0.5])
    next(folder.glob("*lr=0.01*/result.json")).unlink()
    text, box = page(str(folder))
    assert (folder / "report.html").read_text() == text
    assert "the best group, lr=0.1" in box
    assert "It is the best of 2 by val/accuracy" in box
    assert "1 of 6 runs did not finish." in box
    assert "by seed, against lr=0.1" in text


def test_mistakes_are_told(project: Path, cli: Cli) -> None:
    done = cli("report", "nothing")
    assert (done.code, "no run here" in done.err) == (2, True)
    trained(project / "outputs" / "runs" / "a")
    done = cli("report", "a", "--seconds", "0", "--output", str(project / "no" / "such.html"))
    assert (done.code, "cannot write the file" in done.err) == (2, True)
    assert cli("report", "a", "model.hiden=[4]").code == 2
