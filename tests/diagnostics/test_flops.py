"""Operations of models: against published numbers, other packages' way of counting, and counts by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lightkit.diagnostics.flops import Flops, count_flops
from lightkit.models import MLP, RecurrentLM, SoftTree, TabM, TransformerLM
from lightkit.models.parts import Block


def flops(model: nn.Module, *inputs: Tensor) -> Flops:
    return count_flops(model, lambda given, batch: given(*batch), inputs)


def loss(model: nn.Module, batch: Any) -> Tensor:
    output = model(*batch)
    total: Tensor = (output["logits"] if isinstance(output, dict) else output).sum()
    return total


def training(model: nn.Module, *inputs: Tensor) -> int:
    return count_flops(model, loss, inputs, backward=True).total


def freeze(model: nn.Module, *, but: Sequence[str] = ()) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in but)
    return model


def on_meta(name: str, **options: Any) -> nn.Module:
    models = pytest.importorskip("torchvision").models
    with torch.device("meta"):
        model: nn.Module = models.get_model(name, **options)
    return model


@pytest.mark.parametrize(("name", "gmacs", "frozen"), [("resnet50", 4.09, False), ("vit_b_16", 17.56, True)])
def test_published_numbers(name: str, gmacs: float, frozen: bool) -> None:
    model = on_meta(name)
    found = flops(freeze(model) if frozen else model, torch.empty(1, 3, 224, 224))
    assert found.macs / 1e9 == pytest.approx(gmacs, rel=0.001)
    assert not found.measured
    assert found.unknown == ()


@pytest.mark.thorough
@pytest.mark.parametrize(  # `regnet` models are built with values, which takes long
    "name",
    ["alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "mobilenet_v2", "swin_t", "vit_h_14", "vgg11"],
)
def test_what_torchvision_publishes(name: str) -> None:
    weights = pytest.importorskip("torchvision").models.get_model_weights(name).DEFAULT
    size = weights.transforms().crop_size[0]
    options = {"image_size": size} if name.startswith("vit") else {}
    found = flops(on_meta(name, **options), torch.empty(1, 3, size, size))
    assert found.macs / 1e9 == pytest.approx(weights.meta["_ops"], rel=0.01)


def test_convolutions_and_linear_layers_as_thop_counts_them() -> None:
    model, counted = on_meta("resnet18"), list[int]()

    def hook(module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            width, height = module.kernel_size
            counted.append(output.numel() * width * height * module.in_channels // module.groups)
        elif isinstance(module, nn.Linear):
            counted.append(output.numel() * module.in_features)

    for module in model.modules():
        module.register_forward_hook(hook)
    image = torch.empty(1, 3, 224, 224)
    model(image.to("meta"))
    before = sum(counted)
    assert flops(model, image).macs == before == 1_814_073_344


def test_a_block_of_a_gpt_by_hand() -> None:
    tokens, dim = 32, 64
    linear, attention = 24 * tokens * dim**2, 4 * tokens**2 * dim
    block = Block(dim, 4, causal=True)
    x = torch.rand(1, tokens, dim)
    assert flops(block, x).total == linear + attention
    assert flops(freeze(block), x).total == linear + attention
    # A fused attention computes its scores again in the backward pass.
    assert 3 * attention <= training(Block(dim, 4), x.requires_grad_()) - 3 * linear <= 3.5 * attention


def test_a_whole_gpt_by_hand() -> None:
    tokens, dim, depth, vocabulary = 16, 32, 3, 50
    model = TransformerLM(vocabulary, tokens, dim=dim, depth=depth, heads=4)
    blocks = depth * (24 * tokens * dim**2 + 4 * tokens**2 * dim)
    head = 2 * tokens * dim * vocabulary
    found = flops(model, torch.zeros(1, tokens, dtype=torch.long))
    assert found.total == found.modules[""] == blocks + head
    assert found.modules["head"] == head
    assert sum(found.modules[f"blocks.{at}"] for at in range(depth)) == blocks
    assert sum(found.operators.values()) == found.total


@pytest.mark.parametrize("train", [False, True])
def test_the_fast_path_of_an_encoder_hides_nothing(train: bool) -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2, enable_nested_tensor=False
    )
    tokens, dim = 8, 32
    by_hand = 2 * (2 * tokens * (4 * dim**2 + 2 * dim * 64) + 4 * tokens**2 * dim)
    assert flops(encoder.train(train), torch.rand(1, tokens, dim)).total == by_hand
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        encoder.eval()(torch.rand(1, tokens, dim))
    assert counter.get_total_flops() == 0  # the reason for all this


WORDS = torch.zeros(1, 10, dtype=torch.long)


@pytest.mark.parametrize(
    ("model", "x", "macs"),
    [
        (MLP(8, 3, hidden=[16]), torch.rand(1, 8), 8 * 16 + 16 * 3),
        (SoftTree(13, 3, depth=5), torch.rand(1, 13), 13 * 31 + 32 * 3),
        (TabM(13, 3, k=4, hidden=[16, 8]), torch.rand(1, 13), 4 * (13 * 16 + 16 * 8 + 8 * 3)),
        (RecurrentLM(20, dim=8, hidden=16), WORDS, 10 * (4 * 16 * (8 + 16) + 16 * 20)),
        (
            RecurrentLM(20, cell="gru", dim=8, hidden=16, depth=2),
            WORDS,
            10 * (48 * (8 + 16) + 48 * (16 + 16) + 16 * 20),
        ),
    ],
    ids=["mlp", "soft_tree", "tabm", "lstm_lm", "gru_lm"],
)
def test_own_models_by_hand(model: nn.Module, x: Tensor, macs: int) -> None:
    found = flops(model, x)
    assert found.macs == macs
    assert found.unknown == ()
    assert flops(freeze(model), x).macs == macs


def test_training_of_what_is_frozen() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.rand(5, 8)
    first, second = 2 * 5 * 8 * 16, 2 * 5 * 16 * 4
    assert training(model, x) == 2 * first + 3 * second  # nothing needs the gradient of the input
    assert training(freeze(model, but=["2.weight"]), x) == first + 2 * second
    assert training(freeze(model, but=["0.weight"]), x) == 2 * first + 2 * second


def test_activations_that_are_computed_again() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Tanh())), torch.rand(2, 8)
    again = count_flops(model, loss, (x,), backward=True, recomputed=["2"]).total
    assert again - training(model, x) == 2 * 2 * 8 * 8


class Looking(nn.Module):
    """Looks at the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        self.rnn = nn.LSTM(8, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x) if x.sum() < 1e9 else x
        out: Tensor = self.rnn(x)[0]
        return out


def test_a_model_that_looks_at_values() -> None:
    state = torch.get_rng_state()
    model = Looking().eval()
    expected = 2 * (3 * (4 * 64 + 2 * 8 * 16) + 3 * 4 * 4 * (8 + 4)) + 4 * 9 * 8
    torch.set_rng_state(state)
    found = flops(model, torch.rand(1, 3, 8, generator=torch.Generator().manual_seed(0)))
    assert found.measured
    assert found.total == expected
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.mha.get_fastpath_enabled()


class Secret(nn.Module):
    """Computes something that nobody can count."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.inv(self.inner(x))


class Telling(Secret):
    """The same, and says what that is."""

    def count_flops(self, inputs: tuple[Any, ...], output: Tensor) -> int:
        assert inputs[0].shape == output.shape
        return 1000


def test_what_has_no_rule_is_named() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), Secret()), torch.rand(1, 4, 4)
    found = flops(model, x)
    assert [op.name for op in found.unknown] == ["linalg_inv_ex"]
    assert found.total == 2 * 2 * 4 * 4 * 4
    norm = flops(nn.Sequential(nn.LayerNorm(4), nn.ReLU()), x)
    assert (norm.total, norm.unknown, norm.minor) == (0, (), 32)


def test_a_module_counts_itself() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Telling())), torch.rand(1, 4, 4)
    found = flops(model, x)
    assert found.total == found.modules[""] == 128 + 1000
    assert found.modules["1"] == found.modules["1.0"] == 1000
    assert found.operators == {"Telling.count_flops": 1000, "addmm": 128}
    assert found.unknown == ()
    assert training(model, x) == 2 * 128 + 3 * 1000


def test_operators_with_a_rule_of_ours() -> None:
    bilinear = flops(nn.Bilinear(3, 4, 5), torch.rand(2, 3), torch.rand(2, 4))
    assert (bilinear.total, bilinear.unknown) == (2 * 2 * 5 * (3 * 4 + 4), ())
    assert flops(nn.Linear(6, 5), torch.rand(6)).total == 2 * 6 * 5, "one sample without a batch"


class Fourier(nn.Module):
    """Mixes tokens by a Fourier transform, as FNet does."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(torch.fft.rfft(x), dim=-2).real + torch.cdist(x, x).sum()


def test_fourier_transforms_and_distances() -> None:
    found = flops(Fourier(), torch.rand(1, 8, 16))
    assert found.operators["_fft_r2c"] == 2.5 * 8 * 16 * 4
    assert found.operators["_fft_c2c"] == 5 * 8 * 9 * 3
    assert found.unknown == ()


def test_nothing_of_the_model_changes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    count_flops(model, loss, (torch.rand(3, 4),), backward=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tensors_that_a_module_just_keeps() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scale = nn.Parameter(torch.rand(4, 4)), torch.ones(4)

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale) @ self.weight

    found = flops(Scaled(), torch.rand(2, 4))
    assert (found.total, found.measured) == (64, False)
