"""Ensembles of networks whose modules share tensors: both engines train, save, resume, predict and export them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import lightkit
from lightkit.checkpoint import content
from lightkit.config import compose, load_run
from lightkit.runner import Runner

OPTIONS = [
    "data=wine",
    "data.batch_size=32",
    "data.normalize=standard",
    "model={_target_: tests.ensemble.networks.Tied}",
    "trainer.epochs=2",
    "device=cpu",
    "metrics.figures=[]",
    "logger=quiet",
    "ensemble=voting",
    "ensemble.size=2",
]


def run(folder: Path, *options: str, resume: bool = False) -> dict[str, Any]:
    return Runner(compose([*OPTIONS, *options]).cfg, folder).run(resume=resume)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_networks_with_shared_tensors_become_an_ensemble(engine: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run(folder, f"ensemble.engine={engine}", "trainer.ema.decay=0.9", "checkpoint.export=safetensors")
    assert ("at once" in (folder / "members" / "00" / "run.log").read_text()) == (engine == "vectorized")
    values = Runner(load_run(folder).cfg, folder).evaluate("test")
    assert values == pytest.approx({name: result["metrics"][name] for name in values}, abs=1e-5)
    own = Runner(load_run(folder / "members" / "01").cfg, folder / "members" / "01").evaluate("test")
    assert own["test/loss"] == pytest.approx(result["members"]["01"]["test/loss"], abs=1e-5)
    state = content.load_model_state(next((folder / "members" / "00" / "checkpoints").glob("step-*.pt")))
    for one, other in (("encoder", "decoder"), ("block.0", "again.0")):
        assert torch.equal(state[f"{one}.weight"], state[f"{other}.weight"])
    assert torch.equal(state["scale"], state["same_scale"])
    ensemble = lightkit.load_ensemble(folder)
    assert ensemble.predict(torch.randn(3, 13)).shape == (3, 3)
