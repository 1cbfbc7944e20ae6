"""peft's layers in a network: names, merging, guards; and LoRA of lightkit beside peft's, number by number."""

from __future__ import annotations

import copy
import importlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.finetune.peft.merging import merged_state, plain_names
from lightkit.finetune.peft.peft_bridge import inject_peft
from lightkit.models import TransformerLM

pytestmark = pytest.mark.filterwarnings("ignore")  # of peft and what it imports
peft = pytest.importorskip("peft", exc_type=ImportError)


class Net(nn.Module):
    """An embedding, a convolution and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.fc1 = nn.Linear(8, 8)
        self.fc2 = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(self.embed(x)[:, None]).mean(dim=1)
        return self.fc2(self.fc1(x).relu())


CONFIGS: dict[str, Callable[[], Any]] = {
    "LoRA": lambda: peft.LoraConfig(target_modules=["embed", "conv", "fc1", "fc2"], r=2),
    "LoRA by a regular expression": lambda: peft.LoraConfig(target_modules="fc.", r=2, use_rslora=True),
    "DoRA": lambda: peft.LoraConfig(target_modules=["conv", "fc1"], r=2, use_dora=True),
    "IA3": lambda: peft.IA3Config(target_modules=["fc1", "fc2"], feedforward_modules=["fc2"]),
    "LoKr": lambda: peft.LoKrConfig(target_modules=["conv", "fc1"], r=2),
    "OFT": lambda: peft.OFTConfig(target_modules=["fc1"], oft_block_size=4),
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    torch.manual_seed(0)
    enabled = torch.backends.mha.get_fastpath_enabled()
    yield
    torch.backends.mha.set_fastpath_enabled(enabled)


def learn(model: nn.Module, names: list[str]) -> None:
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in names:
            parameters[name].add_(0.3 * torch.randn_like(parameters[name]))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config(name):
    model, x, config = Net(), torch.randint(0, 11, (4, 5)), CONFIGS[name]()
    model.fc2.requires_grad_(False)
    model.conv.eval()
    before, output, asked = copy.deepcopy(model.state_dict()), model(x), copy.deepcopy(config)
    new = inject_peft(model, config)
    assert config == asked
    assert torch.allclose(model(x), output, atol=1e-6)
    plain = plain_names(model)
    assert set(plain.values()) == set(before)
    assert all(torch.equal(model.state_dict()[live], before[name]) for live, name in plain.items())
    trains = {plain.get(key, key) for key, parameter in model.named_parameters() if parameter.requires_grad}
    assert trains == {key for key in before if not key.startswith("fc2")} | set(new)
    assert not set(new) & set(plain)
    learn(model, new)
    model(x).square().sum().backward()
    assert all(dict(model.named_parameters())[key].grad.abs().sum() > 0 for key in new)
    model.eval()
    kept, merged = copy.deepcopy(model.state_dict()), merged_state(model)
    assert all(torch.equal(kept[key], value) for key, value in model.state_dict().items())
    assert merged.keys() == before.keys()
    fresh = Net().eval()
    fresh.load_state_dict(merged, strict=True)
    assert not torch.allclose(model(x), output, atol=1e-3)
    assert torch.allclose(fresh(x), model(x), atol=1e-5)


def test_modes_stay():
    model = Net()
    model.conv.eval()
    inject_peft(model, peft.LoraConfig(target_modules=["fc1"], lora_dropout=0.5))
    assert not model.conv.training
    assert all(module.training for module in model.fc1.modules())


def test_a_state_goes_into_a_fresh_network():
    model, other, x = Net(), Net(), torch.randint(0, 11, (4, 5))
    for network in (model, other):
        new = inject_peft(network, CONFIGS["LoRA"]())
    learn(model, new)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
    assert torch.equal(other(x), model(x))
    assert torch.equal(copy.deepcopy(model)(x), model(x))


def test_the_fast_path_of_encoders_is_switched_off():
    torch.backends.mha.set_fastpath_enabled(True)
    inject_peft(Net(), CONFIGS["LoRA"]())
    assert torch.backends.mha.get_fastpath_enabled()
    model, x = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(2, 5, 8)
    learn(model, inject_peft(model, peft.LoraConfig(target_modules=["linear1", "linear2"], r=2)))
    assert not torch.backends.mha.get_fastpath_enabled()
    trained = model(x)
    with torch.no_grad():
        assert torch.allclose(model.eval()(x), trained, atol=1e-5)


def lora(*targets: str, **options: Any) -> Callable[[], Any]:
    return lambda: peft.LoraConfig(target_modules=[*targets], r=2, **options)


def unusual(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv1d(4, 4, 3, **options))


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16)


REFUSED: list[tuple[Callable[[], Any], Callable[[], nn.Module], str]] = [
    (lambda: {"r": 2}, Net, r"^peft: not a config of peft\n.*peft.LoraConfig"),
    (lora("nothing"), Net, r"peft refuses this: .*nothing"),
    (lambda: peft.PromptTuningConfig(num_virtual_tokens=3), Net, r"peft refuses this: .*prompt learning"),
    (lora("fc1", modules_to_save=["fc2"]), Net, r"modules_to_save: this is not for"),
    (lora("fc1", bias="all"), Net, r"peft.bias: .*\n.*all.*\n.*@bias"),
    (lora("0"), unusual(dilation=2), r"forgets the dilation and the padding mode"),
    (lora("0"), unusual(padding_mode="circular"), r"forgets the dilation and the padding mode"),
    (lora("self_attn"), encoder_layer, r"do not work in nn.MultiheadAttention\n.*self_attn"),
    (lora("out_proj"), encoder_layer, r"do not work in nn.MultiheadAttention\n.*self_attn"),
    (
        lora("head"),
        lambda: TransformerLM(9, 4, dim=8, depth=1, heads=1),
        r"takes shared weights apart: embed.values.weight and head.weight are one tensor",
    ),
]


@pytest.mark.parametrize(("config", "build", "message"), REFUSED)
def test_what_does_not_work_is_refused(config, build, message):
    with pytest.raises(UserError, match=message):
        inject_peft(build(), config())


def test_a_layer_that_cannot_be_merged(monkeypatch):
    model = Net()
    inject_peft(model, CONFIGS["LoRA"]())

    def merge(self: Any, *args: Any) -> None:
        raise NotImplementedError("no way")

    monkeypatch.setattr(type(model.fc1), "merge", merge)
    with pytest.raises(UserError, match=r"peft cannot merge this: no way\n.*fc1 \(peft.tuners.lora.layer.Linear\)"):
        merged_state(model)


def test_peft_is_missing(monkeypatch):
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    message = r"^peft: peft cannot be imported: No module named 'peft'\n.*pip install 'lightkit\[peft\]'"
    with pytest.raises(UserError, match=message):
        inject_peft(nn.Linear(2, 2), object())
