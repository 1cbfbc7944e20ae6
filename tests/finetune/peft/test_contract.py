"""What must hold whatever is put into a network: LoRA on each kind of layer, adapters and prefixes in many networks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.finetune.peft.adapter import inject_adapters
from lightkit.finetune.peft.attention import attentions
from lightkit.finetune.peft.blocks import find_blocks
from lightkit.finetune.peft.lora import inject_lora
from lightkit.finetune.peft.prefix import inject_prefixes
from lightkit.models import CNN, ResNet
from tests.finetune.peft import injecting as on
from tests.finetune.peft.low_rank import IMPLS, LAYERS, Around

Case = tuple[on.Make, on.Inject, Callable[[], tuple[Tensor, ...]]]


def of(draw: Callable[..., Tensor], *sizes: Any) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (draw(*sizes),)


NETWORKS: dict[str, tuple[on.Make, Callable[[], tuple[Tensor, ...]]]] = {
    "lightkit": (functools.partial(on.classifier, positions="rotary", pool="cls"), of(torch.randn, 4, 6, 5)),
    "lightkit-lm": (on.language_model, of(torch.randint, 0, 11, (4, 7))),
    "encoder": (on.encoder, of(torch.randn, 4, 5, 16)),
    "encoder-norm-first": (lambda: on.encoder(norm_first=True), of(torch.randn, 4, 5, 16)),
    "encoder-sequence-first": (lambda: on.encoder(batch_first=False), of(torch.randn, 5, 4, 16)),
    "torchvision-vit": (on.torchvision_vit, of(on.images)),
    "torchvision-swin": (on.torchvision_swin, of(on.images, 32)),
    "timm-vit": (on.timm_vit, of(on.images)),
    "resnet": (lambda: ResNet((3, 16, 16), 3, width=8), of(on.images)),
    "cnn": (lambda: CNN((3, 16, 16), 3, channels=(8, 16)), of(on.images)),
    "translator": (on.Translator, of(torch.randn, 4, 5, 16)),
    "translator-sequence-first": (lambda: on.Translator(batch_first=False), of(torch.randn, 4, 5, 16)),
    "timm-vit-norms": (lambda: on.timm_vit(qk_norm=True), of(on.images)),
}
WITHOUT_ATTENTION = ("resnet", "cnn")
FOR_PREFIXES = ("translator", "translator-sequence-first", "timm-vit-norms")


def adapters(kind: str) -> on.Inject:
    return lambda model: inject_adapters(model, find_blocks(model), kind=kind, reduction=4)  # type: ignore[arg-type]


def prefixes(model: nn.Module) -> list[str]:
    return inject_prefixes(model, attentions(model), length=3)


def low_rank(impl: str) -> on.Inject:
    return lambda model: inject_lora(model, {"layer": 2}, alpha=3.0, impl=impl)  # type: ignore[arg-type]


def around(build: on.Make) -> on.Make:
    return lambda: Around(build())


CASES: dict[str, Case] = {}
for _name, (_make, _inputs) in NETWORKS.items():
    for _kind in ("pfeiffer", "parallel", "houlsby") if _name not in FOR_PREFIXES else ():
        if _kind != "houlsby" or _name not in WITHOUT_ATTENTION:
            CASES[f"{_kind} in {_name}"] = _make, adapters(_kind), _inputs
    if _name not in WITHOUT_ATTENTION:
        CASES[f"prefix in {_name}"] = _make, prefixes, _inputs
for _name, (_make, _inputs) in LAYERS.items():
    CASES |= {f"{impl} on {_name}": (around(_make), low_rank(impl), _inputs) for impl in IMPLS}
CORE = {
    *(f"{kind} in {name}" for kind in ("pfeiffer", "parallel", "prefix") for name in ("lightkit", "encoder")),
    *(f"{kind} in resnet" for kind in ("pfeiffer", "parallel")),
    *("houlsby in encoder", "prefix in torchvision-swin", "prefix in timm-vit", "houlsby in timm-vit"),
    *(f"{impl} on {name}" for impl in IMPLS for name in ("linear", "conv2d, groups", "embedding", "attention")),
}
"""Those that every run of the tests looks at."""
CHECKS = [on.check_start, on.check_modes, on.check_learning, on.check_copies, on.check_replica]
EVERY = [pytest.param(name, marks=() if name in CORE else pytest.mark.thorough, id=name) for name in CASES]


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "check", [on.check_start, on.check_modes, on.check_learning, on.check_copies, on.check_replica]
)
def test_it_holds(name: str, check: Callable[..., None]) -> None:
    make, inject, inputs = CASES[name]
    check(make, inject, inputs())


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(CORE - {"prefix in torchvision-swin"}))
@pytest.mark.parametrize("check", [on.check_average, on.check_autocast, on.check_compiled])
def test_it_holds_where_networks_run_otherwise(name: str, check: Callable[..., None]) -> None:
    make, inject, inputs = CASES[name]
    check(make, inject, inputs())
