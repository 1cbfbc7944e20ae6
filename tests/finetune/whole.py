"""Whole fine-tunings that take a fraction of a second, and what they leave behind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightkit.checkpoint.store import CheckpointStore
from lightkit.config import compose
from lightkit.runner import Runner

SHORT = (
    "trainer.epochs=2",
    "data.batch_size=16",
    "optim.lr=0.01",
    "logger.console.style=quiet",
    "logger.every_steps=1",
    "logger.tensorboard.enabled=false",
    "device=cpu",
    "metrics.figures=[]",
    "trainer.test=none",
    "checkpoint.asynchronous=false",
)
SHAPES = (
    "data=shapes",
    "data.dataset.size=16",
    "data.dataset.train=48",
    "data.dataset.val=16",
    "data.dataset.test=16",
)
VIT = "{img_size: 16, patch_size: 8, embed_dim: 16, depth: 2, num_heads: 2}"
MODELS: dict[str, tuple[str, ...]] = {
    "mlp": ("data=wine", "model=mlp", "model.hidden=[8,8]", "model.norm=batch"),
    "cnn": (*SHAPES, "model=cnn", "model.channels=[8,16]"),
    "resnet18": (*SHAPES, "model=resnet18", "model.width=8"),
    "transformer": (*SHAPES, "model=transformer", "model.dim=16", "model.depth=2", "model.heads=2"),
    "vit": (*SHAPES, "model=timm", "model.name=vit_tiny_patch16_224", f"model.options={VIT}"),
    "torchvision": (*SHAPES, "model=torchvision", "model.name=resnet18"),
}
OTHER_CLASSES: dict[str, tuple[str, ...]] = {
    "mlp": (),
    **dict.fromkeys(("cnn", "resnet18", "transformer", "vit", "torchvision"), ("data.dataset.classes=4",)),
}
"""What the base of each model was trained on, besides what its fine-tuning is: pictures of fewer classes."""
HEADS = {"mlp": "head", "cnn": "head", "resnet18": "fc", "transformer": "head", "vit": "head", "torchvision": "fc"}
INJECTING = ("lora", "adapter", "prefix", "peft")
PRESETS: dict[str, tuple[str, ...]] = {
    "none": (),
    "head": (),
    "freeze": (),
    "full": (),
    "gradual": (),
    "discriminative": (),
    "lora": ("finetune.lora.rank=2",),
    "adapter": (),
    "prefix": ("finetune.prefix.length=3",),
    "bitfit": (),
    "norm": (),
    "probe": ('finetune.schedule=[{epoch: 1, unfreeze: ["*"]}]',),
    "peft": ("finetune.peft.r=2",),
}
"""Every preset, with what makes it suit a network this small and a run this short."""


def options(model: str, preset: str, *overrides: str) -> list[str]:
    """The overrides of a short run of a preset."""
    chosen = [*SHORT, *MODELS[model], f"finetune={preset}", *PRESETS.get(preset, ())]
    if model == "mlp" and preset == "adapter":
        chosen.append("finetune.adapter.match=[layers.linear*]")  # which has no blocks
    return [*chosen, *overrides]


def tuned(folder: Path, model: str, preset: str, *overrides: str) -> Path:
    """Train with a preset; returns the folder."""
    return run(folder, *options(model, preset, *overrides))


def run(folder: Path, *overrides: str) -> Path:
    """Train; returns the folder."""
    Runner(compose(list(overrides)).cfg, folder, overrides=overrides).run()
    return folder


def content(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint of a run holds."""
    found = CheckpointStore(folder / "checkpoints").load_newest()
    assert found is not None
    return found[1]


def weights(folder: Path) -> dict[str, Tensor]:
    """The weights that a run ended with."""
    return content(folder)["model"]


def plain_weights(folder: Path) -> dict[str, Tensor]:
    """The same under the names the network had before anything was put into it."""
    return {plain(name): tensor for name, tensor in weights(folder).items()}


def plain(name: str) -> str:
    """`fc.parametrizations.weight.original` → `fc.weight`; the same for the layers of peft."""
    for stem in ("weight", "in_proj_weight"):
        name = name.replace(f".parametrizations.{stem}.original", f".{stem}")
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def notes(folder: Path) -> dict[str, Any]:
    """Plan and audit of a run."""
    found: dict[str, Any] = json.loads((folder / "finetune.json").read_text(encoding="utf-8"))
    return found


def complaints(folder: Path) -> list[str]:
    """What the audit of a run has to say, faults and notes."""
    lines = (folder / "run.log").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if re.search(r": audit( \(.*\))?: ", line)]


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Names of the tensors that are not the same bits, shapes and types."""
    return {name for name, tensor in before.items() if not same_bits(tensor, after[name])}


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same, NaN and the sign of 0 included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    flat = (tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(*flat)


def promised(preset: str, kind: dict[str, str], head: str) -> set[str]:
    """Names of the base's tensors that a preset moves, by what it is called.

    Args:
        preset: Its name.
        kind: From `spies.kinds`, by the names of the base.
        head: Path of the output layer.
    """
    if preset in ("none", "full", "gradual", "discriminative", "probe"):
        return set(kind)
    chosen = {name for name in kind if name.startswith(f"{head}.")}
    if preset == "norm":
        chosen |= {name for name, what in kind.items() if what == "norm"}
    if preset == "bitfit":
        chosen |= {name for name, what in kind.items() if name.endswith("bias") and what != "buffer"}
    # The statistics of a norm layer rest where its weight does.
    alive = {name.rpartition(".")[0] for name in chosen if name.endswith("weight")}
    return chosen | {name for name, what in kind.items() if what == "buffer" and name.rpartition(".")[0] in alive}
