"""The rows of the splits of a run: the same on every resume, whatever has become of the data since."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lightkit.assembly import build_engine, build_splits
from lightkit.assembly.run_rows import read_rows
from lightkit.common.errors import UserError
from lightkit.runs.reading import read_run
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
SMALL = (
    *("trainer.epochs=1", "device=cpu", "metrics.figures=[]", "logger.tensorboard.enabled=false"),
    *("data.normalize=none", "data.num_workers=0"),
)
CSV = ("data=csv", "data.dataset.path=table.csv", "data.dataset.target=kind", "model.hidden=[4]", *SMALL)
IMAGES = ("data=image_folder", "data.dataset.root=photos", "data.dataset.size=1", "data.dataset.channels=1", *SMALL)
NAMED = """
from pathlib import Path

import torch

class Named:
    def __init__(self, path="names.txt", named=True):
        self.names = Path(path).read_text().split()
        self.targets = torch.tensor([int(name) % 2 for name in self.names])
        self.groups = [int(name) // 2 for name in self.names]
        if named:
            self.row_names = self.names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, row):
        return torch.tensor([float(self.names[row]), 1.0]), int(self.targets[row])
"""
OWN = ("data=custom", "data.dataset._target_=own.Named", "model.hidden=[4]", *SMALL)


def table(numbers: list[int]) -> None:
    lines = [f"{number},{number % 2}" for number in numbers]
    Path("table.csv").write_text("\n".join(["number,kind", *lines]) + "\n")


def photos(numbers: list[int]) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(256):
        file = Path("photos", "odd" if number % 2 else "even", f"{number:03}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        if number in numbers and not file.exists():
            image.fromarray(np.full((1, 1), number, dtype=np.uint8)).save(file)
        elif number not in numbers:
            file.unlink(missing_ok=True)


def named(numbers: list[int]) -> None:
    Path("own.py").write_text(NAMED)
    Path("names.txt").write_text(" ".join(map(str, numbers)))


KINDS = {"csv": (table, CSV), "images": (photos, (*IMAGES, "model=mlp", "model.hidden=[4]")), "own": (named, OWN)}


def rows_of(folder: str, scale: int = 1) -> dict[str, list[int]]:
    """The numbers that a run would read for each split now."""
    cfg = read_run(Path(folder)).cfg
    data = build_splits(cfg, build_engine(cfg), Path(folder))
    found = {}
    for split in data.loaders():
        loader = data.evaluation(split)
        assert loader is not None
        values = [float(x.reshape(len(x), -1)[i, 0]) for x, _ in loader.epoch(0) for i in range(len(x))]
        found[split] = [round(value * scale) for value in values]
    data.close()
    return found


@pytest.mark.parametrize(
    "kind", ["csv", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("images", "own"))]
)
def test_splits_keep_their_rows_when_the_data_change(cli: Cli, kind: str) -> None:
    write, args = KINDS[kind]
    scale = 255 if kind == "images" else 1
    write([*range(60)])
    assert cli("train", *args, "hydra.run.dir=run").code == 0
    before = rows_of("run", scale)
    gone = {before["train"][0], before["test"][0]}
    write([number for number in range(64) if number not in gone])
    after = rows_of("run", scale)
    assert after == {name: [row for row in rows if row not in gone] for name, rows in before.items()}
    done = cli("resume", "run", "trainer.epochs=2")
    assert done.code == 0, done.err
    assert "4 rows are new and left out; 1 train row is gone" in done.out
    assert "1 test row is gone" in done.out
    assert rows_of("run", scale) == after
    kept = Path("run/rows.npz").read_bytes()
    write([*range(60)])
    assert cli("resume", "run", "trainer.epochs=3").code == 0
    assert rows_of("run", scale) == before
    assert Path("run/rows.npz").read_bytes() == kept


def test_eval_and_predict_use_the_rows_of_the_run(cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    table([*range(60)])
    assert cli("train", *CSV, "hydra.run.dir=run").code == 0
    before = rows_of("run")
    table([number for number in range(60) if number != before["train"][0]])
    done = cli("predict", "run", "--output", "now.csv")
    assert done.code == 0, done.err
    assert "1 train row is gone" in caplog.text
    numbers = [int(line.split(",")[0]) for line in Path("now.csv").read_text().split()[1:]]
    assert numbers == before["test"], "row numbers are those of the run"
    assert cli("eval", "run").code == 0
    other = cli("eval", "run", "data.split.seed=5")
    assert other.code == 0
    assert "the split is drawn anew: the run trained on" in caplog.text


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize("kind", ["own", pytest.param("text", marks=pytest.mark.thorough)])
def test_rows_that_cannot_be_told_apart_are_refused(cli: Cli, kind: str) -> None:
    if kind == "own":
        named([*range(60)])
        args = (*OWN, "+data.dataset.named=false")
    else:
        Path("text.txt").write_text("some words, and more of them. " * 20)
        small = ("model=transformer_lm", "model.dim=8", "model.depth=1", "model.heads=1")
        args = ("data=text", "data.dataset.path=text.txt", "data.dataset.context_length=8", *small, *SMALL)
    done = cli("train", *args, "hydra.run.dir=run")
    assert done.code == 0, done.err
    assert cli("resume", "run", "trainer.epochs=2").code == 0
    if kind == "own":
        named([*range(1, 60)])
    else:
        Path("text.txt").write_text("some words, and more of them. " * 21)
    for command in (("resume", "run", "trainer.epochs=3"), ("eval", "run"), ("predict", "run")):
        done = cli(*command)
        assert (done.code, "Traceback" in done.err) == (2, False), done.err
        assert "its rows cannot be told apart" in done.err
        assert "resume.override=[data.split]" in done.err
    done = cli("resume", "run", "trainer.epochs=3", "resume.override=[data.split]")
    assert done.code == 0, done.err
    assert "the data differ: the split is drawn anew" in done.out
    assert cli("eval", "run").code == 0


def test_data_without_a_row_of_the_run_are_refused(cli: Cli) -> None:
    table([*range(60)])
    assert cli("train", *CSV, "hydra.run.dir=run").code == 0
    table([*range(100, 160)])
    done = cli("resume", "run", "trainer.epochs=2")
    assert done.code == 2
    assert "none of the rows that this run trained on is in the data" in done.err


@pytest.mark.thorough
def test_a_run_of_an_earlier_version_goes_on_and_says_so_once(cli: Cli) -> None:
    table([*range(60)])
    assert cli("train", *CSV, "hydra.run.dir=run").code == 0
    before = rows_of("run")
    Path("run/rows.npz").unlink()
    told = "the rows of its splits were not kept when the run began"
    assert told in cli("resume", "run", "trainer.epochs=2").out
    assert told not in cli("resume", "run", "trainer.epochs=3").out
    assert rows_of("run") == before


def test_a_damaged_file_is_named(cli: Cli) -> None:
    table([*range(60)])
    assert cli("train", *CSV, "hydra.run.dir=run").code == 0
    path = Path("run/rows.npz")
    path.write_bytes(path.read_bytes()[:-40])
    done = cli("resume", "run", "trainer.epochs=2")
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert "rows.npz: the rows of the splits cannot be read" in done.err
    with pytest.raises(UserError, match="cannot be read"):
        read_rows(Path("run"))


@pytest.mark.thorough(first=0)
def test_fewer_training_rows_than_an_epoch_has_seen(cli: Cli) -> None:
    table([*range(60)])
    assert cli("train", *CSV, "hydra.run.dir=run", "trainer.steps=9", "data.batch_size=4").code == 0
    train = rows_of("run")["train"]
    table([number for number in range(60) if number not in train[8:]])
    done = cli("resume", "run", "trainer.steps=14", "trainer.epochs=null")
    assert done.code == 0, done.err
    assert "34 train rows are gone" in done.out


def test_members_share_the_rows_of_their_ensemble(cli: Cli) -> None:
    table([*range(60)])
    two = ("ensemble=voting", "ensemble.size=1")
    assert cli("train", *CSV, *two, "hydra.run.dir=run").code == 0
    before = rows_of("run")
    gone = before["train"][0]
    table([number for number in range(64) if number != gone])
    done = cli("resume", "run", "ensemble.size=2")
    assert done.code == 0, done.err
    assert rows_of("run/members/01") == {name: [row for row in rows if row != gone] for name, rows in before.items()}
    assert cli("eval", "run").code == 0


def test_folds_are_dealt_out_of_the_same_rows_or_not_at_all(cli: Cli) -> None:
    table([*range(60)])
    folds = ("ensemble=bagging", "ensemble.resample=folds", "ensemble.folds=2", "ensemble.repeats=1")
    assert cli("train", *CSV, *folds, "hydra.run.dir=run").code == 0
    train = rows_of("run")["train"]
    table([*range(64)])
    done = cli("resume", "run", "ensemble.repeats=2")
    assert done.code == 0, done.err
    table([number for number in range(60) if number != train[0]])
    done = cli("resume", "run", "ensemble.repeats=3")
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert "1 of 42 training rows are gone" in done.err


@pytest.mark.thorough
def test_an_ensemble_of_finished_runs_keeps_their_rows(cli: Cli) -> None:
    table([*range(60)])
    for seed in (0, 1):
        assert cli("train", *CSV, f"seed={seed}", f"hydra.run.dir=outputs/runs/r{seed}").code == 0
    before = rows_of("outputs/runs/r0")
    table([number for number in range(64) if number != before["train"][0]])
    done = cli("ensemble", "outputs/runs/r0", "outputs/runs/r1", "--name", "both")
    assert done.code == 0, done.err
    folder = next(path.parent for path in Path("outputs").rglob("ensemble.safetensors"))
    assert rows_of(str(folder))["test"] == before["test"]
    assert cli("eval", str(folder)).code == 0


@pytest.mark.thorough(first=0)
def test_jobs_of_a_sweep_keep_their_rows(cli: Cli) -> None:
    table([*range(60)])
    done = cli("train", "-m", *CSV, "seed=0,1", "hydra.sweep.dir=sweep", "hydra/launcher=vectorized")
    assert done.code == 0, done.err
    before = rows_of("sweep/seed=0")
    table([number for number in range(64) if number != before["train"][0]])
    for job in ("sweep/seed=0", "sweep/seed=1"):
        assert rows_of(job) == {"train": before["train"][1:], "val": before["val"], "test": before["test"]}
    assert cli("eval", "sweep/seed=1").code == 0


def pictures_of(classes: list[str]) -> None:
    shutil.rmtree("photos", ignore_errors=True)
    image = pytest.importorskip("PIL.Image")
    for number in range(60):
        folder = Path("photos", classes[number % len(classes)])
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((1, 1), number, dtype=np.uint8)).save(folder / f"{number:03}.png")


def table_of(classes: list[str]) -> None:
    lines = [f"{number},{classes[number % len(classes)]}" for number in range(60)]
    Path("table.csv").write_text("\n".join(["number,kind", *lines]) + "\n")


def own_of(classes: list[str]) -> None:
    named([*range(60)])
    known = '        self.classes = Path("classes.txt").read_text().split()\n        if named:'
    Path("own.py").write_text(NAMED.replace("        if named:", known))
    Path("classes.txt").write_text(" ".join(classes))


@pytest.mark.parametrize("now", [["odd", "zero"], pytest.param(["even", "odd", "zero"], marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "kind", ["csv", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("images", "own"))]
)
def test_other_classes_than_those_that_a_run_has_learnt_are_refused(cli: Cli, kind: str, now: list[str]) -> None:
    write = {"csv": table_of, "images": pictures_of, "own": own_of}[kind]
    write(["even", "odd"])
    assert cli("train", *KINDS[kind][1], "hydra.run.dir=run").code == 0
    write(now)
    for command in (("resume", "run", "trainer.epochs=2"), ("eval", "run"), ("predict", "run", "--output", "now.csv")):
        done = cli(*command)
        assert done.code == 2, done.out
        assert "the classes of the data are not those that this run has learnt" in done.err
        assert "expected: even, odd\n" in done.err
    assert not Path("now.csv").exists()


@pytest.mark.thorough(first=0)
def test_new_names_of_classes_can_be_taken(cli: Cli) -> None:
    own_of(["even", "odd"])
    assert cli("train", *OWN, "hydra.run.dir=run").code == 0
    own_of(["gerade", "ungerade"])
    assert cli("resume", "run", "trainer.epochs=2").code == 2
    done = cli("resume", "run", "trainer.epochs=2", "resume.override=[data.dataset]")
    assert done.code == 0, done.err
