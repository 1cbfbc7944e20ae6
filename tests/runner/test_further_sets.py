"""Further sets (`data.more`): prepared as the training rows were, measured with each validation and at the end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import lightkit
from lightkit.assembly import build_engine, build_splits
from lightkit.config import compose, load_run
from lightkit.doctor import checks
from lightkit.runner import Runner
from lightkit.runs.reading import read_jsonl
from tests.conftest import Cli
from tests.resume.harness import Case, configured
from tests.runner.processes import configured as of_processes
from tests.runner.processes import go_on, train

TABLE = [
    *("data=csv", "data.dataset.path=a.csv", "data.dataset.target=y", "data.dataset.categorical=[colour]", "model=mlp"),
    *("data.normalize=standard", "data.dataset.missing=mean", "model.hidden=[8]", "trainer.epochs=2", "device=cpu"),
    "metrics.figures=[]",
]
MORE = "data.more={shifted: {dataset: {path: b.csv}}}"
WINE = [
    "data.more={same: {split: {}, batch_size: 7}, few: {split: {val: 0, test: 0.1}}}",
    "metrics.monitor=same/accuracy",
]


@pytest.fixture
def tables(project: Path) -> Path:
    draws = np.random.default_rng(0)

    def written(name: str, rows: int, shift: float, colours: str, classes: str) -> None:
        lines = ["x,colour,y"]
        for row in range(rows):
            place = row % len(classes)
            x = "" if row == 4 else f"{place + shift + draws.normal() / 4:.4f}"
            lines.append(f"{x},{colours[row % len(colours)]},{classes[place]}")
        (project / name).write_text("\n".join(lines) + "\n")

    written("a.csv", 90, 0.0, "rgb", "uvw")
    written("b.csv", 20, 0.5, "rx", "vw")
    written("c.csv", 20, 0.0, "rg", "uz")
    (project / "d.csv").write_text("x,y\n1,u\n2,v\n")
    return project


def test_an_ensemble_is_measured_on_further_sets(tables: Path, cli: Cli) -> None:
    done = cli("train", *TABLE, MORE, "ensemble=voting", "ensemble.size=2", "hydra.run.dir=run")
    assert re.search(r"shifted/accuracy( +\d\.\d+){3}", done.out), done.err
    found = json.loads((tables / "run/result.json").read_text())["metrics"]
    assert found["shifted/accuracy"] == lightkit.load("run").evaluate("shifted")["accuracy"]
    done = cli("train", *TABLE, MORE, "ensemble=stacking", "metrics.monitor=shifted/accuracy")
    assert "metrics.monitor: a meta-model learns from predictions" in done.err


def test_a_further_set_is_prepared_as_the_training_rows_were(tables: Path) -> None:
    cfg = compose([*TABLE, MORE]).cfg
    data = build_splits(cfg, build_engine(cfg))
    found, alone = data.more["shifted"], build_splits(compose(TABLE).cfg, build_engine(cfg))
    (x, y), *rest = found.epoch(0)
    assert (len(x), rest, sorted(set(y.tolist()))) == (20, [], [1, 2]), "numbers of the classes in the training table"
    assert torch.equal(alone.train.source.x, data.source.x), "no training row has another value for it"
    raw = np.genfromtxt("b.csv", delimiter=",", skip_header=1, usecols=0)
    filled = np.where(np.isnan(raw), 0.99571, raw)
    assert torch.allclose(
        x[:, 0].double(),
        torch.from_numpy((filled - data.normalizer.shift[0].item()) / data.normalizer.scale[0].item()),
        atol=1e-5,
    )
    reds = x[:, 1:].argmax(1)[::2]
    assert len(reds.unique()) == 1
    assert len(x[1::2, 1:].unique(dim=0)) == 1, "a colour that the training table lacks is none of its colours"


def test_images_and_texts_have_the_classes_and_words_of_training(project: Path) -> None:
    for place, words in {"a/bird": "up up", "a/cat": "so on", "a/dog": "in out", "b/dog": "out of it"}.items():
        Path(place).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (4, 4), (60 * number, 0, 0)).save(f"{place}/{number}.png")
            Path(f"{place}/{number}.txt").write_text(f"{words} {number}")
    images = ["data=image_folder", "data.dataset.root=a", "data.more={other: {dataset: {root: b}}}"]
    for options in (images, ["data=texts", "data.dataset.path=a", "data.more={other: {dataset: {path: b}}}"]):
        cfg = compose([*options, "device=cpu", "data.split.val=0", "data.split.test=0"]).cfg
        data = build_splits(cfg, build_engine(cfg))
        assert next(iter(data.more["other"].epoch(0)))[1].tolist() == [2] * 4
    assert data.info.vocabulary == data.more["other"].source.info.vocabulary


def test_it_is_in_every_table_and_curve_and_may_be_the_monitor(
    tables: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "CHECKS", checks.CHECKS[:1])  # what is shown of the sets stands above what is found
    done = cli("train", *TABLE, MORE, "metrics.monitor=shifted/accuracy", "hydra.run.dir=run")
    assert done.code == 0, done.err
    assert "train 63, val 9, test 18, shifted 20" in done.out
    assert "best shifted/accuracy" in done.out
    rows = read_jsonl(Path("run/metrics.jsonl"))
    told = [row for row in rows if "shifted/accuracy" in row]
    assert [row["step"] for row in told] == [1, 2, 2], "with each validation and in the test"
    assert all("val/accuracy" in row for row in told[:2])
    result = json.loads(Path("run/result.json").read_text())
    assert (
        result["objective"]["value"] == max(row["shifted/accuracy"] for row in told[:2]) == told[2]["shifted/accuracy"]
    )
    tags = EventAccumulator("run").Reload().Tags()["scalars"]
    assert {"shifted/accuracy", "main/best/shifted/accuracy"} <= {*tags}
    out = cli("eval", "run", "--split", "shifted,val", "--json").out
    measured = {one["split"]: one["metrics"] for one in json.loads(out)}
    assert measured["shifted"]["shifted/accuracy"] == told[2]["shifted/accuracy"]
    assert lightkit.load("run").evaluate("shifted")["accuracy"] == told[2]["shifted/accuracy"]
    other = cli("eval", "run", "--split", "new", "data.more={new: {dataset: {path: b.csv}}}")
    assert (other.code, "new/accuracy" in other.out) == (0, True), other.err
    assert "choices:  train, val, test, shifted" in cli("eval", "run", "--split", "shfted").err
    assert cli("predict", "run", "--split", "shifted", "--output", "-").out.count("\n") == 21
    assert cli("predict", "run", "--input", "b.csv", "--output", "-").out.count("\n") == 21
    assert "20 rows" in cli("show", "worst", "run", "--split", "shifted", "--count", "1").out.replace(
        "of 20", "20 rows"
    )
    shown = cli("show", "data", *TABLE, MORE, "--split", "shifted", "--count", "1")
    assert (shown.code, "20" in shown.out) == (0, True), shown.err
    assert "shifted/accuracy" in cli("compare", "run", "run", "--metric", "shifted/*").out
    assert "20 shifted" in cli("doctor", *TABLE, MORE).out
    assert cli("train", *TABLE, MORE, "trainer.epochs=1", "logger=quiet", "hydra.run.dir=other").code == 0
    rows_compared = cli("compare", "run", "other", "--rows", "shifted", "--json")
    assert json.loads(rows_compared.out)["split"] == "shifted", rows_compared.err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("{shifted: {dataset: {pth: b.csv}}}", ["data.more.shifted.dataset.pth: ", "data.more.shifted.dataset.path?"]),
        ("{s: {batchsize: 3}, o: {normalize: x}}", ["data.more.s.batchsize: unknown", "data.more.o.normalize: not"]),
        ("{val: {}, lr: {}, Test: {}, a.b: {}}", ["data.more.val: not a name", "data.more.lr: not", "4 problems"]),
        ("{shifted: 3}", ["data.more.shifted: wrong type"]),
        ("{shifted: {dataset: {path: nope.csv}}}", ["data.more.shifted.dataset.path: ", "nope.csv"]),
        ("{shifted: {dataset: {path: c.csv}}}", ["data.more.shifted.dataset.target: c.csv, line 3: a class", "'z'"]),
        ("{shifted: {dataset: {path: d.csv}}}", ["data.more.shifted.dataset.features: d.csv has no such column"]),
        ("{w: {dataset: {_target_: lightkit.data.tables.wine}}}", ["data.more.w.normalize: ", "(4,)", "(13,)"]),
        ("{w: {normalize: none, dataset: {_target_: lightkit.data.tables.diabetes}}}", ["data.more.w"]),
        ("{s: {}}", ["data.more.s: the run trains on rows of this set", "split: {}"]),
        ("{s: {split: {test: 0}}}", ["data.more.s.split.test: there are no test rows"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_further_set_is_told_by_its_name_before_training(
    tables: Path, cli: Cli, more: str, told: list[str]
) -> None:
    done = cli("train", *TABLE, f"data.more={more}", "hydra.run.dir=run")
    assert (done.code, Path("run").exists()) == (2, False)
    assert [text for text in told if text not in done.err] == [], done.err


def test_a_monitor_that_is_no_metric_of_a_further_set_is_told(tables: Path, cli: Cli) -> None:
    wrong = cli("train", *TABLE, MORE, "metrics.monitor=shifted/acuracy")
    assert "nearest: shifted/accuracy" in wrong.err


@pytest.mark.thorough(first=0)
def test_kill_and_resume_give_the_same_bits(tmp_path: Path) -> None:
    case = Case(configured("data=wine", *WINE, "trainer.early_stopping.patience=9"), tmp_path)
    moment = next(one for one in case.moments("validation") if one.number == 2)  # in that of a further set
    place = case.kill(moment, "killed")
    case.resume(place)
    assert case.differences(place) == []
    names = ("same/accuracy", "few/loss")
    curves = [
        [
            [r["step"], *(r[n] for n in names)]
            for r in read_jsonl(p / "metrics.jsonl")
            if names[1] in r and names[0] in r
        ]
        for p in (case.whole, place)
    ]
    assert curves[0] == curves[1] != []


@pytest.mark.thorough(first=0)
def test_two_processes_measure_all_rows_and_go_on_in_one(tmp_path: Path) -> None:
    cfg = of_processes("data=wine", *WINE)
    one, two = train(tmp_path / "one", of_processes("data=wine", *WINE), 1), train(tmp_path / "two", cfg, 2)
    go_on(two, 1, "trainer.epochs=3")
    values = [json.loads((run / "result.json").read_text())["metrics"] for run in (one, two)]
    assert {"same/accuracy", "few/accuracy"} <= values[0].keys() & values[1].keys()
    assert values[1]["same/loss"] == pytest.approx(values[1]["test/loss"])
    again = Runner(load_run(two, ["device=cpu"]).cfg, two).evaluate("few")
    assert again["few/loss"] == pytest.approx(values[1]["few/loss"], rel=1e-5)


QUICK = ("data=wine", "model.hidden=[8]", "trainer.epochs=1", "device=cpu", "metrics.figures=[]", "logger=quiet")


@pytest.mark.thorough
@pytest.mark.parametrize("few", [("stacking", "ensemble.size=1", "ensemble.folds=2"), ("voting", "ensemble.size=2")])
def test_members_of_an_ensemble_measure_them(project: Path, cli: Cli, few: tuple[str, ...]) -> None:
    done = cli("train", *QUICK, *WINE[:1], f"ensemble={few[0]}", *few[1:], "hydra.run.dir=run")
    assert done.code == 0, done.err
    results = [path for path in Path("run").glob("members/*/result.json") if "meta" not in path.parent.name]
    members: list[Any] = [json.loads(path.read_text())["metrics"] for path in results]
    assert {"same/accuracy" in member for member in members} == {True}
    assert "same/accuracy" in cli("eval", "run", "--split", "same").out


def test_a_sweep_measures_them(project: Path, process: Cli) -> None:
    swept = process("train", "-m", *QUICK, *WINE, "seed=0")
    assert (swept.code, "same/accuracy" in swept.out) == (0, True), swept.err
