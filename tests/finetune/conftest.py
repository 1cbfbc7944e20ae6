"""Fixtures of whole fine-tunings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightkit.runs import folder
from tests.finetune.whole import MODELS, OTHER_CLASSES, SHORT, run


class Bases(dict[str, Path]):
    """Run folders of models trained on other data, each made when it is first asked for."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self.place = place

    def __missing__(self, model: str) -> Path:
        short = [*SHORT, *MODELS[model], *OTHER_CLASSES[model], "trainer.epochs=1"]
        self[model] = run(self.place / model, *short)
        return self[model]


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    """Pretrained networks by the name of the model."""
    return Bases(tmp_path_factory.mktemp("bases"))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what takes longer than a run: asking git, and waiting for the disk."""
    monkeypatch.setattr(folder, "environment", lambda **facts: {"named": {}, **facts})
    monkeypatch.setattr(os, "fsync", lambda handle: None)
