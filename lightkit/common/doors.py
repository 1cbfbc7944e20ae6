"""What is chosen by a name alone, and the classes and functions behind the names that lightkit brings.

A project or an installed package adds names of its own: see `lightkit.config.doors`. Nothing may compare such a name;
what one does is an attribute of the class or function behind it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

SHIPPED: Mapping[str, Mapping[str, str]] = {
    "sweep.engine": {
        "local": "lightkit.sweep.engines.local.LocalEngine",
        "slurm": "lightkit.sweep.engines.slurm.SlurmEngine",
        "ray": "lightkit.sweep.engines.ray.RayEngine",
    },
    "device.parallel": {
        "none": "lightkit.device.parallel.Parallel",
        "dp": "lightkit.device.parallel.DataParallel",
        "ddp": "lightkit.device.parallel.Distributed",
        "fsdp": "lightkit.device.parallel.Sharded",
    },
    "data.sampler": {
        "shuffle": "lightkit.data.samplers.Shuffled",
        "none": "lightkit.data.samplers.InOrder",
        "balanced": "lightkit.data.samplers.Balanced",
        "weighted": "lightkit.data.samplers.ByWeight",
        "length": "lightkit.data.samplers.ByLength",
    },
    "data.leak_check": {"sample": "lightkit.doctor.checks.look_for_leaks"},
    "loss.weight": {"balanced": "lightkit.data.row_facts.balanced"},
    "new": {kind.lower(): f"lightkit.cli.new.{kind}Project" for kind in ("Own", "Csv", "Images", "Timm", "Text")},
    "export": {
        "pt2": "lightkit.runner.program.Program",
        "onnx": "lightkit.runner.export_onnx.Onnx",
        "folder": "lightkit.runner.export_folder.Pretrained",
    },
    "find": {
        "lr": "lightkit.cli.find.suggest_lr",
        "batch": "lightkit.cli.find.suggest_batch",
        "workers": "lightkit.cli.find.suggest_workers",
        "rows": "lightkit.cli.find.suggest_rows",
    },
    "doctor": {
        "machine": "lightkit.doctor.machine.check",
        "training step": "lightkit.doctor.training.first_steps.check",
        "labels": "lightkit.doctor.data.labels.check",
        "splits": "lightkit.doctor.data.overlap.check",
        "order": "lightkit.doctor.data.order.check",
        "answers": "lightkit.doctor.data.neighbours.check",
        "pictures": "lightkit.doctor.data.features.check_pictures",
        "features": "lightkit.doctor.data.features.check",
        "leaks": "lightkit.doctor.data.leaks.check",
        "scale": "lightkit.doctor.data.features.check_scale",
        "augmentation": "lightkit.doctor.data.augmentation.check",
        "initial loss": "lightkit.doctor.training.outputs.check",
        "loss": "lightkit.doctor.training.loss.check_answers",
        "loss of rows": "lightkit.doctor.training.loss.check",
        "structure": "lightkit.doctor.training.structure.check",
        "gradients": "lightkit.doctor.training.flow.check_gradients",
        "activations": "lightkit.doctor.training.flow.check_activations",
        "causality": "lightkit.doctor.training.outputs.check_causality",
        "evaluation": "lightkit.doctor.training.evaluation.check",
        "checkpoint": "lightkit.doctor.training.saving.check",
        "speed": "lightkit.doctor.machine.check_speed",
        "one batch": "lightkit.doctor.training.trials.check",
        "baselines": "lightkit.doctor.baselines.check",
    },
}
"""By the key or command that takes the name: names, each with the dotted path of what it stands for."""


def import_path(path: str) -> Any:
    """Import the object at a dotted path of lightkit's own, or at `module:name`."""
    module, _, name = path.replace(":", ".").rpartition(".")
    return getattr(importlib.import_module(module), name)
