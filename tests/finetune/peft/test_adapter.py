"""Adapters of every kind in every kind of block."""

from __future__ import annotations

from typing import Any

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
from tests.finetune.peft import injecting as on


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def injector(kind: str, **options: Any) -> on.Inject:
    options = {"reduction": 4, **options}
    return lambda model: inject_adapters(model, find_blocks(model), kind=kind, **options)  # type: ignore[arg-type]


def test_number_and_place_of_each_kind() -> None:
    names = {kind: injector(kind)(on.encoder()) for kind in ("pfeiffer", "parallel", "houlsby")}
    hosts = {kind: sorted({name.partition(".adapter")[0] for name in found}) for kind, found in names.items()}
    assert hosts["pfeiffer"] == hosts["parallel"] == ["layers.0", "layers.1"]
    assert hosts["houlsby"] == [f"layers.{i}.{part}" for i in (0, 1) for part in ("linear2", "self_attn")]
    assert names["pfeiffer"][:4] == [
        f"layers.0.adapter.{name}" for name in ("down_weight", "down_bias", "up_weight", "up_bias")
    ]


def test_pfeiffer_by_hand() -> None:
    layer, x = nn.Linear(4, 6), torch.randn(3, 4)
    plain = layer(x)
    on.adapted(layer, scale=2.0)
    torch.testing.assert_close(layer(x), plain + 2.0 * on.bottleneck(layer.adapter, plain))  # type: ignore[arg-type]


def test_parallel_by_hand() -> None:
    layer, x = nn.Linear(4, 6), torch.randn(3, 4)
    plain = layer(x)
    on.adapted(layer, kind="parallel", width=5)
    torch.testing.assert_close(layer(input=x), plain + on.bottleneck(layer.adapter, x))  # type: ignore[arg-type]


def test_houlsby_by_hand() -> None:
    block = on.made(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    x = torch.randn(2, 5, 8)
    on.adapted(block, kind="houlsby")
    first = block.self_attn(x, x, x)[0]
    y = block.norm1(x + first)
    plain = F.linear(F.relu(block.linear1(y)), block.linear2.weight, block.linear2.bias)
    expected = block.norm2(y + plain + on.bottleneck(block.linear2.adapter, plain))
    torch.testing.assert_close(on.out(block, x), expected)


def test_decoder_layer_has_one_after_each_attention() -> None:
    block = nn.TransformerDecoderLayer(8, 2, 16)
    inject_adapters(on.around(block), ["layer"], kind="houlsby")
    hosts = [path for path, module in block.named_modules() if hasattr(module, "adapter")]
    assert hosts == ["self_attn", "multihead_attn", "linear2"]


def test_images_are_adapted_position_by_position() -> None:
    layer, x = nn.Conv2d(4, 6, 3, padding=1), torch.randn(2, 4, 5, 7)
    plain = layer(x)
    on.adapted(layer)
    expected = plain + on.bottleneck(layer.adapter, plain.movedim(1, -1)).movedim(-1, 1)  # type: ignore[arg-type]
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("kind", ["pfeiffer", "parallel"])
@pytest.mark.parametrize("size", [(7,), (7, 8), (5, 4, 6)])
def test_signals_images_and_volumes_with_strides(kind: str, size: tuple[int, ...]) -> None:
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(size) - 1]
    layer, x = convolution(4, 6, 3, padding=1, stride=2), torch.randn(2, 4, *size)
    plain = layer(x)
    on.adapted(layer, kind=kind)
    source = x[(slice(None), slice(None), *(slice(None, None, 2) for _ in size))] if kind == "parallel" else plain
    expected = plain + on.bottleneck(layer.adapter, source.movedim(1, -1)).movedim(-1, 1)  # type: ignore[arg-type]
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("kind", ["pfeiffer", "parallel"])
def test_channels_last_stays_channels_last(kind: str) -> None:
    model = on.made(lambda: ResNet((3, 16, 16), 3, width=8))
    on.stir(model, injector(kind)(model), std=0.1)
    x = on.images()
    expected = on.out(model, x)
    seen: list[bool] = []
    last = model.get_submodule(find_blocks(model)[-2])
    last.register_forward_hook(lambda m, a, y: seen.append(y.is_contiguous(memory_format=torch.channels_last)))
    model.to(memory_format=torch.channels_last)
    found = on.out(model, x.to(memory_format=torch.channels_last))
    assert seen == [True]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_sequences_of_layers_do_not_run_it_as_a_layer() -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 6))
    x = torch.randn(3, 4)
    plain = layer(x)
    on.adapted(layer)
    assert type(layer[-1]) is Adapter
    torch.testing.assert_close(layer(x), plain + on.bottleneck(layer.adapter, plain))  # type: ignore[arg-type]


@pytest.mark.thorough
def test_dropout_is_for_training_only() -> None:
    layer, x = nn.Linear(4, 32), torch.randn(3, 4)
    on.adapted(layer, dropout=0.5)
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_goes_with_lora() -> None:
    model = on.made(on.timm_vit)
    x = on.images()
    before = on.out(model, x)
    inject_lora(model, {"blocks.0.attn.qkv": 2, "blocks.0.mlp.fc2": 2}, alpha=4.0)
    on_top = inject_adapters(model, ["blocks.0", "blocks.0.mlp.fc2"], kind="pfeiffer")
    assert len(on_top) == 8
    assert torch.equal(on.out(model, x), before)
    with pytest.raises(UserError, match=r"cannot be merged(.|\n)*blocks.0.adapter \(adapter\)"):
        merged_state(model)


def test_precision_and_mode_are_the_blocks_own() -> None:
    layer = nn.Linear(4, 6).double().eval()
    on.adapted(layer)
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    assert not layer.adapter.training  # type: ignore[union-attr]


@pytest.mark.parametrize("activation", ["relu", "silu", "tanh", "identity"])
def test_activations(activation: str) -> None:
    layer = on.adapted(nn.Linear(4, 6), activation=activation)
    assert layer(torch.randn(2, 4)).isfinite().all()
    assert f"6 → 3 → 6, {activation}, scale=1" in repr(layer)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"kind": "lora"}, r"^kind: no such kind(.|\n)*houlsby, pfeiffer, parallel"),
    "activation": ({"activation": "gelo"}, r"^activation: unknown(.|\n)*nearest: gelu"),
    "dropout": ({"dropout": 1.0}, "^dropout: not a probability"),
    "scale": ({"scale": 0.0}, "^scale: the adapter would add nothing"),
    "width": ({"width": 17}, r"^width: no width for the bottleneck in layers.0(.|\n)*1 to 16"),
    "no-width": ({"width": 0}, "^width: no width"),
    "reduction": ({"reduction": 17}, r"^reduction: no width(.|\n)*16 wide(.|\n)*received: 17"),
    "no-reduction": ({"reduction": 0}, "^reduction: no width"),
}


@pytest.mark.parametrize("case", BAD)
def test_options_that_cannot_be(case: str) -> None:
    options, message = BAD[case]
    model = on.encoder()
    before = list(model.state_dict())
    with pytest.raises(UserError, match=message):
        inject_adapters(model, ["layers.0"], **options)
    assert list(model.state_dict()) == before


class Odd(nn.Module):
    """Computes something else than its layers tell."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        return {"wide": torch.cat([y, y], -1), "dict": {"y": y}, "short": y[:, 1:]}[self.what]


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("wide", "pfeiffer", r"does not fit odd: features are not as many(.|\n)*8 in the last or second"),
        ("dict", "pfeiffer", r"the output of odd is no tensor(.|\n)*dict"),
        ("short", "parallel", "does not fit odd: its input and output have other positions"),
    ],
)
def test_blocks_that_compute_something_else(what: str, kind: str, message: str) -> None:
    model = nn.ModuleDict({"odd": Odd(what)})
    inject_adapters(model, ["odd"], kind=kind)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        model["odd"](torch.randn(2, 3, 8))
