"""The example without a configuration trains, and goes on with the same bits after it was stopped."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.checkpoint.store import CheckpointStore

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plain.py"


def test_it_learns_and_goes_on_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = runpy.run_path(str(EXAMPLE))["main"]
    whole = train(tmp_path / "whole", epochs=3)
    assert whole.state.best_value > 0.85
    save = CheckpointStore.save

    def save_and_stop(self: CheckpointStore, *args: Any, **options: Any) -> None:
        save(self, *args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(CheckpointStore, "save", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", epochs=3)
    monkeypatch.setattr(CheckpointStore, "save", save)
    resumed = train(tmp_path / "stopped", epochs=3)
    assert resumed.state.step == whole.state.step
    assert resumed.state.best_value == whole.state.best_value
    for one, other in zip(whole.model.parameters(), resumed.model.parameters()):
        assert torch.equal(one, other)


def test_a_stranger_can_read_it_at_a_sitting() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 90
