from __future__ import annotations

import pytest
import torch

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
