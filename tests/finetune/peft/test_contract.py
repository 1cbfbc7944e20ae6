"""What must hold whatever is put into a network: one table of methods, each in the networks that differ for it."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.finetune.peft.adapter import inject_adapters
from lightkit.finetune.peft.blocks import attentions, find_blocks
from lightkit.finetune.peft.injected import injected_modules
from lightkit.finetune.peft.merging import plain_names
from lightkit.finetune.peft.prefix import inject_prefixes
from lightkit.models import ResNet
from tests.finetune.peft import networks as on

Case = tuple[on.Make, on.Inject, on.Inputs]
NETWORKS: dict[str, tuple[on.Make, on.Inputs]] = {
    "lightkit": (functools.partial(on.classifier, positions="rotary", pool="cls"), on.numbers((4, 6, 5))),
    "lightkit-lm": (on.language_model, lambda: (torch.randint(0, 11, (4, 7)),)),
    "encoder": (on.encoder, on.numbers((4, 5, 16))),
    "torchvision-swin": (on.torchvision_swin, lambda: (on.images(32),)),
    "timm-vit": (functools.partial(on.timm_vit, qk_norm=True), lambda: (on.images(),)),
    "resnet": (lambda: ResNet((3, 16, 16), 3, width=8), lambda: (on.images(),)),
    "translator": (lambda: on.Translator(batch_first=False), on.numbers((4, 5, 16))),
}
METHODS: dict[str, tuple[on.Inject, tuple[str, ...]]] = {
    "pfeiffer": (lambda m: inject_adapters(m, find_blocks(m), reduction=4), ("lightkit", "encoder", "resnet")),
    "parallel": (lambda m: inject_adapters(m, find_blocks(m), kind="parallel", reduction=4), ("encoder", "resnet")),
    "houlsby": (lambda m: inject_adapters(m, find_blocks(m), kind="houlsby", reduction=4), ("encoder", "timm-vit")),
    "prefix": (
        lambda m: inject_prefixes(m, attentions(m), length=3),
        ("lightkit", "lightkit-lm", "torchvision-swin", "timm-vit", "translator"),
    ),
    **{
        impl: (functools.partial(on.with_lora, impl=impl, learnt=False), ("linear", "conv2d", "embedding", "attention"))
        for impl in on.IMPLS
    },
}
CASES: dict[str, Case] = {}
for _method, (_inject, _names) in METHODS.items():
    for _name in _names:
        _make, _inputs = NETWORKS.get(_name) or on.LAYERS[_name]
        _around = _make if _name in NETWORKS else lambda make=_make: on.Around(make())
        CASES[f"{_method} in {_name}"] = _around, _inject, _inputs


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@contextmanager
def without_fast_path() -> Iterator[None]:
    """PyTorch's kernels for encoder layers in eval mode round otherwise, and step aside where there are hooks."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def check_start(make: on.Make, inject: on.Inject, x: tuple[Tensor, ...]) -> None:
    """The network computes what it did before, none of its tensors changed, and the names given are the new ones."""
    model = on.made(make)
    fast, state = on.out(model, *x), bits(model)
    with without_fast_path():
        before = model(*x)  # with gradients: without them a linear layer may round otherwise
        new = inject(model)
        assert torch.equal(model(*x), before)
    torch.testing.assert_close(on.out(model, *x), fast, atol=1e-5, rtol=1e-5)
    after, plain = bits(model), plain_names(model)
    assert [name for name, _ in model.named_parameters() if name not in plain] == new
    assert new
    assert sorted(plain.values()) == sorted(state)
    assert all(torch.equal(after[name], state[before]) for name, before in plain.items())
    assert {name for path, _ in injected_modules(model) for name in new if name.startswith(f"{path}.")} == set(new)


def check_modes(make: on.Make, inject: on.Inject, x: tuple[Tensor, ...]) -> None:
    """What was put in counts, and equally so in train and in eval mode, with and without gradients."""
    model = frozen(on.made(make))
    before = on.out(model, *x)
    on.stir(model, inject(model))
    changed = on.out(model, *x)
    assert not torch.allclose(changed, before, atol=1e-3)
    torch.testing.assert_close(model(*x), changed, atol=1e-5, rtol=1e-5)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.eval()
    torch.testing.assert_close(on.out(model, *x), changed, atol=1e-5, rtol=1e-5)


def check_learning(make: on.Make, inject: on.Inject, x: tuple[Tensor, ...]) -> None:
    """Every new parameter has got a gradient after two steps, and moved; nothing else did."""
    model = frozen(on.made(make))
    state = bits(model)
    names = inject(model)
    start, parameters, reached = bits(model), dict(model.named_parameters()), set[str]()
    optimizer = torch.optim.Adam([parameters[name] for name in names], lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        (model(*x) ** 2).sum().backward()
        reached |= {name for name in names if parameters[name].grad is not None and parameters[name].grad.any()}
        optimizer.step()
    assert reached == set(names)
    assert not [name for name in names if torch.equal(start[name], parameters[name])]
    after = model.state_dict()
    assert all(torch.equal(after[name], state[before]) for name, before in plain_names(model).items())


def check_copies(make: on.Make, inject: on.Inject, x: tuple[Tensor, ...]) -> None:
    """State dicts, pickles, copies and replicas compute the same bits and are independent."""
    model, fresh = on.made(make), on.made(make)
    names = inject(model)
    on.stir(model, names)
    expected = on.out(model, *x)
    inject(fresh)
    fresh.load_state_dict(model.state_dict())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    pickled = torch.load(file, weights_only=False)
    assert [*pickled.state_dict()] == [*model.state_dict()]
    twin = copy.deepcopy(model)
    for other in (fresh, pickled, copy.deepcopy(pickled), twin):
        assert torch.equal(on.out(other, *x), expected)
    on.stir(twin, names, seed=8)
    assert not torch.equal(on.out(twin, *x), expected)
    assert torch.equal(on.out(model, *x), expected)
    replica = _replica(model, twin)  # as `nn.DataParallel` makes it; it works with its own tensors
    torch.testing.assert_close(on.out(replica, *x), on.out(twin, *x), atol=1e-5, rtol=1e-5)


def _replica(model: nn.Module, source: nn.Module) -> nn.Module:
    """`model` replicated as by `torch.nn.parallel.replicate`, with the tensors of `source`."""
    copies = {id(module): module._replicate_for_data_parallel() for module in model.modules()}
    for module in model.modules():
        for name, child in module._modules.items():
            setattr(copies[id(module)], name, None if child is None else copies[id(child)])
    for path, module in model.named_modules():
        for name, tensor in source.get_submodule(path)._parameters.items():
            setattr(copies[id(module)], name, None if tensor is None else tensor.detach())
    return copies[id(model)]


def check_compiled(make: on.Make, inject: on.Inject, x: tuple[Tensor, ...]) -> None:
    """torch.compile takes the network in one graph."""
    torch._dynamo.reset()
    model = on.made(make)
    on.stir(model, inject(model))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(on.out(compiled, *x), on.out(model, *x), atol=1e-5, rtol=1e-5)
    gradients: list[Any] = []
    for network in (compiled, model):
        model.zero_grad()
        network(*x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients, atol=1e-3, rtol=1e-3)


def check_autocast(make: on.Make, inject: on.Inject, x: tuple[Tensor, ...]) -> None:
    """Near the full-precision output, and of the type that the plain network has off PyTorch's fast path."""
    model = on.made(make)
    with without_fast_path(), torch.autocast("cpu", dtype=torch.bfloat16):
        kind = on.out(model, *x).dtype
    on.stir(model, inject(model), std=0.1)
    expected = on.out(model, *x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = on.out(model, *x)
        (model(*x) ** 2).sum().backward()
    assert low.dtype == kind
    torch.testing.assert_close(low.float(), expected.float(), atol=0.15, rtol=0.1)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("check", [check_start, check_modes, check_learning, check_copies])
def test_it_holds(name: str, check: Callable[..., None]) -> None:
    make, inject, inputs = CASES[name]
    check(make, inject, inputs())


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({*CASES} - {"prefix in torchvision-swin"}))
@pytest.mark.parametrize("check", [check_autocast, check_compiled])
def test_it_holds_where_networks_run_otherwise(name: str, check: Callable[..., None]) -> None:
    make, inject, inputs = CASES[name]
    check(make, inject, inputs())
