from __future__ import annotations

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.models import RecurrentLM


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("depth", [1, 2])
def test_no_position_sees_the_future(cell, depth):
    model = RecurrentLM(7, cell=cell, dim=8, hidden=12, depth=depth, dropout=0.1).eval()
    tokens = torch.randint(7, (3, 10))
    logits = model(tokens)
    assert logits.shape == (3, 10, 7)
    assert torch.allclose(model(tokens[:, :4]), logits[:, :4], atol=1e-6)


def test_tied_weights_are_one_parameter():
    model = RecurrentLM(7, dim=8, hidden=8, tie=True)
    assert model.head.weight is model.embed.weight


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"cell": "rnn"}, r"cell: not a valid choice"),
        ({"tie": True, "dim": 4}, "tied weights need equal widths"),
        ({"hidden": 0}, r"hidden: sizes start at 1"),
        ({"dropout": -0.1}, r"dropout: not a probability"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(UserError, match=match):
        RecurrentLM(7, **arguments)
