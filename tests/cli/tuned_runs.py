"""Run folders as a fine-tuning leaves them, made in an instant: nothing is trained, the weights are only changed."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from lightkit.assembly import build_engine, build_network, build_splits
from lightkit.assembly.network import base_state, build_base
from lightkit.checkpoint.delta import delta, write_delta
from lightkit.checkpoint.store import CheckpointStore
from lightkit.config import compose, load_run, save, to_yaml
from lightkit.data import Data
from lightkit.finetune.peft.merging import plain_names
from tests.checkpoint.test_weights import gathered

OPTIONS = ["data=wine", "model=mlp", "model.hidden=[6]", "model.norm=batch", "device=cpu", "metrics.figures=[]"]


class Made(NamedTuple):
    """A run folder and what is in it."""

    folder: Path
    model: nn.Module
    """With the weights of its only checkpoint."""
    data: Data

    def outputs(self) -> torch.Tensor:
        """What the model says about the validation rows."""
        return outputs(self.model, self.data)


def outputs(model: nn.Module, data: Data) -> torch.Tensor:
    """What a model says about the validation rows."""
    assert data.val is not None
    with torch.no_grad():
        return torch.cat([model.eval()(batch[0]) for batch in data.val.epoch(0)])


def a_run(project: Path, name: str, *overrides: str, seed: int = 1, size: float = 0.3) -> Made:
    """A run whose parameters were moved by `size` from where they start; only those that train."""
    folder = project / "outputs" / "runs" / "2026-01-31" / f"12-00-00-{name}"
    key = (*overrides, seed, size)
    if key not in _made:
        made = _a_run(folder, overrides, seed, size)
        if any("weights.path" in text for text in overrides):  # what is there may be another file the next time
            return made
        _made[key] = made, {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    made, files = _made[key]
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return Made(folder, deepcopy(made.model), made.data)


_made = dict[Any, tuple[Made, dict[Path, bytes]]]()
"""What was made before, with its files."""


def _a_run(folder: Path, overrides: Sequence[str], seed: int, size: float) -> Made:
    folder.mkdir(parents=True)
    save(compose([*OPTIONS, *overrides]).cfg, folder)
    cfg = load_run(folder).cfg
    engine = build_engine(cfg)
    data = build_splits(cfg, engine)
    made = build_network(cfg, data.info, engine)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in made.model.parameters():
            if parameter.requires_grad:
                parameter += size * torch.randn_like(parameter)
    store = CheckpointStore(folder / "checkpoints", mode="max")
    store.save(gathered(made.model) | {"config": to_yaml(cfg)}, step=10, value=0.5, epoch=1)
    return Made(folder, made.model, data)


def an_adapter(run: Made) -> Path:
    """The adapter file of a run, in its folder."""
    cfg = load_run(run.folder).cfg
    base = build_base(cfg, run.data.info, build_engine(cfg))
    source = str(cfg.finetune.weights.path or "")
    found = delta(run.model.state_dict(), base_state(base), plain_names(run.model), source=source, config=to_yaml(cfg))
    write_delta(run.folder / "adapter.pt", found)
    return run.folder / "adapter.pt"
