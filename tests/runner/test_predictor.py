"""`lightkit.load`: models of runs that predict from new inputs."""

from __future__ import annotations

import csv
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine

import lightkit
from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.runs.reading import read_run
from tests.runner.finished_runs import QUICK, trained

COLUMNS = ("id", "age", "colour", "income", "bought")


def write_table(path: Path, rows: int, seed: int = 0) -> Path:
    """Write people with gaps in both kinds of columns, and return the file."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number in range(rows):
            age, income = draw.randint(18, 90), round(draw.gauss(3000, 900), 2)
            colour = draw.choice(["red", "green", "blue", "NA"])
            cells = [f"c{number:03}", age, colour, income if draw.random() < 0.9 else ""]
            writer.writerow([*cells, "yes" if age > 50 and colour != "red" else "no"])
    return path


def write_pictures(root: Path, count: int = 8) -> Path:
    """Write pictures of two classes, dark and bright, of several sizes."""
    draw = np.random.default_rng(0)
    for name, low in (("bright", 120), ("dark", 0)):
        (root / name).mkdir(parents=True)
        for number in range(count):
            levels = draw.integers(low, low + 130, (9 + number, 12, 3), dtype=np.uint8)
            Image.fromarray(levels).save(root / name / f"{number}.png")
    return root


def expected(run: Path) -> list[dict[str, Any]]:
    """Return what `lightkit predict` writes of the test rows."""
    return Runner(read_run(run).cfg, run).predict("test")


def bare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without what only tells which they are."""
    return [{k: v for k, v in row.items() if k not in ("row", "file", "target", *COLUMNS)} for row in rows]


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over a table with gaps; the table is gone since."""
    folder = tmp_path_factory.mktemp("people")
    table = write_table(folder / "people.csv", 150)
    given = ["data=csv", f"data.dataset.path={table}", "data.dataset.categorical=[colour]", "data.batch_size=16"]
    given += ["data.dataset.missing={*: most_frequent, income: median}", "data.dataset.add_indicator=true"]
    given += ["data.dataset.features=[age,colour,income]", "data.dataset.target=bought", "model.hidden=[8]"]
    Runner(compose([*given, *QUICK]).cfg, folder / "run").run()
    (folder / "expected.json").write_text(json.dumps(expected(folder / "run")))
    table.rename(folder / "moved.csv")
    return folder


@pytest.fixture
def known(people: Path) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """What `lightkit predict` wrote of the test rows, and these rows."""
    wanted = json.loads((people / "expected.json").read_text())
    with (people / "moved.csv").open(newline="") as file:
        cells = [*csv.DictReader(file)]
    return wanted, [cells[row["row"]] for row in wanted]


def test_rows_of_a_table_give_the_same_bits(people: Path, known: Any, tmp_path: Path) -> None:
    wanted, cells = known
    new = tmp_path / "new.csv"
    with new.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["colour", "income", "id", "age"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(cells)
    model = lightkit.load(people / "run")
    found = [*model.rows(new)]
    assert bare(found) == bare(wanted)
    assert [row["id"] for row in found] == [row["id"] for row in cells]
    assert model.predict(new).tolist() == [row["prediction"] for row in wanted]
    assert model.classes.tolist() == ["no", "yes"]


def test_images_of_a_folder_give_the_same_bits(tmp_path: Path) -> None:
    root, run, new = write_pictures(tmp_path / "pictures"), tmp_path / "run", tmp_path / "new"
    given = [
        "data=image_folder",
        f"data.dataset.root={root}",
        "data.dataset.size=12",
        "data.num_workers=0",
        "model=cnn",
    ]
    Runner(compose([*given, "model=cnn", "data.split.test=0.4", "data.batch_size=3", *QUICK]).cfg, run).run()
    wanted = expected(run)
    new.mkdir()
    for i, row in enumerate(wanted):
        shutil.copy(root / row["file"], new / f"{i:02}.png")
    shutil.rmtree(root)
    found = [*lightkit.load(run).rows(new)]
    assert bare(found) == bare(wanted)
    assert [row["file"] for row in found] == [f"{i:02}.png" for i in range(len(wanted))]


ENSEMBLES = {"single": (), "voting": ("ensemble=voting",), "stacking": ("ensemble=stacking", "ensemble.folds=2")}


@pytest.mark.parametrize("overrides", ENSEMBLES.values(), ids=ENSEMBLES)
def test_arrays_give_the_same_bits(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    run = trained(tmp_path / "run", *overrides, *(["ensemble.size=3"] if "ensemble=voting" in overrides else []))
    wanted, wine, model = expected(run), load_wine(), lightkit.load(run)
    rows = [row["row"] for row in wanted]
    assert bare([*model.rows(wine.data[rows])]) == bare(wanted)
    assert model.predict(torch.tensor(wine.data[rows])).tolist() == [row["prediction"] for row in wanted]
    assert model.evaluate(wine.data[rows], wine.target[rows]) == model.evaluate("test")
