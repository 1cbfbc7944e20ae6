"""`lightkit find` through the command line: what is printed, drawn and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lightkit.finders.lr as rates
import lightkit.finders.speeds as searches
import lightkit.runner.batches as batches
from lightkit.common.errors import UserError
from lightkit.diagnostics.memory import Probe
from lightkit.finders.lr import FoundRate, ShortTraining
from lightkit.finders.speeds import FoundThroughput, FoundWorkers, Speed, Throughput
from lightkit.runner import Runner
from lightkit.runner.batches import Batch
from tests.conftest import Cli
from tests.finders.test_suggestion import curve

MIB = 1 << 20


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """Finders answer at once; with which configurations and options they were asked."""
    seen: list[tuple[Any, dict[str, Any]]] = []

    def find_lr(cfg: Any, *, tell: Any, tell_training: Any, **options: Any) -> FoundRate:
        seen.append((cfg, options))
        points = curve(fall=0.0 if cfg.seed == 1 else 1.0)
        for step, point in enumerate(points, 1):
            tell(step, point)
        trainings = (ShortTraining(0.02, (1.2, 1.4)), ShortTraining(0.2, ()), ShortTraining(0.006, (1.9, 1.7)))
        for training in trainings:
            tell_training(training)
        return FoundRate(tuple(points), float(cfg.optim.lr), () if cfg.seed == 1 else trainings, 50, 100)

    def find_batch(cfg: Any, *, tell: Any, **options: Any) -> Batch:
        seen.append((cfg, options))
        tell("        8 samples: needs 8 MiB")
        probes = (Probe(8, 8 * MIB), Probe(64, None), Probe(2, 2 * MIB))
        return Batch(8, 1, ("batch   8: the largest that fits", "        a step sees less"), probes, 40 * MIB, 44 * MIB)

    def find_throughput(cfg: Any, *, largest: int, ranks: int, tell: Any) -> FoundThroughput:
        speeds = (Throughput(2, 100.0), Throughput(4, 190.0), Throughput(8, 200.0))
        tell(speeds[0])
        return FoundThroughput(speeds, 120, int(cfg.data.batch_size), largest)

    def find_workers(cfg: Any, *, numbers: Any, tell: Any) -> FoundWorkers:
        seen.append((cfg, {"numbers": numbers}))
        speeds = () if cfg.seed == 1 else tuple(Speed(n, 100.0 + n, 0.5, 0.1) for n in (0, 2))
        return FoundWorkers(speeds, 500.0, 2, 0)

    monkeypatch.setattr(rates, "find_lr", find_lr)
    monkeypatch.setattr(batches, "find_batch", find_batch)
    monkeypatch.setattr(searches, "find_throughput", find_throughput)
    monkeypatch.setattr(searches, "find_workers", find_workers)
    return seen


def test_a_rate_with_table_reason_and_picture(cli: Cli, project: Path, asked: list[Any]) -> None:
    done = cli("find", "lr", "data=wine", "--high", "100", "--steps", "50")
    assert done.code == 0, done.err
    head, *rows = done.out.partition("\n\n")[0].splitlines()
    assert head.split() == ["steps", "learning", "rate", "loss"]
    assert 11 <= len(rows) <= 16
    assert [row.split() for row in rows[-3:]] == [
        ["50", "steps", "0.006", "1.8"],
        ["50", "steps", "0.02", "1.3"],
        ["50", "steps", "0.2", "diverges"],
    ]
    lowest = "of trainings of 50 steps 0.02 ends lowest: 1.3, 1.8 with 0.006, 0.2 diverges"
    longer = "the run is 2 times as long, which wants 0.8 times that rate"
    assert f"suggested: optim.lr=0.016\n  {lowest};\n  {longer};\n  it is 0.001 now" in done.out
    assert "short training: rate 0.2, loss diverges" in done.err
    assert done.out.rstrip().endswith("outputs/find/wine_mlp-lr.png")
    assert (project / "outputs/find/wine_mlp-lr.png").read_bytes().startswith(b"\x89PNG")
    assert "step 50/50: rate" in done.err
    ((cfg, options),) = asked
    assert (cfg.data.batch_size, options) == (16, {"low": 1e-6, "high": 100.0, "steps": 50})
    assert not (project / "outputs/runs").exists()


def test_as_json(cli: Cli, project: Path, asked: list[Any]) -> None:
    (project / "file").write_text("")
    refused = cli("find", "lr", "data=wine", "--plot", "file/lr.png")
    assert (refused.code, "--plot: cannot be written" in refused.err) == (2, True)
    done = cli("find", "lr", "data=wine", "--json", "--plot", "plots/mine.png")
    found = json.loads(done.out)
    assert found["key"] == "optim.lr"
    assert found["suggested"] == 0.016
    assert [training["loss"] for training in found["trainings"]] == [pytest.approx(1.3), None, pytest.approx(1.8)]
    assert (found["training_steps"], found["run_steps"]) == (50, 100)
    assert len(found["points"]) == 100
    assert found["configured"] == 0.001
    assert found["lowest"]["lr"] < found["harmful"]
    assert found["plot"] == "plots/mine.png"
    assert (project / "plots/mine.png").is_file()


def test_nothing_is_suggested(cli: Cli, asked: list[Any]) -> None:
    done = cli("find", "lr", "data=wine", "seed=1")
    assert done.code == 1
    assert "the loss falls with none of these rates" in done.out
    assert "suggested:" not in done.out
    assert json.loads(cli("find", "lr", "data=wine", "seed=1", "--json").out)["suggested"] is None


def test_a_batch(cli: Cli, project: Path, asked: list[Any]) -> None:
    done = cli("find", "batch", "data=wine")
    assert done.code == 0, done.err
    rows = [row.split() for row in done.out.splitlines()[:5]]
    assert [row[0] for row in rows] == ["samples", "2", "4", "8", "64"]
    assert [row[-1] for row in rows] == ["samples/s", "100", "190", "200", "MiB"]
    assert "does not fit" in done.out
    reason = "4: 190 samples a second; the most is 200 at 8, less than 10% more\n  a step sees 0.25 times the 16 of"
    assert f"suggested: data.batch_size=4\n  {reason}" in done.out
    assert "memory: 8: the largest that fits" in done.out
    assert "2 samples: 100 a second" in done.err
    assert (project / "outputs/find/wine_mlp-batch.png").is_file()
    assert asked[-1][0].trainer.find_batch_size == "max"
    found = json.loads(cli("find", "batch", "data=wine", "--json").out)
    assert (found["suggested"], found["largest"]) == (4, 8)
    assert (found["tried"][0], found["speeds"][0]) == ({"size": 2, "bytes": 2 * MIB}, {"size": 2, "samples": 100.0})
    done = cli("find", "batch", "data=wine", "trainer.find_batch_size=auto")
    assert asked[-1][0].trainer.find_batch_size == "auto"
    assert "suggested: data.batch_size=8\n  8: the largest that fits\n  a step sees less" in done.out
    assert "samples/s" not in done.out, "the samples of a step are given"


def test_loader_processes(cli: Cli, project: Path, asked: list[Any]) -> None:
    done = cli("find", "workers", "data=wine", "--try", "2,0")
    assert done.code == 0, done.err
    assert "suggested: data.num_workers=0" in done.out
    assert (project / "outputs/find/wine_mlp-workers.png").is_file()
    assert asked[-1][1] == {"numbers": [0, 2]}
    found = json.loads(cli("find", "workers", "data=wine", "seed=1", "--json").out)
    assert (found["suggested"], found["plot"], found["speeds"]) == (0, None, [])


ROWS = ("find", "rows", "data=wine", "trainer.epochs=1", "model.hidden=[4]", "metrics.figures=[]", "logger=quiet")


def test_rows_train_once_with_parts_of_the_rows(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, run = list[Any](), Runner.run

    def killed(self: Runner, *, resume: bool = False) -> Any:
        began.append((self.cfg, self.folder))
        if len(began) == 4:
            raise UserError("killed")
        return run(self, resume=resume)

    monkeypatch.setattr(Runner, "run", killed)
    assert cli(*ROWS).code == 2
    done = cli(*ROWS, "--json")
    found = json.loads(done.out)
    assert done.code == (1 if found["suggested"] is None else 0)
    assert len(began) == 16, "three had finished, and one was killed"
    assert list(found["values"]) == ["7", "15", "31", "62", "124"]
    assert (found["metric"], found["rows"]) == ("test/accuracy", 248)
    split = {folder.name: np.load(folder / "rows.npz")["split"] for _, folder in began}
    train, val, test = ({name: {*np.flatnonzero(rows == of)} for name, rows in split.items()} for of in range(3))
    assert {len(rows) for rows in train.values()} == {7, 15, 31, 62, 124}
    assert all(rows == own["7-0"] for own in (val, test) for rows in own.values())
    assert train["7-1"] < train["62-1"] < train["124-0"]
    assert train["7-1"] != train["7-0"]
    for _, folder in began:
        assert json.loads((folder / "result.json").read_text())["steps"] == 8, "as many as with all rows"
        assert not (folder / "checkpoints").exists()
    assert cli("runs").out.count("wine") == 0, "they are no runs of the user's"
    again = cli(*ROWS)
    assert (len(began), "twice as many" in again.out) == (16, True)
    assert (project / "outputs/find/wine_mlp-rows.png").is_file()
    del began[:13]
    assert cli(*ROWS, "optim.lr=0.1").code == 2, "another configuration has runs of its own"


@pytest.mark.parametrize(("slope", "says"), [(-0.5, "suggested: rows=248"), (0.0, "no gain beyond noise")])
def test_more_rows_are_worth_it_or_not(cli: Cli, monkeypatch: pytest.MonkeyPatch, slope: float, says: str) -> None:
    def run(self: Runner, *, resume: bool = False) -> Any:
        rows, seed = self.cfg.data.split.limit, self.cfg.seed
        loss = 0.2 + (rows**slope) * (1 + 0.01 * np.random.default_rng(100 * rows + seed).normal())
        return {"metrics": {"test/loss": loss}, "objective": {"value": 9.0}}

    monkeypatch.setattr(Runner, "run", run)
    done = cli("find", "rows", "data=wine", "metrics.monitor=val/loss", "--seeds", "5")
    assert (done.code, says in done.out) == (0 if slope else 1, True), done.out + done.err
    assert "248 rows, twice as many, test/loss would change by" in done.out
    assert done.err.count("rows, seed") == 25


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("rows", "data=wine", "--seeds", "2"), "--seeds: too few seeds"),
        (("lr", "data=wine", "--seeds", "3"), "this is for lightkit find rows"),
        (("rows", "data=wine", "cv=5"), "data.split: there is no one split to measure on"),
        (("rows", "data=wine", "--try", "1,2"), "this is for lightkit find workers"),
        (
            ("rows", "data=wine", "data.split.val=0", "data.split.test=0", "metrics.monitor=train/loss"),
            "data.split: there is no one split to measure on",
        ),
    ],
)
def test_what_rows_refuses(cli: Cli, words: tuple[str, ...], says: str) -> None:
    done = cli("find", *words)
    assert (done.code, says in done.err) == (2, True), done.err
