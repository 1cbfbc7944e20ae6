"""Networks prepared for fine-tuning with some options, the others as they are by default."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from lightkit.config.schema.finetune import FinetuneConfig
from lightkit.finetune.prepare import Prepared, prepare
from lightkit.models import TransformerClassifier
from lightkit.optim.layers import layer_depths


def options(**given: Any) -> dict[str, Any]:
    found = asdict(FinetuneConfig())
    for name, value in given.items():
        found[name] = {**found[name], **value} if isinstance(found[name], dict) else value
    return found


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return TransformerClassifier((6, 4), 3, dim=16, depth=2, heads=2)


def prepared(model: nn.Module, *, outputs: int | None = 3, fresh: Any = (), **given: Any) -> Prepared:
    lengths = {"steps_per_epoch": 10, "total_steps": 100}
    return prepare(model, options(**given), outputs=outputs, depths=layer_depths, fresh=fresh, **lengths)


def trainable(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}
