"""From any data set to its loaders: what is found out about it, and what is fitted to its training rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.data import SplitSpec, TensorData, build, build_data
from lightkit.data.tables import digits
from tests.conftest import Outcome
from tests.data.test_sources import Rows, X

Cli = Callable[..., Outcome]
ROWS = 3000
READ = (
    "train",
    "hydra.run.dir=run",
    "data=custom",
    "data.dataset._target_=tests.data.test_build.ReadRows",
    "data.normalize=standard",
    "data.batch_size=512",
    "data.split={by: ordered, val: 0.1, test: 0.1}",
    "trust=[tests]",
    "trainer.steps=1",
    "model.hidden=[4]",
    "logger.tensorboard.enabled=false",
    "device=cpu",
)


class ReadRows:
    """Samples read one by one, of which evenly spaced ones tell little."""

    draws = False

    def __init__(self, rows: int = ROWS) -> None:
        self.x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(0)).exp()
        self.targets = torch.arange(rows) % 2

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return self.x[row], int(self.targets[row])


def test_table_of_a_data_set() -> None:
    facts = build_data(dataset=digits(), split=SplitSpec("stratified"), batch_size=100).describe()
    assert [name for name, _ in facts] == ["task", "input", "outputs", "train", "val", "test"]
    assert dict(facts)["input"] == "1 × 8 × 8"
    assert dict(facts)["outputs"] == "10 (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"
    assert dict(facts)["train"] == "1258 rows, 13 batches of 100"
    whole = build_data(dataset=digits(), split={"val": 0, "test": 0}, batch_size=1797)
    assert dict(whole.describe())["train"] == "1797 rows, 1 batch of 1797"
    assert (whole.val, whole.test, list(whole.loaders())) == (None, None, ["train"])


def test_what_may_be_meant_otherwise_is_told() -> None:
    x, spec = torch.linspace(0.5, 1.0, 20), SplitSpec(by="random", val=0.2, test=0.2)
    for size, far in ((300_000.0, 1), (-300_000.0, 1), (300.0, 0)):
        notes = build_data(dataset=TensorData(x[:, None], x * size), split=spec).notes
        assert sum("divide them by 100000 (data.dataset.target_scale" in note for note in notes) == far == len(notes)
    rows, data = Rows([(X, row % 2) for row in range(20)]), TensorData(torch.rand(20, 3), torch.arange(20) % 2)
    assert build_data(dataset=rows, split=spec, num_workers=10_000).notes[0].startswith("data.num_workers=10000: ")
    assert not build_data(dataset=rows, split=spec, num_workers=1).notes
    (note,) = build_data(dataset=data, split=spec, num_workers=10_000).notes
    assert note == "data.num_workers=10000 does nothing: the data set makes whole batches itself"


def shift(folder: Path) -> list[float]:
    values: list[float] = json.loads((folder / "environment.json").read_text())["scaling"]["shift"]
    return values


def test_scaling_is_fitted_on_all_training_rows_or_on_as_many_as_a_key_says(cli: Cli, project: Path) -> None:
    made = build_data(dataset=ReadRows(), split={"by": "ordered", "val": 0.1, "test": 0.1}, normalize="standard")
    assert made.notes == ("data.normalize=standard is fitted on all 2,400 training rows",)
    assert made.normalizer is not None
    assert made.normalizer.shift.tolist() == pytest.approx(ReadRows().x[:2400].double().mean(0).tolist(), rel=1e-6)
    few = "data.normalize=standard is fitted on 3 of the 2,400 training rows"
    assert few in cli(*READ, "data.normalize_rows=3").out
    assert few in (project / "run" / "run.log").read_text()
    assert shift(project / "run") == pytest.approx(ReadRows().x[[0, 1200, 2399]].mean(0).tolist(), rel=1e-6)
    assert few in cli("plan", *READ[2:], "data.normalize_rows=3").out


@pytest.mark.thorough
def test_a_run_keeps_what_it_fitted_and_fits_another_scaling_only_where_that_is_asked_for(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def result(command: str, file: str) -> Any:
        shown, text = cli(command, "run").out, (project / "run" / file).read_text()
        return shown, json.loads(text)["metrics"] if command == "eval" else text

    assert cli(*READ).code == 0
    for scaling in ("standard", "minmax"):
        caplog.clear()
        assert cli("eval", "run", f"data.normalize={scaling}").code == 0
        fitted = "data.normalize=minmax is fitted on all 2,400 training rows" in caplog.messages
        assert fitted == (scaling == "minmax")
    assert cli("train", "--from", "run", "hydra.run.dir=again").code == 0
    assert shift(project / "again") == shift(project / "run")
    files = {"eval": "eval-test.json", "predict": "predictions-test.csv"}
    before = {command: result(command, file) for command, file in files.items()}
    monkeypatch.setattr(build.scaling, "fit", None)  # nothing is to be fitted any more
    for command, file in files.items():
        assert cli(command, "run", "data.split.limit=10").code == 0
        assert result(command, file) == before[command]
    assert cli("resume", "run", "trainer.steps=2").code == 0


@pytest.mark.parametrize("kind", ["standard", "minmax"])
def test_loader_processes_change_no_bit(kind: str) -> None:
    fitted = []
    for workers in (0, 2):
        data = build_data(dataset=ReadRows(500), split={"by": "ordered"}, normalize=kind, num_workers=workers)
        assert data.normalizer is not None
        fitted.append(torch.stack([data.normalizer.shift, data.normalizer.scale]))
    assert torch.equal(*fitted)


def test_a_long_reading_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PROGRESS_SECONDS", 0.0)
    lines: list[str] = []
    build_data(dataset=ReadRows(200), split={"by": "ordered"}, normalize="standard", report=lines.append)
    assert lines[0] == "data.normalize=standard: 64 of 140 training rows read (data.normalize_rows: fewer)"
    assert len(lines) == 3
