"""`lightkit find` through the command line: what is printed, drawn and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lightkit.finders.lr as rates
import lightkit.finders.workers as workers
import lightkit.runner.memory.batches as batches
from lightkit.diagnostics.capacity import Probe
from lightkit.finders.lr import FoundRate
from lightkit.finders.suggestion import suggest
from lightkit.finders.workers import FoundWorkers, Speed
from lightkit.runner.memory.batches import Batch
from tests.conftest import Outcome
from tests.finders.test_suggestion import curve

Cli = Callable[..., Outcome]
MIB = 1 << 20


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """Finders answer at once; with which configurations and options they were asked."""
    seen: list[tuple[Any, dict[str, Any]]] = []

    def find_lr(cfg: Any, *, tell: Any, **options: Any) -> FoundRate:
        seen.append((cfg, options))
        points = curve(fall=0.0 if cfg.seed == 1 else 1.0)
        for step, point in enumerate(points, 1):
            tell(step, point)
        return FoundRate(tuple(points), suggest(points), float(cfg.optim.lr))

    def find_batch(cfg: Any, *, tell: Any, **options: Any) -> Batch:
        seen.append((cfg, options))
        tell("        8 samples: needs 8 MiB")
        probes = (Probe(8, 8 * MIB), Probe(64, None), Probe(2, 2 * MIB))
        return Batch(8, 1, ("batch   8: the largest that fits", "        a step sees less"), probes, 40 * MIB, 44 * MIB)

    def find_workers(cfg: Any, *, numbers: Any, tell: Any) -> FoundWorkers:
        seen.append((cfg, {"numbers": numbers}))
        speeds = () if cfg.seed == 1 else tuple(Speed(n, 100.0 + n, 0.5, 0.1) for n in (0, 2))
        return FoundWorkers(speeds, 500.0, 2, 0)

    monkeypatch.setattr(rates, "find_lr", find_lr)
    monkeypatch.setattr(batches, "find_batch", find_batch)
    monkeypatch.setattr(workers, "find_workers", find_workers)
    return seen


def test_a_rate_with_table_reason_and_picture(cli: Cli, project: Path, asked: list[Any]) -> None:
    done = cli("find", "lr", "data=wine", "--high", "100", "--steps", "50")
    assert done.code == 0, done.err
    head, *rows = done.out.partition("\n\n")[0].splitlines()
    assert head.split() == ["learning", "rate", "loss"]
    assert 8 <= len(rows) <= 13
    assert "suggested: optim.lr=0.00" in done.out
    assert "a tenth of the rate with the lowest loss" in done.out
    assert "it is 0.001 now" in done.out
    assert done.out.rstrip().endswith("outputs/find/wine_mlp-lr.png")
    assert (project / "outputs/find/wine_mlp-lr.png").read_bytes().startswith(b"\x89PNG")
    assert "step 50/50: rate" in done.err
    ((cfg, options),) = asked
    assert (cfg.data.batch_size, options) == (16, {"low": 1e-6, "high": 100.0, "steps": 50})
    assert not (project / "outputs/runs").exists()


def test_as_json(cli: Cli, project: Path, asked: list[Any]) -> None:
    done = cli("find", "lr", "data=wine", "--json", "--plot", "plots/mine.png")
    found = json.loads(done.out)
    assert found["key"] == "optim.lr"
    assert found["suggested"] == suggest(curve()).lr  # type: ignore[union-attr]
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
    assert [row.split()[0] for row in done.out.splitlines()[:4]] == ["samples", "2", "8", "64"]
    assert "does not fit" in done.out
    assert "suggested: data.batch_size=8\n  8: the largest that fits\n  a step sees less" in done.out
    assert (project / "outputs/find/wine_mlp-batch.png").is_file()
    assert asked[-1][0].device.batch_size == "max"
    found = json.loads(cli("find", "batch", "data=wine", "device.batch_size=auto", "--json").out)
    assert asked[-1][0].device.batch_size == "auto"
    assert found["tried"][0] == {"size": 2, "bytes": 2 * MIB}


def test_loader_processes(cli: Cli, project: Path, asked: list[Any]) -> None:
    done = cli("find", "workers", "data=wine", "--try", "2,0")
    assert done.code == 0, done.err
    assert "suggested: data.num_workers=0" in done.out
    assert (project / "outputs/find/wine_mlp-workers.png").is_file()
    assert asked[-1][1] == {"numbers": [0, 2]}
    found = json.loads(cli("find", "workers", "data=wine", "seed=1", "--json").out)
    assert (found["suggested"], found["plot"], found["speeds"]) == (0, None, [])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "what to find is missing"),
        (["rate"], "choices:  lr, batch, workers"),
        (["lr", "data=wime"], "data: no such option"),
        (["lr", "--low", "0"], "--low: out of range"),
        (["lr", "--low", "1", "--high", "0.1"], "--high: the rates do not rise"),
        (["lr", "--steps", "3"], "--steps: too few steps"),
        (["batch", "--steps", "30"], "--steps: this is for lightkit find lr"),
        (["lr", "--try", "1,2"], "--try: this is for lightkit find workers"),
        (["workers", "--try", "two"], "--try: not numbers of processes"),
        (["workers", "--try=-1"], "--try: not numbers of processes"),
    ],
)
def test_what_is_refused(cli: Cli, asked: list[Any], args: list[str], message: str) -> None:
    done = cli("find", *args)
    assert done.code == 2
    assert message in done.err, done.err
    assert not asked


@pytest.mark.thorough
def test_a_picture_that_cannot_be_written(cli: Cli, project: Path, asked: list[Any]) -> None:
    (project / "file").write_text("")
    done = cli("find", "lr", "data=wine", "--plot", "file/lr.png")
    assert done.code == 2
    assert "--plot: cannot be written" in done.err


def test_help_has_examples(cli: Cli) -> None:
    done = cli("find", "--help")
    assert "lightkit find lr experiment=digits_cnn" in done.out


@pytest.mark.thorough
def test_for_real(cli: Cli, project: Path) -> None:
    done = cli("find", "lr", "data=wine", "device=cpu", "model.hidden=[8]", "--steps", "40")
    assert done.code == 0, done.out + done.err
    assert "suggested: optim.lr=" in done.out
    assert [path.name for path in (project / "outputs").iterdir()] == ["find"]
