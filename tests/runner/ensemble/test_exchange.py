"""Runs as files of torchensemble, and the other way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lightkit
from lightkit.common.errors import UserError
from lightkit.runner import Runner
from lightkit.runner.ensemble.exchange import export_torchensemble, import_torchensemble
from lightkit.runs.reading import read_run
from tests.runner.finished_runs import trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "v", "ensemble=voting", "ensemble.size=2")


def test_there_by_the_lines_it_prints_and_back(run: Path, tmp_path: Path) -> None:
    cfg, names = read_run(run).cfg, dict[str, object]()
    file, lines = export_torchensemble(run, cfg, tmp_path / "out")
    exec(lines, names)
    x, ours = torch.randn(5, 13), lightkit.load_ensemble(run)
    with torch.no_grad():
        assert torch.allclose(names["model"].predict(x), ours.module(x).exp(), atol=1e-6)  # type: ignore[attr-defined]
    import_torchensemble(file, run, cfg, tmp_path / "back")
    back = read_run(tmp_path / "back").cfg
    assert Runner(back, tmp_path / "back").evaluate() == pytest.approx(Runner(cfg, run).evaluate(), abs=1e-6)


def test_other_runs_are_refused(run: Path, tmp_path: Path) -> None:
    cfg = read_run(run).cfg
    with pytest.raises(UserError, match="this run is no ensemble"):
        export_torchensemble(run / "members" / "00", cfg, tmp_path / "out")
    file, _ = export_torchensemble(run, cfg, tmp_path / "out")
    other = trained(tmp_path / "other", "model.hidden=[7]")
    with pytest.raises(UserError, match="network 0"):
        import_torchensemble(file, other, read_run(other).cfg, tmp_path / "back")
    assert not (tmp_path / "back").exists()
