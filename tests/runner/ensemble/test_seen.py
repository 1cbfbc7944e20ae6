"""Weights that members began with, and the rows that these have learnt from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.runner.ensemble.combine import combine_runs
from lightkit.runs.reading import read_json
from tests.runner.ensemble.test_library import GREEDY
from tests.runner.finished_runs import member, trained


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def bare(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of a run in a file that is in no run."""
    path = tmp_path_factory.mktemp("bare") / "bare.pt"
    newest = CheckpointStore(base / "checkpoints").newest()
    assert newest is not None
    torch.save(content.load_model_state(newest), path)
    return path


def test_rows_that_weights_of_a_bare_file_have_seen_are_named_as_unknown(
    base: Path, bare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = trained(tmp_path / "tuned", f"finetune.weights.path={bare}")
    runs = [member("00-tuned", tuned), member("01-base", base)]
    capsys.readouterr()
    result = combine_runs(runs, tmp_path / "out", method=GREEDY, name="both")
    assert result["unknown_rows"] == {"00-tuned": [str(bare)]}
    assert result["seen_rows"] == {}
    assert result["selected_on"] == ["val"]
    told = f"00-tuned began with the weights of {bare}: which rows these have learnt from is not known"
    assert told in (tmp_path / "out" / "run.log").read_text()
    assert read_json(tmp_path / "out" / "result.json")["unknown_rows"] == result["unknown_rows"]


@pytest.mark.parametrize("known", [True, False])
def test_folds_of_a_base_that_has_seen_all_rows_are_told_of(
    known: bool, base: Path, bare: Path, tmp_path: Path
) -> None:
    path = base if known else bare
    folder = trained(
        tmp_path / "bag",
        "ensemble=bagging",
        "ensemble.resample=folds",
        "ensemble.folds=2",
        f"finetune.weights.path={path}",
    )
    result, log = read_json(folder / "result.json"), (folder / "run.log").read_text()
    if known:
        assert result["seen_rows"] == {"each member": 124}
        assert "weights that have learnt from 124 of the 178 rows that count as unseen" in log
    else:
        assert result["unknown_rows"] == {"each member": [str(bare)]}
        assert "is not known" in log
