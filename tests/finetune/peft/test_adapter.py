"""Adapters of every kind in every kind of block."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.finetune.peft.adapter import Adapter, inject_adapters
from lightkit.finetune.peft.blocks import find_blocks
from lightkit.finetune.peft.lora import inject_lora
from lightkit.finetune.peft.merging import merged_state
from lightkit.models import ResNet
from tests.finetune.peft import networks as on


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def adapted(layer: nn.Module, **options: Any) -> Any:
    """A layer with an adapter that does something."""
    around = nn.ModuleDict({"layer": layer})
    on.stir(around, inject_adapters(around, ["layer"], **{"reduction": 2, **options}))
    return layer


def bottleneck(adapter: Adapter, x: Tensor) -> Tensor:
    low = F.gelu(F.linear(x, adapter.down_weight, adapter.down_bias))
    return F.linear(low, adapter.up_weight, adapter.up_bias)


def hosts(model: nn.Module) -> list[str]:
    return [path for path, module in model.named_modules() if hasattr(module, "adapter")]


def test_number_and_place_of_each_kind() -> None:
    for kind, expected in (
        ("pfeiffer", ["layers.0", "layers.1"]),
        ("parallel", ["layers.0", "layers.1"]),
        ("houlsby", [f"layers.{i}.{part}" for i in (0, 1) for part in ("self_attn", "linear2")]),
    ):
        model = on.encoder()
        names = inject_adapters(model, find_blocks(model), kind=kind, reduction=4)  # type: ignore[arg-type]
        assert hosts(model) == expected
        ends = ("down_weight", "down_bias", "up_weight", "up_bias")
        assert names[:4] == [f"{expected[0]}.adapter.{end}" for end in ends]
    decoder = nn.ModuleDict({"layer": nn.TransformerDecoderLayer(8, 2, 16)})
    inject_adapters(decoder, ["layer"], kind="houlsby")
    assert hosts(decoder) == ["layer.self_attn", "layer.multihead_attn", "layer.linear2"]


def test_by_hand() -> None:
    x = torch.randn(3, 4)
    layer = nn.Linear(4, 6)
    plain = layer(x)
    adapted(layer, scale=2.0)
    torch.testing.assert_close(layer(x), plain + 2.0 * bottleneck(layer.adapter, plain))  # type: ignore[arg-type]
    beside = nn.Linear(4, 6)
    plain = beside(x)
    adapted(beside, kind="parallel", width=5)
    torch.testing.assert_close(beside(input=x), plain + bottleneck(beside.adapter, x))  # type: ignore[arg-type]
    several = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 6))  # which does not run it as one of its layers
    plain = several(x)
    adapted(several)
    assert type(several[-1]) is Adapter
    torch.testing.assert_close(several(x), plain + bottleneck(several.adapter, plain))  # type: ignore[arg-type]


def test_houlsby_by_hand() -> None:
    block: Any = on.made(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    x = torch.randn(2, 5, 8)
    adapted(block, kind="houlsby")
    y = block.norm1(x + block.self_attn(x, x, x)[0])
    plain = F.linear(F.relu(block.linear1(y)), block.linear2.weight, block.linear2.bias)
    expected = block.norm2(y + plain + bottleneck(block.linear2.adapter, plain))
    torch.testing.assert_close(on.out(block, x), expected)


@pytest.mark.parametrize("kind", ["pfeiffer", "parallel"])
@pytest.mark.parametrize("size", [(7,), (7, 8), (5, 4, 6)])
def test_signals_images_and_volumes_with_strides(kind: str, size: tuple[int, ...]) -> None:
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(size) - 1]
    layer, x = convolution(4, 6, 3, padding=1, stride=2), torch.randn(2, 4, *size)
    plain = layer(x)
    adapter = adapted(layer, kind=kind).adapter
    source = x[(slice(None), slice(None), *(slice(None, None, 2) for _ in size))] if kind == "parallel" else plain
    expected = plain + bottleneck(adapter, source.movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("kind", ["pfeiffer", "parallel"])
def test_channels_last_stays_channels_last(kind: Any) -> None:
    model = on.made(lambda: ResNet((3, 16, 16), 3, width=8))
    on.stir(model, inject_adapters(model, find_blocks(model), kind=kind, reduction=4), std=0.1)
    x, seen = on.images(), list[bool]()
    expected = on.out(model, x)
    last = model.get_submodule(find_blocks(model)[-2])
    last.register_forward_hook(lambda m, a, y: seen.append(y.is_contiguous(memory_format=torch.channels_last)))
    model.to(memory_format=torch.channels_last)
    again = on.out(model, x.to(memory_format=torch.channels_last))
    assert seen == [True]
    torch.testing.assert_close(again, expected, atol=1e-4, rtol=1e-4)


def test_dropout_precision_mode_and_activation() -> None:
    layer, x = adapted(nn.Linear(4, 32).double().eval(), dropout=0.5), torch.randn(3, 4).double()
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    assert not layer.adapter.training
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    for activation in ("relu", "silu", "tanh", "identity"):
        other = adapted(nn.Linear(4, 6), activation=activation)
        assert other(torch.randn(2, 4)).isfinite().all()
        assert f"6 → 3 → 6, {activation}, scale=1" in repr(other)


def test_goes_with_lora() -> None:
    model, x = on.made(on.timm_vit), on.images()
    before = on.out(model, x)
    inject_lora(model, {"blocks.0.attn.qkv": 2, "blocks.0.mlp.fc2": 2}, alpha=4.0)
    assert len(inject_adapters(model, ["blocks.0", "blocks.0.mlp.fc2"], kind="pfeiffer")) == 8
    assert torch.equal(on.out(model, x), before)
    with pytest.raises(UserError, match=r"cannot be merged(.|\n)*blocks.0.adapter \(adapter\)"):
        merged_state(model)


def test_padding_in_eval_mode() -> None:
    """The encoder's nested tensors and the layers' fast path would leave the adapter out, or stumble over it."""
    model = on.made(on.encoder).requires_grad_(False)
    x, padding = torch.randn(3, 5, 16), torch.arange(5) >= torch.tensor([[5], [3], [2]])
    on.stir(model, inject_adapters(model, find_blocks(model), reduction=4))
    evaluated = model(x, src_key_padding_mask=padding)
    model.train()
    torch.testing.assert_close(evaluated, model(x, src_key_padding_mask=padding), atol=1e-5, rtol=1e-5)


def test_one_module_in_two_places_gets_one() -> None:
    shared = nn.Linear(4, 4)
    assert len(inject_adapters(nn.Sequential(shared, nn.ReLU(), shared), ["0", "2"], reduction=2)) == 4


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Block(nn.Module):
    """Computes something else than its layers tell."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.fc = what, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        wide = torch.cat([y, y], -1)
        return {"wide": wide, "dict": {"y": y}, "short": y[:, 1:], "pair": Pair(y, x)}[self.what]


def test_first_of_several_outputs() -> None:
    lstm, x = nn.LSTM(4, 3, bidirectional=True, batch_first=True), torch.randn(2, 5, 4)
    plain, (hidden, _) = lstm(x)
    adapted(lstm)
    output, (same, _) = lstm(x)
    assert torch.equal(same, hidden)
    torch.testing.assert_close(output, plain + bottleneck(lstm.adapter, plain))  # type: ignore[arg-type]
    block, x = Block("pair"), torch.randn(2, 8)
    before = block(x)
    pair = adapted(block)(x)
    assert type(pair) is Pair
    assert not torch.equal(pair.first, before.first)
    assert torch.equal(pair.second, x)


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("wide", "pfeiffer", r"does not fit odd: features are not as many(.|\n)*8 in the last or second"),
        ("dict", "pfeiffer", r"the output of odd is no tensor(.|\n)*dict"),
        ("short", "parallel", "does not fit odd: its input and output have other positions"),
    ],
)
def test_blocks_that_compute_something_else(what: str, kind: Any, message: str) -> None:
    model = nn.ModuleDict({"odd": Block(what)})
    inject_adapters(model, ["odd"], kind=kind)
    with pytest.raises(UserError, match=message):
        model["odd"](torch.randn(2, 3, 8))


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("layers.0", {"kind": "lora"}, r"^kind: no such kind(.|\n)*houlsby, pfeiffer, parallel"),
    ("layers.0", {"activation": "gelo"}, r"^activation: unknown(.|\n)*nearest: gelu"),
    ("layers.0", {"dropout": 1.0}, "^dropout: not a probability"),
    ("layers.0", {"scale": 0.0}, "^scale: the adapter would add nothing"),
    ("layers.0", {"width": 17}, r"^width: no width for the bottleneck in layers.0(.|\n)*1 to 16"),
    ("layers.0", {"width": 0}, "^width: no width"),
    ("layers.0", {"reduction": 17}, r"^reduction: no width(.|\n)*16 wide(.|\n)*received: 17"),
    ("layers.0", {"reduction": 0}, "^reduction: no width"),
    ("layers.9", {}, r"no such module(.|\n)*nearest: layers.1"),
    ("layers", {}, "layers is a list of modules"),
    ("layers.0.dropout", {}, "layers.0.dropout has no layer in it, so its width is unknown"),
    ("layers.0.linear1", {"kind": "houlsby"}, r"no attention and feed-forward(.|\n)*kind=pfeiffer"),
]


@pytest.mark.parametrize(("path", "options", "message"), BAD)
def test_what_cannot_be(path: str, options: dict[str, Any], message: str) -> None:
    model = on.encoder()
    before = list(model.state_dict())
    with pytest.raises(UserError, match=message):
        inject_adapters(model, [path], **options)
    assert list(model.state_dict()) == before


def test_none_and_two_are_refused() -> None:
    model = on.encoder()
    with pytest.raises(UserError, match="there is no module to put it into"):
        inject_adapters(model, [])
    inject_adapters(model, ["layers.0"])
    with pytest.raises(UserError, match="layers.0 already has something called adapter"):
        inject_adapters(model, ["layers.0"])
