"""Every preset in whole runs: it trains, the audit has nothing to say, and what the run leaves is what it promised."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.build import build
from lightkit.build.phases import build_plan_of
from lightkit.checkpoint.weights import read_weights
from lightkit.config import compose, load_run
from lightkit.loggers.events import read_scalars
from lightkit.runner import Runner
from tests.finetune.whole import (
    HEADS,
    INJECTING,
    MODELS,
    PRESETS,
    expected,
    kinds,
    log,
    moved,
    names_of,
    notes,
    options,
    plain,
    plain_weights,
    run,
    tuned,
    weights,
)

pytestmark = pytest.mark.usefixtures("hasty")

ATTENDING = ("prefix", "prompt")
CELLS = [
    (model, preset)
    for model in MODELS
    for preset in PRESETS
    if preset not in ATTENDING or model in ("transformer", "vit")
]
QUICK = {
    "mlp": ("freeze", "full", "adapter", "norm", "peft"),
    "cnn": tuple(PRESETS),
    "resnet18": ("gradual", "adapter", "norm"),
    "transformer": tuple(PRESETS),
    "vit": ("gradual", "lora", "adapter", "prefix", "prompt", "bitfit", "discriminative"),
    "torchvision": ("lora",),
}
"""What is not left to the long form: every preset on a network with batch norm and on one with attention, and more."""


def marked(model: str, preset: str) -> Any:
    marks = [] if preset in QUICK[model] else [pytest.mark.slow]
    if preset == "peft":
        missing = importlib.util.find_spec("peft") is None
        marks += [pytest.mark.skipif(missing, reason="needs peft"), pytest.mark.filterwarnings("ignore")]
    return pytest.param(model, preset, marks=marks, id=f"{model}-{preset}")


@pytest.fixture
def base(bases: dict[str, Path], model: str) -> Path:
    return bases[model]


@pytest.mark.parametrize(("model", "preset"), [marked(*cell) for cell in CELLS])
def test_a_preset_moves_what_it_promises_and_nothing_else(tmp_path: Path, base: Path, model: str, preset: str) -> None:
    pretrained = [] if preset == "none" else [f"finetune.weights.path={base}"]
    folder = tuned(tmp_path / "run", model, preset, "logger.tensorboard.enabled=true", *pretrained)
    before = begun(folder, base)
    assert "audit" not in log(folder)
    after, kind = plain_weights(folder), kinds(fresh(model).model)
    assert set(kind) == set(before)
    brought_in = set(after) - set(before)
    assert bool(brought_in) == (preset in INJECTING)
    assert moved(before, after) == expected(preset, kind, HEADS[model])
    if preset != "none":
        check_audit(folder, preset, {name for name in brought_in | set(before) if name not in kind or kind[name] != "s"})
    check_curves(folder)


def begun(folder: Path, base: Path) -> dict[str, torch.Tensor]:
    """The tensors a run began with: those of the base, and a new head as the run's seed makes it."""
    cfg = load_run(folder, ["finetune=none"]).cfg if False else load_run(folder).cfg
    parts = build(cfg, folder)
    parts.data.close()
    built = {plain(name): tensor for name, tensor in parts.model.state_dict().items()}
    if cfg.finetune.weights.path:
        pretrained = read_weights(base).state
        same = [name for name, tensor in pretrained.items() if tensor.shape == built[name].shape]
        assert all(torch.equal(built[name], pretrained[name]) for name in same)
        assert len(pretrained) - len(same) in (0, 2)  # a head for other classes
    names = set(fresh_names(cfg))
    return {name: tensor for name, tensor in built.items() if name in names}
