"""`lightkit.load`: models of runs that predict from new inputs."""

from __future__ import annotations

import csv
import json
import random
import shutil
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine

import lightkit
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.data.reader import Faults
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


@pytest.mark.thorough(first=1)
@pytest.mark.parametrize("overrides", ENSEMBLES.values(), ids=ENSEMBLES)
def test_arrays_give_the_same_bits(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    run = trained(tmp_path / "run", *overrides, *(["ensemble.size=3"] if "ensemble=voting" in overrides else []))
    wanted, wine, model = expected(run), load_wine(), lightkit.load(run)
    rows = [row["row"] for row in wanted]
    assert bare([*model.rows(wine.data[rows])]) == bare(wanted)
    assert model.predict(torch.tensor(wine.data[rows])).tolist() == [row["prediction"] for row in wanted]
    assert model.evaluate(wine.data[rows], wine.target[rows]) == model.evaluate("test")
    for meta in run.glob("members/*-meta"):
        with pytest.raises(UserError, match="predicts from what other members predict"):
            lightkit.load(meta)


def as_text(rows: list[dict[str, Any]]) -> str:
    return "\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows), ""])


def test_data_frames_are_read_by_the_names_of_their_columns(people: Path, known: Any, tmp_path: Path) -> None:
    wanted, cells = known
    frame = pd.read_csv(StringIO(as_text(cells)), na_values=["NA"])
    frame["age"], frame["colour"] = frame["age"].astype("Int64"), frame["colour"].astype("category")
    mixed = frame.astype(object).where(frame.notna(), None)
    mixed.loc[0, "income"] = str(mixed.loc[0, "income"] or "")
    frame.to_parquet(tmp_path / "new.parquet", row_group_size=7)
    given = [frame[["income", "colour", "age"]], mixed, pa.Table.from_pandas(frame), tmp_path / "new.parquet"]
    model = lightkit.load(people / "run")
    for one in given:
        assert bare([*model.rows(one)]) == bare(wanted)
    chances = model.predict_proba(frame)
    assert chances[:, 1].tolist() == [row["p(yes)"] for row in wanted]
    assert torch.equal(model.inputs(frame), model.inputs(tmp_path / "new.parquet"))
    with pytest.raises(UserError, match=r"the table names a column twice.*\n.*'age'"):
        model.predict(pd.concat([frame, frame["age"]], axis=1))


def test_the_same_rows_are_evaluated_as_by_the_run(people: Path, known: Any) -> None:
    frame = pd.read_csv(StringIO(as_text(known[1])))
    model = lightkit.load(people / "run")
    logged = json.loads((people / "run" / "result.json").read_text())["test"]
    measured = {f"test/{name}": value for name, value in model.evaluate(frame).items()}
    assert measured == {name: pytest.approx(value) for name, value in logged.items()}
    assert model.evaluate(frame.drop(columns="bought"), frame["bought"]) == model.evaluate(frame)
    assert repr(model) == "<MLP of run: multiclass, classes no, yes>"
    for rows, message in ((frame.drop(columns="bought"), "the rows have no column bought"), (frame[:0], "no rows")):
        with pytest.raises(UserError, match=message):
            model.evaluate(rows)
    assert model.evaluate(frame, frame[["bought"]]) == model.evaluate(frame)
    with pytest.raises(UserError, match=r"as many targets as inputs are needed\n.*\(\d+,\)\n.*\(\d+, 2\)"):
        model.evaluate(frame, frame[["bought", "bought"]])
    with pytest.raises(UserError, match="no target of this run: 'maybe'"):
        model.evaluate(frame, ["maybe"] * len(frame))


BAD = "colour,income,age\nred,1,20\npink,2,21\ngreen,x,22\nblue,4,inf,7\nred,5,23\nred,6,\n"


def test_rows_that_cannot_be_used_are_named_by_line(people: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text(BAD)
    model, faults = lightkit.load(people / "run"), Faults(skip=True)
    assert [row["row"] for row in model.rows(new, faults)] == [0, 1, 4, 5]  # an age is filled in
    assert faults.lines == [f"{new}, line 5: 4 cells, not 3", f"{new}, line 4: column 'income' holds 'x', no number"]
    assert [*faults.notes] == ["column 'colour': 'pink' is not in the training data, and counts as none"]
    with pytest.raises(
        UserError, match=r"2 rows cannot be read:\n.*line 5: 4 cells, not 3\n.*line 4: column .*\n.*--skip-bad"
    ):
        model.predict(new)
    assert len(model.predict(new, skip_bad=True)) == 4
    frame = pd.DataFrame({"colour": ["red"] * 3, "age": [20, 21, 22], "income": [1.0, 1e39, np.inf]})
    with pytest.raises(UserError, match=r"the table, row 1: column 'income' holds '1e\+39', too large a number"):
        model.predict(frame)
    assert len(model.predict(frame, skip_bad=True)) == 2  # an infinity is no value
    new.write_text("age\n1\n")
    with pytest.raises(UserError, match="new.csv lacks 2 columns that the run predicts from: colour, income"):
        model.predict(new)


REFUSED = {
    "nowhere.csv": "there is no such file",
    "a.png": "this run predicts from tables",
    "": "the file has no rows",
    "empty.csv": "the file has no rows",
    "head.csv": "the file has no rows",
    "new.parquet": "the file cannot be read",
    "semicolons.csv": "has one column, by its first line",
}


def test_other_files_and_things_are_refused(people: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "head.csv").write_text("age,colour,income\n")
    (tmp_path / "new.parquet").write_text(BAD)
    (tmp_path / "semicolons.csv").write_text(BAD.replace(",", ";"))
    model = lightkit.load(people / "run")
    for name, message in REFUSED.items():
        with pytest.raises(UserError, match=message):
            model.predict(tmp_path / name)
    for given in ([1, 2], np.array([["a"]], dtype=object), None):
        with pytest.raises(UserError, match="this run predicts from tables"):
            model.predict(given)
    assert len(model.predict(pd.DataFrame({"age": [], "colour": [], "income": []}))) == 0
    with pytest.raises(UserError, match=r"no inputs of the run\n.*\('N', 5\)"):
        model.predict(torch.zeros(3, 4))
    rows = np.array([[1.0, 0, 0, 0, np.inf], [1, 0, np.nan, 0, 0]])  # an income is filled in, a part of a colour is not
    with pytest.raises(UserError, match="row 1: NaN or an infinity"):
        model.predict(rows)


def test_values_come_in_their_unit_and_binary_classes_in_their_words(tmp_path: Path) -> None:
    table = write_table(tmp_path / "people.csv", 80)
    given = ["data=csv", f"data.dataset.path={table}", "data.dataset.missing=drop", *QUICK, "model.hidden=[4]"]
    sums = [*given, "data.dataset.features=[age]", "data.dataset.target=income", "data.dataset.target_scale=1000"]
    sums += ["loss=mse", "metrics=regression"]
    Runner(compose(sums).cfg, tmp_path / "sums").run()
    wanted, model = expected(tmp_path / "sums"), lightkit.load(tmp_path / "sums")
    frame = pd.read_csv(table).dropna(subset=["income"]).iloc[[row["row"] for row in wanted]]
    assert model.predict(frame).tolist() == [row["prediction"] for row in wanted]
    assert model.evaluate(frame) == pytest.approx(model.evaluate("test"))
    with pytest.raises(UserError, match="only classes and labels have probabilities"):
        model.predict_proba(frame)
    words = ["data.dataset.features=[age]", "data.dataset.target=bought", "data.dataset.task=binary"]
    Runner(compose([*given, *words, "loss=bce_with_logits", "metrics=binary"]).cfg, tmp_path / "words").run()
    model = lightkit.load(tmp_path / "words")
    chances = model.predict_proba(frame)
    assert model.predict(frame).tolist() == np.where(chances[:, 1] > 0.5, "yes", "no").tolist()
    rows = [*model.rows(frame)]
    assert [[row["p"] for row in rows], [row["prediction"] for row in rows]] == [
        chances[:, 1].tolist(),
        model.predict(frame).tolist(),
    ]
    assert model.evaluate(frame)["accuracy"] == pytest.approx(np.mean(model.predict(frame) == frame["bought"]))


def changed(run: Path, folder: Path, *pairs: tuple[str, str], file: str = "config.yaml") -> Path:
    """Copy a run, change a file in it, and return its folder."""
    shutil.copytree(run, folder)
    text = (folder / file).read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    (folder / file).write_text(text)
    return folder


def test_runs_of_other_machines_and_times(people: Path, known: Any, tmp_path: Path) -> None:
    frame, wanted = pd.read_csv(StringIO(as_text(known[1]))), bare(known[0])
    before = torch.get_rng_state()
    gpu = changed(people / "run", tmp_path / "gpu", ("  name: auto\n", "  name: cuda:3\n"), ("gpus: null", "gpus: [3]"))
    assert bare([*lightkit.load(gpu).rows(frame)]) == wanted
    assert torch.equal(torch.get_rng_state(), before)
    old = changed(people / "run", tmp_path / "old", ('"inputs"', '"unknown"'), file="environment.json")
    with pytest.raises(UserError, match="people.csv"):  # an earlier version has its data set alone to ask
        lightkit.load(old)
    shutil.copy(people / "moved.csv", people / "people.csv")
    assert bare([*lightkit.load(old).rows(frame)]) == wanted
    (people / "people.csv").unlink()


def test_nothing_of_a_run_from_elsewhere_is_run_unasked(people: Path, project: Path) -> None:
    (project / "evil.py").write_text("from lightkit.models import MLP\n")
    run = changed(people / "run", project / "run", ("lightkit.models.MLP", "evil.MLP"))
    with pytest.raises(UserError, match="comes from elsewhere"):
        lightkit.load(run)
    assert "evil" not in sys.modules


def test_files_of_weights_and_what_is_no_run(people: Path, known: Any, tmp_path: Path) -> None:
    frame, run = pd.read_csv(StringIO(as_text(known[1]))), people / "run"
    file = next((run / "checkpoints").glob("*.pt"))
    assert bare([*lightkit.load(file).rows(frame)]) == bare(known[0])
    alone = shutil.copy(file, tmp_path / "alone.pt")
    with pytest.raises(UserError, match="in no folder of a run"):
        lightkit.load(alone)
    for nothing in ("nothing", 5):
        with pytest.raises(UserError, match="no run here"):
            lightkit.load(nothing)  # type: ignore[arg-type]
    shutil.copytree(run, tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(UserError, match="the run has no checkpoint"):
        lightkit.load(tmp_path / "bare")


def test_a_language_model_takes_tokens(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 40)
    given = [
        "data=text",
        f"data.dataset.path={tmp_path / 'text.txt'}",
        "data.dataset.context_length=8",
        "model=lstm_lm",
    ]
    Runner(compose([*given, *QUICK, "model.hidden=8"]).cfg, tmp_path / "run").run()
    model = lightkit.load(tmp_path / "run")
    assert model.predict(torch.zeros(3, 8, dtype=torch.int64)).shape == (3, 8)
    with pytest.raises(UserError, match="does not say how new inputs are read"):
        model.predict("text.txt")


OWN = """
import torch
from lightkit.data.images import ImageReader

class Own(torch.utils.data.Dataset):
    reader = ImageReader(size=6, channels=1)
    def __len__(self):
        return 40
    def __getitem__(self, row):
        return torch.full((1, 6, 6), row % 2 * 0.5), row % 2
"""


def test_a_data_set_of_ones_own_says_how_files_are_read(project: Path, tmp_path: Path) -> None:
    (project / "own.py").write_text(OWN)
    given = ["data=custom", "data.dataset._target_=own.Own", "model.hidden=[4]", "loss=cross_entropy"]
    Runner(compose([*given, "metrics=multiclass", *QUICK]).cfg, project / "run").run()
    write_pictures(tmp_path / "pictures", 2)
    (tmp_path / "pictures" / "dark" / "0.png").write_bytes(b"no image")
    model, faults = lightkit.load(project / "run"), Faults(skip=True)
    rows = [*model.rows(tmp_path / "pictures", faults)]
    assert [row["file"] for row in rows] == ["bright/0.png", "bright/1.png", "dark/1.png"]
    assert len(faults.lines) == 1
    assert "dark/0.png: the image cannot be read" in faults.lines[0]
    assert len(model.predict(tmp_path / "pictures" / "bright" / "0.png")) == 1
    (tmp_path / "pictures" / "dark" / "1.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"2 rows cannot be read:\n.*dark/0.png: .*\n.*dark/1.png: "):
        model.predict(tmp_path / "pictures")
    for given_path, message in (("new.csv", "there is no such file"), (project, "there are no images in the folder")):
        with pytest.raises(UserError, match=message):
            model.predict(given_path)
