"""Ensembles whose members share every batch over two processes, against the same ensemble in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lightkit.runner import Runner
from tests.runner.processes import configured, far, train

TWO = {
    "voting": ("ensemble=voting", "ensemble.size=2", "ensemble.weights=validation"),
    "folds": ("ensemble=bagging", "ensemble.resample=folds", "ensemble.folds=2"),
    "stacking": (
        "ensemble=stacking",
        "ensemble.members=[{model.hidden: [8]}, {model.hidden: []}]",
        "ensemble.folds=2",
        "ensemble.meta.trainer.steps=20",
    ),
    "boosting": ("ensemble=gradient_boosting", "ensemble.size=2", "ensemble.patience=1"),
}


def result(place: Path) -> dict[str, Any]:
    return json.loads((place / "result.json").read_text())


def compare(cfg: Any, tmp_path: Path) -> None:
    """Train in two processes and in one, and compare."""
    train(tmp_path / "two", cfg, 2)
    Runner(cfg, tmp_path / "one").run()
    one, two = result(tmp_path / "one"), result(tmp_path / "two")
    assert one["metrics"] == pytest.approx(two["metrics"], rel=2e-4, abs=2e-5)
    names = sorted(path.name for path in (tmp_path / "one" / "members").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "two" / "members").iterdir())
    for name in names:
        assert not far(tmp_path / "one" / "members" / name, tmp_path / "two" / "members" / name)
    held = [load_file(tmp_path / place / "oof.safetensors") for place in ("one", "two")]
    assert torch.equal(held[0]["rows"], held[1]["rows"])
    assert torch.allclose(held[0]["predictions"], held[1]["predictions"], atol=1e-4, equal_nan=True)


@pytest.mark.thorough
@pytest.mark.parametrize("method", TWO)
def test_two_processes_give_what_one_gives(method: str, tmp_path: Path) -> None:
    cfg = configured(*TWO[method], "ensemble.engine=sequential" if method != "boosting" else "seed=0")
    compare(cfg, tmp_path)


@pytest.mark.thorough
def test_members_of_one_base_are_fine_tuned_by_two_processes(tmp_path: Path) -> None:
    base = train(tmp_path / "base", configured("device.parallel=none"), 1)
    tuned = ("ensemble=voting", "ensemble.size=2", "finetune=lora", "finetune.lora.rank=2")
    compare(configured(*tuned, f"finetune.weights.path={base}"), tmp_path)


@pytest.mark.thorough
def test_what_rank_0_cannot_write_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("lightkit.runner.ensemble.run.write_ensemble", refuse)
    train(tmp_path / "two", configured(*TWO["voting"]), 2, want=[1, 1])
    assert result(tmp_path / "two")["status"] == "failed"
