"""lightkit's own networks: what they take, what they compute, and what their parameters are called."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.models import CNN, MLP, RecurrentLM, ResNet, TransformerClassifier, TransformerLM, UNet
from lightkit.models.parts import Attention, rotary_table, rotate
from lightkit.runner import Runner

SMALL: dict[str, Any] = {"dim": 16, "depth": 2, "heads": 2}


@pytest.mark.parametrize(
    ("shape", "pool", "head"),
    [
        ((1, 8, 8), "max", "avg"),
        ((3, 32, 32), "avg", "flatten"),
        ((3, 13, 7), "stride", "flatten"),
        ((2, 1, 1), "avg", "max"),
        ((1, 1, 9), "max", "flatten"),
    ],
)
def test_a_cnn_takes_any_image_size(shape, pool, head):
    model = CNN(shape, 5, channels=(4, 6, 8, 8), pool=pool, head=head, dropout=0.1)
    assert model(torch.randn(2, *shape)).shape == (2, 5)


def test_depth_and_channels_of_a_cnn_set_the_number_of_parameters():
    model = CNN((3, 32, 32), 4, channels=(24, 48, 80), depth=2)
    assert sum(p.numel() for p in model.parameters()) == 3 * 9 * 24 + 24 * 9 * 24 + 24 * 9 * 48 + 48 * 9 * 48 + (
        48 * 9 * 80 + 80 * 9 * 80 + 2 * 2 * (24 + 48 + 80) + 80 * 4 + 4
    )
    assert model.stages[1].conv1.weight.shape == (48, 48, 3, 3)


@pytest.mark.parametrize(("shape", "norm"), [((7,), "none"), ((1, 8, 8), "batch"), ((3, 5), "layer")])
def test_an_mlp_flattens_any_input_shape(shape, norm):
    features = int(torch.tensor(shape).prod())
    model = MLP(features, 4, hidden=(16, 8), norm=norm, dropout=0.2, activation="gelu")
    assert model(torch.randn(5, *shape)).shape == (5, 4)


def test_names_of_an_mlp():
    names = [name for name, _ in MLP(3, 2, hidden=(4,), norm="batch", dropout=0.5).named_parameters()]
    assert names == ["layers.linear0.weight", "layers.norm0.weight", "layers.norm0.bias", "head.weight", "head.bias"]
    model, x = MLP(3, 2, hidden=()), torch.randn(4, 3)
    assert torch.equal(model(x), model.head(x))


@pytest.mark.parametrize(
    "make",
    [
        *(lambda p=p, b=b: TransformerLM(7, 10, positions=p, bias=b, **SMALL)
          for p, b in (("learned", False), ("rotary", True), ("none", False))),
        *(lambda c=c, d=d: RecurrentLM(7, cell=c, dim=8, hidden=12, depth=d, dropout=0.1)
          for c, d in (("lstm", 1), ("gru", 2))),
    ],
)  # fmt: skip
def test_no_position_sees_the_future(make):
    torch.manual_seed(0)
    model, tokens = make().eval(), torch.randint(7, (3, 10))
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 7
    a, b = model(tokens), model(changed)
    assert a.shape == (3, 10, 7)
    assert torch.allclose(a[:, :6], b[:, :6], atol=1e-6)
    assert not torch.allclose(a[:, 6:], b[:, 6:], atol=1e-6)
    assert torch.allclose(model(tokens[:, :4]), a[:, :4], atol=1e-6)


def test_tied_weights_are_one_parameter():
    recurrent = RecurrentLM(7, dim=8, hidden=8, tie=True)
    assert recurrent.head.weight is recurrent.embed.weight
    tied, free = TransformerLM(50, 8, **SMALL), TransformerLM(50, 8, tie=False, **SMALL)
    assert tied.head.weight is tied.embed.values.weight
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, free)]
    assert count[1] - count[0] == 50 * 16
    assert set(tied.state_dict()) == {name for name, _ in tied.named_parameters(remove_duplicate=False)}


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [18, 50])
def test_a_resnet_equals_torchvisions(depth):
    models = pytest.importorskip("torchvision.models")
    theirs = models.get_model(f"resnet{depth}", num_classes=7).eval()
    ours = ResNet((3, 96, 96), 7, depth=depth).eval()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize(("shape", "large"), [((3, 32, 32), False), ((3, 96, 96), True), ((3, 224, 64), False)])
def test_the_stem_follows_the_image_size(shape, large):
    model = ResNet(shape, 3, width=4)
    assert isinstance(model.maxpool, nn.MaxPool2d) == large
    assert model.conv1.kernel_size == ((7, 7) if large else (3, 3))


@pytest.mark.parametrize(("shape", "stem"), [((1, 8, 8), "auto"), ((3, 33, 20), "cifar"), ((2, 100, 97), "imagenet")])
def test_a_resnet_takes_any_image_size(shape, stem):
    model = ResNet(shape, 3, width=4, stem=stem, depth=50, dropout=0.1)
    assert model(torch.randn(2, *shape)).shape == (2, 3)


def test_zero_init_starts_the_branches_at_nothing():
    model = ResNet((3, 8, 8), 3, width=4, zero_init=True).eval()
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(model.layer1(x), x)


@pytest.mark.parametrize(
    ("shape", "vocab", "count", "positions", "pool"),
    [
        ((6,), 11, 6, "learned", "mean"),
        ((6,), None, 6, "rotary", "cls"),
        ((5, 3), None, 5, "none", "mean"),
        ((1, 8, 8), None, 16, "learned", "cls"),
        ((3, 32, 16), None, 32, "rotary", "mean"),
    ],
)
def test_kinds_of_samples_of_a_transformer(shape, vocab, count, positions, pool):
    options = {**SMALL, "vocab_size": vocab, "positions": positions, "pool": pool, "dropout": 0.1}
    model = TransformerClassifier(shape, 3, **options)
    x = torch.randint(vocab, (4, *shape)) if vocab else torch.randn(4, *shape)
    assert model.embed.values(x).shape == (4, count, 16)
    assert model(x).shape == (4, 3)


@pytest.mark.parametrize(("positions", "same"), [("none", True), ("learned", False), ("rotary", False)])
def test_only_positions_give_an_order(positions, same):
    torch.manual_seed(0)
    model = TransformerClassifier((5, 3), 2, positions=positions, **SMALL).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 5, 3)
    assert torch.allclose(model(x), model(x.flip(1)), atol=1e-4) == same


def test_patches_are_read_row_by_row():
    model = TransformerClassifier((1, 4, 6), 2, patch=2, **SMALL)
    x = torch.randn(1, 1, 4, 6)
    last = model.embed.values.conv(x[:, :, 2:, 4:]).flatten(1)
    assert torch.allclose(model.embed.values(x)[:, -1], last, atol=1e-6)


def test_a_language_model_starts_at_the_entropy_of_a_uniform_guess():
    torch.manual_seed(0)
    model, tokens = TransformerLM(100, 32, dim=64, depth=2, heads=4), torch.randint(100, (8, 33))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(4.605, abs=0.1)
    with pytest.raises(UserError, match="the sequence is too long"):
        TransformerLM(7, 4, **SMALL)(torch.zeros(1, 5, dtype=torch.int64))


def test_rotated_products_depend_on_the_distance_only():
    table, q, k = rotary_table(12, 8), torch.randn(8), torch.randn(8)

    def at(x, t):
        return rotate(x.expand(1, 1, 12, 8), table)[0, 0, t]

    assert torch.allclose(at(q, 3) @ at(k, 1), at(q, 11) @ at(k, 9), atol=1e-4)
    assert torch.allclose(at(q, 5).norm(), q.norm())


def test_attention_equals_the_formula():
    torch.manual_seed(0)
    layer, x = Attention(8, 2, causal=True), torch.randn(2, 5, 8)
    q, k, v = (part.view(2, 5, 2, 4).transpose(1, 2) for part in layer.qkv(x).chunk(3, dim=-1))
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    expected = layer.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 5, 8))
    assert torch.allclose(layer(x), expected, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "overrides",
    [
        "model=tabm data=wine loss=supervised_contrastive trainer.ema.decay=0.9 checkpoint.export=model",
        "model=tabm data=breast_cancer device.parallel=dp finetune=lora finetune.lora.rank=2",
        "model=tabm data=digits_multilabel device.precision=fp64 data.mixup.alpha=0.4",
        "model=soft_tree data=digits device.precision=bf16 finetune=head finetune.head.replace=never",
        "model=soft_tree data=breast_cancer device.parallel=dp device.activation_checkpointing=[gates]",
        "model=soft_tree data=diabetes finetune=lora finetune.lora.rank=2",
    ],
)
def test_networks_whose_output_is_a_mapping_train_on_every_kind_of_target(overrides, tmp_path):
    small = ["model.k=4", "model.hidden=[8]"] if "tabm" in overrides else ["model.depth=3"]
    texts = [*overrides.split(), *small, "trainer.epochs=1", "data.batch_size=128"]
    result = Runner(compose([*texts, "device=cpu", "logger=quiet", "metrics.figures=[]"]).cfg, tmp_path).run()
    assert result["status"] == "finished"
    assert all(math.isfinite(value) for name, value in result["metrics"].items() if name.endswith("/loss"))


@pytest.mark.parametrize("pool", ["mean", "cls"])
@pytest.mark.parametrize("positions", ["learned", "rotary", "none"])
@pytest.mark.parametrize("task", ["multiclass", "tagging"])
def test_what_fills_up_a_batch_changes_no_output(pool: Any, positions: Any, task: str) -> None:
    torch.manual_seed(0)
    options = {"vocab_size": 9, "padding_idx": 0, "task": task, "pool": pool, "positions": positions}
    model = TransformerClassifier((7,), 3, **SMALL, **options).eval()
    nn.init.normal_(model.head.weight)
    batch = torch.tensor([[3, 4, 5, 0, 0], [1, 2, 3, 4, 5]])
    together, alone = model(batch), model(batch[:1, :3])
    assert together.shape == ((2, 3, 5) if task == "tagging" else (2, 3))
    assert torch.allclose(together[:1, :, :3] if task == "tagging" else together[:1], alone, atol=1e-5)


def test_unet_gives_an_output_for_each_pixel_of_any_size() -> None:
    model = UNet(3, 5, channels=(4, 8, 12), depth=1)
    for size in ((33, 17), (8, 64)):
        assert model(torch.rand(2, 3, *size)).shape == (2, 5, *size)
    with pytest.raises(UserError, match="sizes start at 1"):
        UNet(3, 5, channels=(4, 0))
