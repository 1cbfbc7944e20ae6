"""From a tuned network back to the plain one, also where layers make their weights of others (weight norm and such)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations as new

from lightkit.common.errors import UserError
from lightkit.finetune.names import NetworkNames
from lightkit.finetune.peft.injected import Injected
from lightkit.finetune.peft.lora import inject_lora
from lightkit.finetune.peft.lowrank import LowRank
from lightkit.finetune.peft.merging import merge, merged_state, plain_names
from lightkit.models import TransformerLM
from tests.conftest import Outcome
from tests.finetune.peft.networks import IMPLS, stir
from tests.finetune.whole import SHORT, content, same_bits

Cli = Callable[..., Outcome]
both = pytest.mark.parametrize("impl", IMPLS)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Extra(Injected):
    """Something that changes what a network computes, and is no part of the plain one."""

    label = "adapter"

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))


class Net(nn.Module):
    """Every kind of layer, a norm with statistics, a tensor of its own, and a layer of which weight norm made two."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8, padding_idx=0)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.conv = nn.Conv1d(8, 8, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm1d(8)
        self.scale = nn.Parameter(torch.ones(8))
        self.normed = new.weight_norm(nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.mix(x, x, x)[0]
        x = self.norm(self.conv(x.transpose(1, 2))).mean(dim=2) * self.scale
        return self.head(self.normed(x))


def tuned(impl: Any, *, dropout: float = 0.0) -> tuple[Net, Tensor]:
    model, x = Net(), torch.randint(0, 11, (4, 5))
    ranks = dict.fromkeys(("embed", "mix", "conv", "head"), 2)
    stir(model, inject_lora(model, ranks, alpha=4, impl=impl, dropout=dropout), std=0.4)
    model(x)  # statistics
    return model, x


def same_state(model: nn.Module, state: dict[str, Tensor]) -> bool:
    return all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@both
def test_names(impl: Any) -> None:
    assert plain_names(Net()) == {name: name for name in Net().state_dict()}
    model, _ = tuned(impl)
    model.mix.extra = Extra()
    names = plain_names(model)
    assert sorted(names.values()) == sorted(Net().state_dict())
    assert not [name for name in names if "lora" in name or "extra" in name]
    changed = {plain for live, plain in names.items() if live != plain}
    others = {"embed.weight", "conv.weight", "head.weight"} if impl == "parametrize" else set()
    assert changed == {"mix.in_proj_weight", "mix.out_proj.weight"} | others
    layer = nn.Linear(4, 4)
    shared = nn.ModuleDict({"a": layer, "b": layer})
    inject_lora(shared, {"a": 1}, alpha=1, impl=impl)
    assert set(plain_names(shared).values()) == {"a.weight", "a.bias", "b.weight", "b.bias"}


@both
def test_the_merged_state_is_that_of_the_plain_network(impl: Any) -> None:
    model, x = tuned(impl, dropout=0.5)
    before = copy.deepcopy(model.state_dict())
    merged, plain = merged_state(model), Net()
    assert not any(value.requires_grad for value in merged.values())
    plain.load_state_dict(merged, strict=True)
    assert torch.allclose(plain.eval()(x), model.eval()(x), atol=1e-5)
    assert same_state(model, before)


def test_what_cannot_be_merged_is_named() -> None:
    model, _ = tuned("wrap")
    model.mix.extra = Extra()
    message = r"cannot be merged.*\n.*expected: LoRA\n.*mix.extra \(adapter\)'\n.*beside the base"
    with pytest.raises(UserError, match=message):
        merged_state(model)
    for number in range(6):
        model.mix.add_module(f"extra{number}", Extra())
    with pytest.raises(UserError, match=r"… \(7 in all\)"):
        merged_state(model)
    with pytest.raises(UserError, match="no LoRA to merge"):
        merge(Net())


@both
def test_merging_in_place_and_back(impl: Any) -> None:
    model, x = tuned(impl)
    model.eval()
    before, output, state = model(x), merged_state(model), copy.deepcopy(model.state_dict())
    with merge(model) as merged:
        assert torch.allclose(model(x), before, atol=1e-5)
        assert all(torch.equal(output[name], value) for name, value in merged_state(model).items())
        assert not same_state(model, state)
        with pytest.raises(UserError, match="merged already\n.*undo"):
            merge(model)
    assert same_state(model, state)
    merged.undo()
    assert torch.equal(model(x), before)
    with pytest.raises(ZeroDivisionError), merge(model):
        raise ZeroDivisionError
    assert same_state(model, state)
    model(x).sum().backward()
    assert all(module.lora_A.grad.abs().sum() > 0 for module in model.modules() if isinstance(module, LowRank))


@both
def test_tied_weights_are_merged_once(impl: Any) -> None:
    model, x = TransformerLM(13, 8, dim=8, depth=1, heads=2), torch.randint(0, 13, (2, 8))
    stir(model, inject_lora(model, {"embed.values": 2}, alpha=2, impl=impl), std=0.4)
    output = model(x)
    with merge(model):
        assert torch.allclose(model(x), output, atol=1e-5)
    assert torch.equal(model(x), output)


# Layers that make their weights


def old_weight_norm(layer: nn.Module, **options: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer, **options)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear, one norm": (lambda: new.weight_norm(nn.Linear(6, 5), dim=None), (4, 6)),
    "conv, weight norm": (lambda: new.weight_norm(nn.Conv2d(4, 6, 3, groups=2)), (3, 4, 5, 5)),
    "conv, spectral norm": (lambda: new.spectral_norm(nn.Conv1d(4, 6, 3)), (3, 4, 7)),
    "linear, orthogonal": (lambda: new.orthogonal(nn.Linear(6, 6)), (4, 6)),
    "conv, old weight norm": (lambda: old_weight_norm(nn.Conv2d(4, 6, 3), dim=1), (3, 4, 5, 5)),
    "linear, old spectral norm": (lambda: nn.utils.spectral_norm(nn.Linear(6, 5)), (4, 6)),
}
EVERY = [(name, impl) for name in LAYERS for impl in IMPLS if impl == "wrap" or "old" not in name]


def network(name: str) -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    return nn.Sequential(build()).eval(), torch.randn(shape)


def adapted(name: str, impl: Any, *, learnt: bool = True) -> tuple[Any, Tensor]:
    model, x = network(name)
    for parameter in model.parameters():  # so that a norm is not that of the weight it was made of
        parameter.data.mul_(1.5)
    model(x)
    names = inject_lora(model, {"0": 2}, alpha=3.0, impl=impl)
    if learnt:
        stir(model, names, std=0.3)
    return model, x


def computed(layer: Any, x: Tensor, weight: Tensor) -> Tensor:
    """What a layer gives with a weight."""
    return (
        F.linear(x, weight, layer.bias) if isinstance(layer, nn.Linear) else layer._conv_forward(x, weight, layer.bias)
    )


@pytest.mark.parametrize(("name", "impl"), EVERY)
def test_the_product_is_added_to_what_the_layer_makes_and_merged_where_it_can_be(name: str, impl: str) -> None:
    plain, _ = adapted(name, impl, learnt=False)
    base = plain[0].weight.detach().clone()
    model, x = adapted(name, impl)
    (low,) = (module for module in model.modules() if isinstance(module, LowRank))
    with torch.no_grad():
        wanted = computed(model[0], x, base + (1.5 * low.lora_B @ low.lora_A).view(base.shape))
        output = model(x)
    torch.testing.assert_close(output, wanted, atol=1e-5, rtol=1e-5)
    state = copy.deepcopy(model.state_dict())
    if "weight norm" in name or "one norm" in name:
        fresh, _ = network(name)
        fresh.load_state_dict(merged_state(model), strict=True)
        torch.testing.assert_close(fresh(x), output, atol=1e-5, rtol=1e-5)
        with merge(model):
            assert not same_state(model, state)
            torch.testing.assert_close(model(x), output, atol=1e-5, rtol=1e-5)
    else:
        for merging in (merged_state, merge):
            with pytest.raises(UserError, match=r"cannot be merged[\s\S]*0.weight \(LoRA after \w+, which makes no su"):
                merging(model)
    assert torch.equal(model(x), output)
    assert same_state(model, state)


@pytest.mark.parametrize(("name", "impl"), EVERY)
def test_the_norm_rests_and_the_matrices_learn(name: str, impl: Any) -> None:
    model, x = network(name)
    model.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    names = inject_lora(model, {"0": 2}, alpha=3.0, impl=impl)
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD([parameters[key] for key in names], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
    assert all(parameters[key].grad.abs().sum() > 0 for key in names)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items() if key not in names)
    assert plain_names(model) == {key: key for key in before}


def test_low_precision() -> None:
    model, plain = (nn.Sequential(new.weight_norm(nn.Linear(6, 5))).to(torch.bfloat16).eval() for _ in range(2))
    stir(model, inject_lora(model, {"0": 2}, alpha=3.0), std=0.3)
    plain.load_state_dict(merged_state(model))
    x = torch.randn(4, 6, dtype=torch.bfloat16)
    torch.testing.assert_close(plain(x), model(x), atol=0.05, rtol=0.05)


def test_looking_at_a_weight_is_no_step_of_its_norm() -> None:
    model, _ = network("conv, spectral norm")
    model.train()
    before = copy.deepcopy(model.state_dict())
    inject_lora(model, {"0": 2}, alpha=3.0)
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert model[0].parametrizations.weight[0].training


def test_a_packed_projection_with_weight_norm() -> None:
    model, x = nn.Sequential(nn.MultiheadAttention(8, 2, batch_first=True)).eval(), torch.randn(2, 3, 8)
    new.weight_norm(model[0], "in_proj_weight")
    plain = copy.deepcopy(model)
    names = stir(model, inject_lora(model, {"0": 2}, alpha=3.0), std=0.3)
    assert "0.parametrizations.in_proj_weight.1.lora_A" in names
    plain.load_state_dict(merged_state(model), strict=True)
    torch.testing.assert_close(plain[0](x, x, x)[0], model[0](x, x, x)[0], atol=1e-5, rtol=1e-5)


def test_what_such_layers_refuse() -> None:
    for name in LAYERS:
        if "old" in name:
            with pytest.raises(
                UserError, match=r"a hook makes its weight anew[\s\S]*finetune.lora.impl=wrap"
            ) as caught:
                inject_lora(network(name)[0], {"0": 2}, alpha=3.0)
            assert (caught.value.key, caught.value.argument) == (None, "impl")
    attention = old_weight_norm(nn.MultiheadAttention(8, 2), name="in_proj_weight")
    with pytest.raises(UserError, match=r"a hook makes[\s\S]*fix: +one of torch.nn.utils.parametrizations"):
        inject_lora(nn.Sequential(attention), {"0": 2}, alpha=3.0, impl="wrap")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    new.spectral_norm(model[0]), new.spectral_norm(model[1])
    with pytest.raises(UserError, match=r"0\.parametrizations\.weight\.original, of which it is made, is also 1\."):
        inject_lora(model, {"0": 2}, alpha=3.0)
    again, _ = adapted("linear, one norm", "wrap")
    with pytest.raises(UserError, match="it has LoRA already"):
        inject_lora(again, {"0": 2}, alpha=3.0, impl="wrap")


def test_labels_find_normed_layers() -> None:
    model = nn.Sequential(new.weight_norm(nn.Linear(6, 5)), nn.Linear(5, 2))
    assert NetworkNames(model, head="1").find_modules(["@linear"], argument="k", kinds=(nn.Linear,)) == ["0"]


class Normed(nn.Module):
    """A network of which one layer is normed.

    Args:
        norm: `new`, `spectral` or `old`.
    """

    def __init__(self, in_features: int, num_classes: int, norm: str = "new") -> None:
        super().__init__()
        kinds = {"new": new.weight_norm, "spectral": new.spectral_norm, "old": old_weight_norm}
        self.body, self.head = kinds[norm](nn.Linear(in_features, 8)), nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


@pytest.mark.thorough
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("norm", "impl"), [("old", "wrap"), ("spectral", "parametrize")])
def test_a_run_is_trained_and_merged(cli: Cli, project: Path, norm: str, impl: str) -> None:
    network = ("model=custom", f"model._target_={__name__}.Normed", f"+model.norm={norm}", "data=wine", *SHORT)
    assert cli("train", *network, "hydra.run.dir=base", "trainer.epochs=1").code == 0
    tuning = ("finetune=lora", "finetune.weights.path=base", f"finetune.lora.impl={impl}", "finetune.lora.match=[body]")
    export = ("finetune.lora.rank=2", "checkpoint.export=weights", "trainer.epochs=1", "hydra.run.dir=run")
    assert cli("train", *network, *tuning, *export).code == 0
    before, after = content(project / "base")["model"], content(project / "run")["model"]
    moved = {name for name in before if not same_bits(before[name], after[name])}
    assert moved - {f"body.parametrizations.weight.0.{name}" for name in ("_u", "_v")} == {"head.weight", "head.bias"}
    done = cli("ckpt", "merge", "run", "merged.pt")
    if norm == "spectral":
        assert done.code == 2
        assert "body.weight (LoRA after _SpectralNorm" in done.err
        assert set(torch.load(project / "run" / "weights.pt", weights_only=True)) == set(after)
        return
    assert done.code == 0, done.err
    assert set(torch.load("merged.pt", weights_only=True)) == set(before)
    assert cli("eval", "run", "--checkpoint", "merged.pt").code == 0
