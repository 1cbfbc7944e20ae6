"""Prompts in front of encoders, lists of blocks and single blocks, against longer sequences by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.finetune.peft.adapter import inject_adapters
from lightkit.finetune.peft.attention import attentions
from lightkit.finetune.peft.blocks import find_blocks
from lightkit.finetune.peft.lora import inject_lora
from lightkit.finetune.peft.merging import merged_state
from lightkit.finetune.peft.prefix import inject_prefixes
from lightkit.finetune.peft.prompt import inject_prompts
from lightkit.models.attention import Block
from tests.finetune.peft import injecting as on


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


LENGTH = 3


def text() -> Tensor:
    return torch.randn(4, 5, 16)


def layered(depth: int) -> nn.Module:
    """An encoder with a name in a network."""
    return nn.Sequential(on.encoder(depth=depth), nn.Linear(16, 3))


INPUTS: dict[str, tuple[on.Make, str, Callable[[], Tensor]]] = {
    "lightkit": (functools.partial(on.classifier, pool="cls"), "blocks", lambda: torch.randn(4, 6, 5)),
    "lightkit-rotary": (functools.partial(on.classifier, positions="rotary"), "blocks", lambda: torch.randn(4, 6, 5)),
    "lightkit-lm": (on.language_model, "blocks", lambda: torch.randint(0, 11, (4, 7))),
    "encoder": (lambda: layered(2), "0", text),
    "encoder-layers": (lambda: layered(2), "0.layers", text),
    "encoder-of-one": (lambda: layered(1), "0.layers", text),
    "sequence-first": (lambda: on.encoder(batch_first=False), "layers", lambda: torch.randn(5, 4, 16)),
    "torchvision-vit": (on.torchvision_vit, "encoder.layers", on.images),
    "timm-vit": (on.timm_vit, "blocks", on.images),
}
CASES = [(name, deep) for name in INPUTS for deep in (False, True)]
IDS = [f"{name}-{'deep' if deep else 'shallow'}" for name, deep in CASES]


def injector(path: str, *, deep: bool) -> on.Inject:
    return lambda model: inject_prompts(model, find_blocks(model) if deep else [path], length=LENGTH)


@pytest.mark.parametrize(("name", "deep"), CASES, ids=IDS)
class TestEverywhere:
    def test_nothing_of_the_base_changes(self, name: str, deep: bool) -> None:
        make, path, x = INPUTS[name]
        on.check_start(make, injector(path, deep=deep), x(), exact=False)

    def test_is_the_same_in_train_and_eval_mode(self, name: str, deep: bool) -> None:
        make, path, x = INPUTS[name]
        on.check_modes(make, injector(path, deep=deep), x())

    def test_learns(self, name: str, deep: bool) -> None:
        make, path, x = INPUTS[name]
        on.check_learning(make, injector(path, deep=deep), x())

    def test_is_copied_saved_and_loaded(self, name: str, deep: bool) -> None:
        make, path, x = INPUTS[name]
        on.check_copies(make, injector(path, deep=deep), x())

    def test_is_replicated(self, name: str, deep: bool) -> None:
        make, path, x = INPUTS[name]
        on.check_replica(make, injector(path, deep=deep), x())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["lightkit-rotary", "encoder", "timm-vit"])
def test_under_autocast(name: str) -> None:
    make, path, x = INPUTS[name]
    on.check_autocast(make, injector(path, deep=False), x())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["lightkit-lm", "encoder-layers"])
def test_compiled(name: str) -> None:
    make, path, x = INPUTS[name]
    on.check_compiled(make, injector(path, deep=False), x())


def prompted(make: on.Make, path: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """A network with a prompt, the plain one, and the prompt."""
    model, plain = on.made(make), on.made(make)
    names = inject_prompts(model, [path], length=LENGTH)
    on.stir(model, names)
    return model, plain, model.get_parameter(names[0]).detach()


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["0", "0.layers"])
def test_encoder_by_hand(path: str) -> None:
    model, plain, tokens = prompted(lambda: layered(2), path)
    x = text()
    expected = on.out(plain, torch.cat([tokens.expand(4, -1, -1), x], dim=1))[:, LENGTH:]
    torch.testing.assert_close(on.out(model, x), expected, atol=1e-5, rtol=1e-5)


def test_deep_by_hand() -> None:
    make = on.torchvision_vit
    model, plain = on.made(make), on.made(make)
    paths = find_blocks(model)
    on.stir(model, inject_prompts(model, paths, length=LENGTH))
    x = torch.randn(2, 5, 16)
    y = x
    for path in paths:
        tokens = model.get_submodule(path).prompt.tokens.detach()  # type: ignore[union-attr]
        y = on.out(plain.get_submodule(path), torch.cat([tokens.expand(2, -1, -1), y], dim=1))[:, LENGTH:]
    torch.testing.assert_close(on.out(model.get_submodule("encoder.layers"), x), y)


@pytest.mark.parametrize("name", ["lightkit-lm"])
@pytest.mark.parametrize("deep", [False, True])
def test_language_model_stays_causal(name: str, deep: bool) -> None:
    model = on.made(INPUTS[name][0])
    on.stir(model, injector("blocks", deep=deep)(model))
    tokens = torch.randint(0, 11, (2, 8))
    other = tokens.clone()
    other[:, 5:] = (tokens[:, 5:] + 1) % 11
    first, second = on.out(model, tokens), on.out(model, other)
    torch.testing.assert_close(first[:, :5], second[:, :5])
    torch.testing.assert_close(on.out(model, tokens[:, :5]), first[:, :5])


def test_sequence_without_a_batch() -> None:
    model, plain, tokens = prompted(lambda: layered(1), "0")
    x = torch.randn(5, 16)
    expected = on.out(plain, torch.cat([tokens, x]))[LENGTH:]
    torch.testing.assert_close(on.out(model, x), expected, atol=1e-5, rtol=1e-5)


def test_blocks_that_are_run_one_by_one() -> None:
    """As timm does for intermediate features: the list itself is never called."""
    model = on.made(on.timm_vit)
    on.stir(model, inject_prompts(model, ["blocks"], length=LENGTH))
    x = torch.randn(2, 5, 16)
    y = x
    with torch.no_grad():
        for block in model.blocks:  # type: ignore[union-attr]
            y = block(y)
    assert torch.equal(y, on.out(model.blocks, x))  # type: ignore[arg-type]
    assert y.shape == x.shape


def test_names_and_start() -> None:
    model = on.classifier()
    assert inject_prompts(model, ["blocks"], length=400) == ["blocks.0.prompt.tokens"]
    prompt = model.blocks[0].prompt  # type: ignore[index,union-attr]
    assert prompt.tokens.std().item() == pytest.approx(0.02, rel=0.1)
    assert repr(prompt) == "Prompt(length=400, width=16)"
    other = on.classifier()
    names = inject_prompts(other, ["blocks.0", "blocks.1"], length=400, init_std=0.5)
    assert names == ["blocks.0.prompt.tokens", "blocks.1.prompt.tokens"]
    assert other.get_parameter(names[0]).std().item() == pytest.approx(0.5, rel=0.1)


def test_goes_with_everything_else() -> None:
    """In the order in which a run puts them in."""
    model = on.frozen(on.made(on.timm_vit))
    x = on.images()
    names = inject_lora(model, {"blocks.0.attn.qkv": 2, "blocks.1.mlp.fc1": 2}, alpha=4.0, impl="wrap")
    names += inject_adapters(model, find_blocks(model), kind="parallel", reduction=4)
    names += inject_prefixes(model, attentions(model), length=2)
    names += inject_prompts(model, ["blocks"], length=LENGTH)
    on.stir(model, names, std=0.3)
    found = model(x)
    found.sum().backward()
    parameters = dict(model.named_parameters())
    assert not [name for name in names if parameters[name].grad is None]
    torch.testing.assert_close(on.out(model.train(), x), found.detach(), atol=1e-5, rtol=1e-5)
    with pytest.raises(UserError, match=r"cannot be merged(.|\n)*\(prompt\)"):
        merged_state(model)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "length": ({"length": 0}, r"^length: a prompt needs positions(.|\n)*received: 0"),
    "std": ({"init_std": -1.0}, "^init_std: all positions would stay equal"),
}


@pytest.mark.parametrize("case", BAD)
def test_options_that_cannot_be(case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(UserError, match=message):
        inject_prompts(on.encoder(), ["layers"], **options)


@pytest.mark.parametrize(
    ("make", "path", "message"),
    [
        (on.classifier, "head", r"head is no part of a network that works on a sequence(.|\n)*Linear"),
        (on.resnet18, "layer1.0", "layer1.0 is no part of a network"),
        (on.classifier, "block", r"no such module(.|\n)*nearest: blocks"),
        (on.encoder, "layers.0.self_attn", r"layers.0.self_attn can take no more positions(.|\n)*kind=prefix"),
        (on.torchvision_swin, "features.1", r"can take no more positions(.|\n)*received: *'features.1.0.attn'"),
        (on.torchvision_vit, "encoder", r"can take no more positions(.|\n)*received: *'encoder.pos_embedding'"),
    ],
)
def test_modules_that_cannot_be(make: on.Make, path: str, message: str) -> None:
    model = make()
    before = list(model.state_dict())
    with pytest.raises(UserError, match=message):
        inject_prompts(model, [path])
    assert list(model.state_dict()) == before


def test_blocks_have_one_prompt() -> None:
    model = on.encoder()
    inject_prompts(model, ["layers.0"])
    with pytest.raises(UserError, match="layers.0 already has something called prompt"):
        inject_prompts(model, ["layers"])


def test_inputs_and_outputs_that_are_no_sequence() -> None:
    class Pooling(Block):
        def forward(self, x: Tensor, rotary: Tensor | None = None) -> Tensor:
            return super().forward(x, rotary).mean(1, keepdim=True)

    model = nn.ModuleDict({"pooling": Pooling(16, 2), "block": Block(16, 2)})
    inject_prompts(model, ["pooling", "block"], length=LENGTH)
    with pytest.raises(UserError, match=r"does not fit pooling, whose output has fewer positions"):
        model["pooling"](torch.randn(2, 5, 16))
    with pytest.raises(UserError, match=r"a prompt needs a sequence(.|\n)*\(2, 2, 5, 16\)"):
        model["block"](torch.randn(2, 2, 5, 16))
    with pytest.raises(UserError, match=r"a prompt needs a sequence(.|\n)*list"):
        model["block"]([1])
