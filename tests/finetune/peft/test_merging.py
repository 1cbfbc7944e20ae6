"""From a tuned network back to the plain one: names, merged states, merging in place and undoing it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.finetune.peft.injected import Injected
from lightkit.finetune.peft.lora import inject_lora
from lightkit.finetune.peft.lowrank import LowRank
from lightkit.finetune.peft.merging import merge, merged_state, plain_names
from lightkit.models import ResNet, TransformerLM

IMPLS = ("parametrize", "wrap")


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
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.mix(x, x, x)[0]
        x = self.norm(self.conv(x.transpose(1, 2))).mean(dim=2) * self.scale
        return self.head(self.normed(x))


PATHS = ("embed", "mix", "conv", "head")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def tuned(impl: str, *, dropout: float = 0.0) -> tuple[Net, Tensor]:
    model, x = Net(), torch.randint(0, 11, (4, 5))
    inject_lora(model, dict.fromkeys(PATHS, 2), alpha=4, impl=impl, dropout=dropout)
    learn(model)
    model(x)  # statistics
    return model, x


def learn(model: nn.Module) -> None:
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, LowRank):
                module.lora_A.normal_(std=0.4)
                module.lora_B.normal_(std=0.4)


def test_a_plain_network_has_plain_names():
    names = plain_names(Net())
    assert names == {name: name for name in Net().state_dict()}
    assert "normed.parametrizations.weight.original0" in names


@pytest.mark.parametrize("impl", IMPLS)
def test_names(impl):
    model, _ = tuned(impl)
    model.mix.extra = Extra()
    names = plain_names(model)
    assert set(names.values()) == set(Net().state_dict())
    assert len(names) == len(Net().state_dict())
    assert not [name for name in names if "lora" in name or "extra" in name]
    assert names["mix.parametrizations.in_proj_weight.original"] == "mix.in_proj_weight"
    changed = {plain for live, plain in names.items() if live != plain}
    attention = {"mix.in_proj_weight", "mix.out_proj.weight"}
    others = {"embed.weight", "conv.weight", "head.weight"} if impl == "parametrize" else set()
    assert changed == attention | others


@pytest.mark.parametrize("impl", IMPLS)
def test_names_of_shared_layers(impl):
    layer = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": layer, "b": layer})
    inject_lora(model, {"a": 1}, alpha=1, impl=impl)
    assert set(plain_names(model).values()) == {"a.weight", "a.bias", "b.weight", "b.bias"}


@pytest.mark.parametrize("impl", IMPLS)
def test_the_merged_state_is_that_of_the_plain_network(impl):
    model, x = tuned(impl, dropout=0.5)
    before = copy.deepcopy(model.state_dict())
    merged, plain = merged_state(model), Net()
    assert not any(value.requires_grad for value in merged.values())
    plain.load_state_dict(merged, strict=True)
    assert torch.allclose(plain.eval()(x), model.eval()(x), atol=1e-5)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


NETWORKS = {
    "resnet": (lambda: ResNet((3, 8, 8), 4, width=8), lambda: [torch.randn(2, 3, 8, 8)]),
    "language model": (
        lambda: TransformerLM(13, 8, dim=8, depth=2, heads=2),
        lambda: [torch.randint(0, 13, (2, 8))],
    ),
    "encoder and decoder": (
        lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
        lambda: [torch.randn(2, 3, 8), torch.randn(2, 4, 8)],
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("impl", IMPLS)
def test_whole_networks(name, impl):
    build, inputs = NETWORKS[name]
    model, plain, x = build(), build(), inputs()
    kinds = (nn.Linear, nn.Conv2d, nn.Embedding, nn.MultiheadAttention)
    paths = [path for path, module in model.named_modules() if isinstance(module, kinds)]
    inject_lora(model, dict.fromkeys(paths, 2), alpha=2, impl=impl)
    learn(model)
    plain.load_state_dict(merged_state(model), strict=True)
    with torch.no_grad():
        mine, its = model.eval()(*x), plain.eval()(*x)
        assert (mine - its).abs().max() < 1e-5 * max(1.0, its.abs().max())


def test_what_cannot_be_merged_is_named():
    model, _ = tuned("wrap")
    model.mix.extra = Extra()
    message = r"cannot be merged.*\n.*expected: LoRA\n.*mix.extra \(adapter\)'\n.*beside the base"
    with pytest.raises(UserError, match=message):
        merged_state(model)
    for number in range(6):
        model.mix.add_module(f"extra{number}", Extra())
    with pytest.raises(UserError, match=r"… \(7 in all\)"):
        merged_state(model)


@pytest.mark.parametrize("impl", IMPLS)
def test_merging_in_place_and_back(impl):
    model, x = tuned(impl)
    model.eval()
    before, output, state = model(x), merged_state(model), copy.deepcopy(model.state_dict())
    with merge(model) as merged:
        assert torch.allclose(model(x), before, atol=1e-5)
        assert all(torch.equal(output[name], value) for name, value in merged_state(model).items())
        assert not torch.equal(state_of(model, "head.weight"), state[live(model, "head.weight")])
        with pytest.raises(UserError, match="merged already\n.*undo"):
            merge(model)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert torch.equal(model(x), before)
    merged.undo()
    assert torch.equal(model(x), before)


def live(model: nn.Module, plain: str) -> str:
    return next(name for name, other in plain_names(model).items() if other == plain)


def state_of(model: nn.Module, plain: str) -> Tensor:
    return model.state_dict()[live(model, plain)]


@pytest.mark.parametrize("impl", IMPLS)
def test_an_error_undoes_it(impl):
    model, x = tuned(impl)
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(ZeroDivisionError), merge(model):
        raise ZeroDivisionError
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    model(x).sum().backward()
    assert all(module.lora_A.grad.abs().sum() > 0 for module in model.modules() if isinstance(module, LowRank))


@pytest.mark.parametrize("impl", IMPLS)
def test_tied_weights_are_merged_once(impl):
    model, x = TransformerLM(13, 8, dim=8, depth=1, heads=2), torch.randint(0, 13, (2, 8))
    inject_lora(model, {"embed.values": 2}, alpha=2, impl=impl)
    learn(model)
    output = model(x)
    with merge(model):
        assert torch.allclose(model(x), output, atol=1e-5)
    assert torch.equal(model(x), output)


def test_nothing_to_merge():
    with pytest.raises(UserError, match="no LoRA to merge"):
        merge(Net())
