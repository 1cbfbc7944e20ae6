"""Small ensembles, trained as `lightkit train` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from lightkit.config import compose, from_yaml
from lightkit.ensemble.file import StoredEnsemble, read_ensemble
from lightkit.ensemble.methods import RunFacts
from lightkit.ensemble.methods.base import MemberResult, RunMember
from lightkit.runner import Runner
from lightkit.runs.reading import read_config, read_jsonl, read_result

QUICK = [
    *["data=wine", "model.hidden=[8]", "trainer.epochs=2", "data.batch_size=32", "optim.lr=0.01"],
    *["logger=quiet", "logger.every_steps=1", "metrics.figures=[]", "device=cpu"],
]


def train(folder: Path, *overrides: str) -> dict[str, Any]:
    """Train an ensemble; returns its result."""
    texts = [*QUICK, *overrides]
    return Runner(compose(texts).cfg, folder, overrides=texts).run()


def facts(**more: Any) -> RunFacts:
    """What a method knows of a run of 20 rows."""
    return RunFacts(**{"task": "multiclass", "seed": 3, "epochs": 6, "rows": torch.arange(20), **more})


def done(*members: RunMember, values: tuple[float | None, ...] = ()) -> list[MemberResult]:
    """Members that have been trained, with what they reached."""
    reached = values or tuple(0.5 for _ in members)
    return [
        MemberResult(member, Path(member.name), {"objective": objective, "metrics": {"val/loss": value}})
        for member, value in zip(members, reached)
        for objective in [{"name": "val/loss", "mode": "min", "value": value}]
    ]


def role(member: RunMember) -> dict[str, Any]:
    """What a member is among the others."""
    found: dict[str, Any] = member.values["ensemble"]["member"]
    return found


def stored(folder: Path) -> StoredEnsemble:
    """The file of an ensemble."""
    return read_ensemble(folder / "ensemble.safetensors")


def predictions(folder: Path, split: int) -> torch.Tensor:
    """What a run predicts of a split, in the order of its rows."""
    kept = load_file(folder / "oof.safetensors")
    return kept["predictions"][kept["split"] == split]


def saved(folder: Path, name: str) -> dict[str, Any]:
    """The configuration of a member."""
    return from_yaml(read_config(folder / "members" / name))


def rates(folder: Path, name: str) -> list[float]:
    """The rate of every step of a member."""
    rows = read_jsonl(folder / "members" / name / "metrics.jsonl")
    return [row["lr/decay"] for row in rows if "lr/decay" in row]


def result(folder: Path, name: str) -> dict[str, Any]:
    """The result of a member."""
    return read_result(folder / "members" / name)
