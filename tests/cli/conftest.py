"""A stand-in for `lightkit.runner` that trains nothing: the command line is what is tested."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lightkit.common.errors import UserError


class Runner:
    """Notes what it was asked for; fails where the configuration's `extra.fail` says so."""

    asked: list[tuple[str, Path, tuple[object, ...]]] = []

    def __init__(self, cfg: Any, folder: Path, *, overrides: list[str], on_end: bool = True) -> None:
        self.cfg, self.folder, self.overrides, self.on_end = cfg, folder, overrides, on_end

    def run(self, *, resume: bool = False) -> dict[str, Any]:
        """Write the smallest run folder."""
        assert not self.on_end, "what follows the end of a run, the command line calls"
        if self.cfg.extra.get("fail"):
            raise UserError("the data has a hole", key="data")
        self.asked.append(("run", self.folder, (resume, *self.overrides)))
        (self.folder / "config.yaml").write_text("name: run\n")
        return {}

    def evaluate(self, split: str, checkpoint: str, *, members: Sequence[str] = ()) -> dict[str, float]:
        """Two metrics."""
        self.asked.append(("evaluate", self.folder, (split, checkpoint, *members)))
        return {f"{split}/loss": 0.5, f"{split}/accuracy": 0.987654}

    def evaluate_splits(
        self, splits: Sequence[str], checkpoint: str, *, members: Sequence[str] = ()
    ) -> dict[str, dict[str, float]]:
        """Those of each split."""
        return {split: self.evaluate(split, checkpoint, members=members) for split in splits}

    def predict(
        self, split: str, checkpoint: str, *, members: Sequence[str] = (), views: int = 0
    ) -> list[dict[str, Any]]:
        """Two rows, or none for the training split."""
        self.asked.append(("predict", self.folder, (split, checkpoint, *members)))
        return [] if split == "train" else [{"index": i, "prediction": f"class, {i}", "target": i} for i in (4, 7)]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class that stands in for the Runner; `runner.asked` tells what it was asked for."""
    made = ModuleType("lightkit.runner")
    made.Runner = type("Runner", (Runner,), {"asked": []})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightkit.runner", made)
    return made.Runner
