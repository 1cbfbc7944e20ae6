from __future__ import annotations

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.models import TransformerClassifier, TransformerLM

SMALL = {"dim": 16, "depth": 2, "heads": 2}


@pytest.mark.parametrize("positions", ["learned", "rotary", "none"])
@pytest.mark.parametrize("pool", ["mean", "cls"])
@pytest.mark.parametrize(
    ("shape", "vocab", "positions_seen"),
    [((6,), 11, 6), ((6,), None, 6), ((5, 3), None, 5), ((1, 8, 8), None, 16), ((3, 32, 16), None, 32)],
)
def test_kinds_of_samples(shape, vocab, positions_seen, positions, pool):
    options = {**SMALL, "vocab_size": vocab, "positions": positions, "pool": pool, "dropout": 0.1}
    model = TransformerClassifier(shape, 3, **options)
    x = torch.randint(vocab, (4, *shape)) if vocab else torch.randn(4, *shape)
    assert model.embed.values(x).shape == (4, positions_seen, 16)
    assert model(x).shape == (4, 3)


@pytest.mark.parametrize(("positions", "same"), [("none", True), ("learned", False), ("rotary", False)])
def test_only_positions_tell_an_order(positions, same):
    torch.manual_seed(0)
    model = TransformerClassifier((5, 3), 2, positions=positions, **SMALL).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 5, 3)
    assert torch.allclose(model(x), model(x.flip(1)), atol=1e-4) == same


def test_patches_are_read_row_by_row():
    model = TransformerClassifier((1, 4, 6), 2, patch=2, **SMALL)
    x = torch.randn(1, 1, 4, 6)
    last = model.embed.values.conv(x[:, :, 2:, 4:]).flatten(1)
    assert torch.allclose(model.embed.values(x)[:, -1], last, atol=1e-6)


@pytest.mark.parametrize("positions", ["learned", "rotary", "none"])
@pytest.mark.parametrize("bias", [False, True])
def test_no_position_sees_the_future(positions, bias):
    torch.manual_seed(0)
    model = TransformerLM(7, 10, positions=positions, bias=bias, **SMALL).eval()
    tokens = torch.randint(7, (3, 10))
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 7
    a, b = model(tokens), model(changed)
    assert a.shape == (3, 10, 7)
    assert torch.allclose(a[:, :6], b[:, :6], atol=1e-6)
    assert not torch.allclose(a[:, 6:], b[:, 6:], atol=1e-6)
    assert torch.allclose(model(tokens[:, :4]), a[:, :4], atol=1e-6)


def test_tied_weights_are_one_parameter():
    tied, free = TransformerLM(50, 8, **SMALL), TransformerLM(50, 8, tie=False, **SMALL)
    assert tied.head.weight is tied.embed.values.weight
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, free)]
    assert count[1] - count[0] == 50 * 16


def test_starts_at_the_entropy_of_a_uniform_guess():
    torch.manual_seed(0)
    model = TransformerLM(100, 32, dim=64, depth=2, heads=4)
    tokens = torch.randint(100, (8, 33))
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(4.605, abs=0.1)


def test_too_long_a_sequence():
    with pytest.raises(UserError, match="the sequence is too long"):
        TransformerLM(7, 4, **SMALL)(torch.zeros(1, 5, dtype=torch.int64))


def test_state_holds_parameters_only():
    model = TransformerLM(7, 4, **SMALL)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters(remove_duplicate=False)}
